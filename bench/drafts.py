#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the gain of drafts: the same work with and without --draft, in alternating rounds.

    bench/drafts.py --cell 13b-f16-8gib -o bench/results/NAME.json       # on a GPU; also opt-30b-f16-6.8gb
    bench/drafts.py --cell smollm2-disk --rounds 5 -o bench/results/NAME.json

Cells of dummy models run draft_sweep, which loads a model once and generates without drafts, with drafts that are right with probability 0.6, and
with drafts that are never right. The cell of SmolLM2 has its
weights on disk and answers prompts that ask for a text once more, with small changes; answers are compared, too.
Prints medians over the rounds and ratios to the run without drafts of the same round.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

from keep_result import keep

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCHES = {
    "13b-f16-8gib": ["dummy:llama-2-13b", "--device", "cuda", "--gpu-memory", "8GiB"],
    "opt-30b-f16-6.8gb": ["dummy:opt-30b", "--device", "cuda", "--gpu-memory", "6.8GB"],
    "1.1b-q8_0-disk": ["dummy:tinyllama-1.1b:q8_0", "--device", "cpu", "--weights", "0,0,100", "--disk-memory", "8GiB"],
}
ACCEPTANCES = {"without": "without", "0.6": "0.6", "never": "0"}  # names here, and those that draft_sweep prints
QUOTED = """def mean_and_spread(values):
    if len(values) == 0:
        raise ValueError("no values were given")
    total = sum(values)
    mean = total / len(values)
    squares = [(value - mean) ** 2 for value in values]
    variance = sum(squares) / len(values)
    return mean, math.sqrt(variance)
"""
STORY = (
    "The old lighthouse stood on a cliff above the harbour. Every evening the keeper climbed the ninety steps to the lamp, filled it with oil "
    "and cleaned the glass. One night in November a storm came from the west and the lamp went out. The keeper took a lantern, climbed the steps "
    "in the dark and held the lantern to the window until the morning, so that the fishing boats found their way home."
)
PROMPTS = [
    "Repeat this code exactly, without any other words:\n\n" + QUOTED,
    "Here is a function:\n\n" + QUOTED + "\nWrite the same function once more, with the name statistics_of.",
    "Repeat this text word by word:\n\n" + STORY,
    "Correct the spelling of this text, and give all of it:\n\n" + STORY.replace("evening", "evning"),
]


def run_json(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def bench_rounds(options):
    """One process loads the model once; its rounds alternate."""
    command = [options.draft_sweep, *BENCHES[options.cell], "--rounds", options.rounds, "--acceptance", "0.6", "0"]
    sizes = ["--prompt-len", options.prompt_tokens, "--gen-len", options.tokens + 1]
    words = [str(word) for word in [*command, *sizes, *options.extra]]
    rounds = [{} for _ in range(options.rounds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            found = json.loads(line)
            told, number = found.pop("name"), found.pop("round")
            name = next(name for name, printed in ACCEPTANCES.items() if printed == told)
            rounds[number][name] = found
            if len(rounds[number]) == len(ACCEPTANCES):
                tell(number, rounds[number])
    if process.returncode != 0:
        sys.exit(f"{' '.join(words)}: ended with {process.returncode}")
    return rounds


def tell(number, results):
    told = ", ".join(f"{name} {result['tokens_per_s']:.2f}" for name, result in results.items())
    print(f"round {number + 1}: tokens/s {told}", file=sys.stderr)


def smollm2_round(options, folder):
    placement = ["--device", "cpu", "--weights", "0,0,100", "--disk-memory", "4GiB", "--disk-dir", folder]
    results = {name: {"tokens": 0, "seconds": 0, "proposed": 0, "accepted": 0} for name in ("without", "lookup")}
    for prompt in PROMPTS:
        answers = {}
        for name, result in results.items():
            draft = "lookup" if name == "lookup" else "off"
            command = [options.spillway, "run", options.model, "--chat", prompt, "--temp", "0", "-n", options.tokens, "--deterministic", "--json"]
            found = run_json([*command, *placement, "--draft", draft, *options.extra])
            answers[name] = found["ids"]
            result["tokens"] += len(found["ids"]) - 1
            result["seconds"] += found["total_s"] - found["first_token_s"]
            result["proposed"] += found["draft_proposed"]
            result["accepted"] += found["draft_accepted"]
        if answers["without"] != answers["lookup"]:
            sys.exit(f"another answer with drafts: {prompt}")
    for result in results.values():
        result["tokens_per_s"] = result["tokens"] / result["seconds"]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", required=True, choices=[*BENCHES, "smollm2-disk"])
    parser.add_argument("--spillway", default=str(ROOT / "build/release/bin/spillway"), help="the executable")
    parser.add_argument("--draft-sweep", default=str(ROOT / "build/release/bin/draft_sweep"), help="the program of the dummy models' cells")
    parser.add_argument("--model", default="smollm2", help="of the cell smollm2-disk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--note", default="", help="something about the machine, for the results")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    parser.add_argument("extra", nargs="*", help="more options of spillway, after --")
    options = parser.parse_args()

    if options.cell == "smollm2-disk":
        rounds = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(options.rounds):
                rounds.append(smollm2_round(options, folder))
                tell(number, rounds[-1])
    else:
        rounds = bench_rounds(options)
    summary = {}
    for name in rounds[0]:
        ratios = [one[name]["tokens_per_s"] / one["without"]["tokens_per_s"] for one in rounds]
        summary[name] = {
            "tokens_per_s": statistics.median(one[name]["tokens_per_s"] for one in rounds),
            "ratio": statistics.median(ratios),
            "ratios": [min(ratios), max(ratios)],
        }
        print(f"{name:8} {summary[name]['tokens_per_s']:8.2f} tokens/s, {summary[name]['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    keep(
        {
            "date": datetime.date.today().isoformat(),
            "machine": {"architecture": platform.machine(), "processors": os.cpu_count()},
            "command": ["bench/drafts.py", *sys.argv[1:]],
            "note": options.note,
            "cell": options.cell,
            "summary": summary,
            "rounds": rounds,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
