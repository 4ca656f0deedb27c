#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the loss of accuracy by compression and sparse attention (the paper's table 5): perplexity and last-word accuracy of a
model with F16 weights and KV, with 4-bit weights, 8- and 4-bit KV, both, attention to a tenth of the context, and all.

    bench/compression_accuracy.py MODEL.gguf TEXT [--ctx 512] [--max-windows 24] [--passages 200]
                                  [--build build/release] [-o bench/results/NAME.json]
    bench/compression_accuracy.py MODEL.gguf --own-stories 24     # text sampled from the model itself, for tiny models

The model may be stored in any type; it is decoded to F16 first, so that "4-bit weights" start from the same values as
"f16". Passages are those of make_last_word.py. Every run sees the same windows and passages.
"""

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile

import keep_result
import make_last_word

TOPK = ["--attention-topk", "0.1"]
WEIGHTS = ["--compress-weights"]
KV = ["--compress-kv"]
RUNS = {
    "f16": [],
    "4-bit weights": WEIGHTS,
    "8-bit KV": ["--kv-type", "int8"],
    "4-bit KV": KV,
    "4-bit weights and KV": [*WEIGHTS, *KV],
    "top-k 10%": TOPK,
    "4-bit weights and KV, top-k 10%": [*WEIGHTS, *KV, *TOPK],
}


def own_stories(program, model, count, tokens=240):
    """Stories sampled from the model itself."""
    stories = []
    for seed in range(1, count + 1):
        command = [program, "run", model, "-p", "Once upon a time", "-n", str(tokens), "--temp", "1", "--seed", str(seed), "--ignore-end"]
        stories.append(json.loads(subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE).stdout)["text"].strip())
    return stories


def table(runs):
    """The table's rows, each compared with f16."""
    base = runs["f16"]
    lines = [f"{'':32} {'perplexity':>10} {'change':>8} {'last word':>10} {'change':>8} {'V read':>7}"]
    for name, run in runs.items():
        change = run["perplexity"] / base["perplexity"] - 1
        words = run["last_word_accuracy"] - base["last_word_accuracy"]
        dense = run["attention_v_bytes_dense"]
        read = f"{run['attention_v_bytes'] / dense:7.1%}" if dense and run["attention_topk"] else "       "
        lines.append(
            f"{name:32} {run['perplexity']:10.4f} {change:+8.2%} {run['last_word_accuracy']:10.2%} {100 * words:+7.2f}pp {read}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--own-stories", type=int, default=0, metavar="N", help="N stories sampled from the model, instead of TEXT")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--max-windows", type=int, default=24)
    parser.add_argument("--passages", type=int, default=200)
    parser.add_argument("--min-words", type=int, default=50)
    parser.add_argument("--max-words", type=int, default=150)
    parser.add_argument("--runs", help="only these, separated by commas; f16 comes with them")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--note")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    if (args.text is None) == (args.own_stories == 0):
        parser.error("give TEXT or --own-stories N")
    names = list(RUNS) if args.runs is None else ["f16", *(n for n in args.runs.split(",") if n != "f16")]

    program = f"{args.build}/bin/spillway"
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        text = args.text
        if args.own_stories:
            text = f"{folder}/stories.txt"
            stories = own_stories(program, args.model, args.own_stories)
            with open(text, "w") as file:
                file.write("\n".join(stories))
        with open(text, encoding="utf-8") as file:
            # A story is a context of its own.
            source = file.read() if not args.own_stories else "\n= =\n".join(story.replace("\n", " ") for story in stories)
        passages = make_last_word.passages(source, args.passages, args.min_words, args.max_words)
        if not passages:
            sys.exit("no passages in the text; give a longer one, or smaller --min-words")
        with open(f"{folder}/passages.jsonl", "w") as file:
            file.writelines(json.dumps({"text": passage}) + "\n" for passage in passages)
        model = f"{folder}/f16.gguf"
        subprocess.run([f"{args.build}/bench/round_to_groups", args.model, model, "plain"], check=True)

        for name in names:
            command = [program, "eval", model, "--text", text, "--ctx", str(args.ctx), "--max-windows", str(args.max_windows)]
            command += ["--last-word", f"{folder}/passages.jsonl", "--json", *RUNS[name]]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            run = {key: answer[key] for key in ("perplexity", "perplexity_stderr", "tokens", "windows")}
            run |= {key: answer[key] for key in ("last_word_accuracy", "last_word_perplexity", "passages")}
            run |= {key: answer[key] for key in ("attention_topk", "attention_v_bytes", "attention_v_bytes_dense")}
            accuracy = run["last_word_accuracy"]
            run["last_word_stderr"] = math.sqrt(accuracy * (1 - accuracy) / run["passages"])
            runs[name] = run
            run["ratio"] = run["perplexity"] / runs["f16"]["perplexity"]
            print(f"{name}: perplexity {run['perplexity']:.4f}, last word {accuracy:.2%}", file=sys.stderr, flush=True)

    shown = os.path.basename(args.text) if args.text else f"--own-stories {args.own_stories}"
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": f"bench/compression_accuracy.py {os.path.basename(args.model)} {shown} --ctx {args.ctx} "
        f"--max-windows {args.max_windows} --passages {args.passages} --min-words {args.min_words} --max-words {args.max_words}",
        "runs": runs,
    }
    if args.note:
        result["note"] = args.note
    print(table(runs))
    keep_result.keep(result, args.output)


if __name__ == "__main__":
    main()
