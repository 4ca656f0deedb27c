#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the program on the same prompt, in alternating rounds: what does a change cost?

    bench/two_programs.py BEFORE AFTER --model smollm2 --rounds 15
    bench/two_programs.py BEFORE AFTER --model dummy:llama-3-8b --prompt-tokens 2000 -- --kv-type int8 --device cuda

BEFORE and AFTER are executables, e.g. of two worktrees. Each runs `run --ids` with sampling as a user would; options behind --
go to both. Prints medians, the ratio of AFTER to BEFORE and its spread over the rounds, one per pair of runs.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--temp", default="0")
    parser.add_argument("--vocabulary", type=int, default=1000, help="prompt ids are below it")
    own = sys.argv[1:]
    options = []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    return parser.parse_args(own), options


def measure(program, arguments, options, ids):
    command = [program, "run", arguments.model, "--ids", ids, "-n", str(arguments.tokens), "--ignore-end", "--json",
               "--temp", arguments.temp, "--seed", "1", *options]  # fmt: skip
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    decode_s = answer["total_s"] - answer["first_token_s"]
    return {"prefill tokens/s": arguments.prompt_tokens / answer["first_token_s"],
            "decode tokens/s": (len(answer["ids"]) - 1) / decode_s}, answer["ids"]  # fmt: skip


def main():
    arguments, options = parse_arguments()
    draw = random.Random(1)
    ids = ",".join(str(draw.randrange(3, arguments.vocabulary)) for _ in range(arguments.prompt_tokens))
    rounds, answers = [], set()
    for number in range(arguments.rounds):
        pair = [None, None]
        # Who comes first gets the machine as the other left it.
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            program = (arguments.before, arguments.after)[which]
            pair[which], answer = measure(program, arguments, options, ids)
            answers.add(tuple(answer))
        rounds.append(pair)
    for figure in rounds[0][0]:
        before, after = (statistics.median(pair[which][figure] for pair in rounds) for which in (0, 1))
        ratios = sorted(pair[1][figure] / pair[0][figure] for pair in rounds)
        print(f"{figure}: before {before:.2f}, after {after:.2f}; ratio {statistics.median(ratios):.4f} "
              f"({ratios[0]:.4f} to {ratios[-1]:.4f} in {len(ratios)} rounds)")  # fmt: skip
    print("the same tokens" if len(answers) == 1 else "tokens differ")


if __name__ == "__main__":
    main()
