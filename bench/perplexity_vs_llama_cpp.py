#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of one GGUF file on one text, by Spillway and by llama.cpp (llama-cpp-python from PyPI), and their ratio.

    bench/perplexity_vs_llama_cpp.py MODEL.gguf TEXT [--ctx 512] [--max-windows N] [--binary build/release/bin/spillway]
                                     [-o bench/results/NAME.json]

Both cut the text into the same windows: no overlap, BOS first where the vocabulary asks for it, second half scored.
"""

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import time

import keep_result


def spillway_perplexity(args):
    command = [args.binary, "eval", args.model, "--text", args.text, "--ctx", str(args.ctx), "--json"]
    if args.max_windows:
        command += ["--max-windows", str(args.max_windows)]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return command, answer


def llama_cpp_perplexity(args):
    import llama_cpp
    import numpy

    model = llama_cpp.Llama(args.model, n_ctx=args.ctx, n_batch=args.ctx, logits_all=True, verbose=False,
                            n_threads=os.cpu_count(), n_threads_batch=os.cpu_count())
    with open(args.text, "rb") as file:
        tokens = model.tokenize(file.read(), add_bos=True, special=False)
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    add_bos = llama_cpp.llama_vocab_get_add_bos(vocabulary)
    windows = len(tokens) // args.ctx
    if args.max_windows:
        windows = min(windows, args.max_windows)
    first = args.ctx // 2
    loss, count = 0.0, 0
    started = time.monotonic()
    for window in range(windows):
        ids = tokens[window * args.ctx : (window + 1) * args.ctx]
        if add_bos:
            ids[0] = model.token_bos()
        model.reset()
        model.eval(ids)
        logits = model.scores[first : args.ctx - 1].astype(numpy.float64)
        top = logits.max(axis=1)
        total = top + numpy.log(numpy.exp(logits - top[:, None]).sum(axis=1))
        loss += (total - logits[numpy.arange(len(logits)), ids[first + 1 :]]).sum()
        count += len(logits)
        if sys.stderr.isatty():
            print(f"\rllama.cpp: window {window + 1} of {windows}, {math.exp(loss / count):.3f} so far", end="", file=sys.stderr)
    return {
        "perplexity": math.exp(loss / count), "tokens": count, "windows": windows, "text_tokens": len(tokens),
        "tokens_per_s": windows * args.ctx / (time.monotonic() - started), "version": llama_cpp.__version__,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--max-windows", type=int, default=0)
    parser.add_argument("--binary", default="build/release/bin/spillway")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()

    command, ours = spillway_perplexity(args)
    theirs = llama_cpp_perplexity(args)
    names = {os.path.dirname(os.path.abspath(path)): "" for path in (args.model, args.text)}
    shown = " ".join(os.path.basename(part) if os.path.dirname(os.path.abspath(part)) in names else part for part in command)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": shown,
        "spillway": ours | {"model": os.path.basename(args.model)},
        "llama_cpp": theirs,
        "ratio": ours["perplexity"] / theirs["perplexity"],
    }
    print(json.dumps(result, indent=2))
    keep_result.keep(result, args.output)


if __name__ == "__main__":
    main()
