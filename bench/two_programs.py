#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a change: two builds of the program on the same prompt, in alternating rounds.

    bench/two_programs.py BEFORE AFTER --model smollm2 --rounds 15
    bench/two_programs.py BEFORE AFTER --model dummy:opt-350m --bench --rounds 5 -o bench/results/NAME.json
    bench/two_programs.py BEFORE AFTER --model dummy:llama-3-8b --prompt-tokens 2000 -- --kv-type int8 --device cuda

BEFORE and AFTER are executables, e.g. of two worktrees. Each runs `run --ids` with sampling as a user would, or `bench`; options
behind -- go to both. Prints medians, the ratio of AFTER to BEFORE and its spread over the rounds, one per pair of runs. The
processor's seconds are of the whole program, loading included: on a machine that others use they say more than tokens/s.
"""

import argparse
import datetime
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys

from keep_result import keep


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
    parser.add_argument("--bench", action="store_true", help="measure with each program's bench; tokens are not compared")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    own = sys.argv[1:]
    options = []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    return parser.parse_args(own), options


def run_json(command):
    """(the JSON that it printed, its processor seconds)"""

    def used_s():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = used_s()
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer, {"processor s": used_s() - before}


def measure_bench(program, arguments, options):
    command = [program, "bench", arguments.model, "--prompt-len", str(arguments.prompt_tokens), "--gen-len", str(arguments.tokens),
               "--json", *options]  # fmt: skip
    report, used = run_json(command)
    return {"prefill tokens/s": report["prefill_tokens_per_s"], "decode tokens/s": report["decode_tokens_per_s"],
            "generated tokens/s": report["generated_tokens_per_s"], **used}  # fmt: skip


def measure_run(program, arguments, options, ids):
    command = [program, "run", arguments.model, "--ids", ids, "-n", str(arguments.tokens), "--ignore-end", "--json",
               "--temp", arguments.temp, "--seed", "1", *options]  # fmt: skip
    answer, used = run_json(command)
    decode_s = answer["total_s"] - answer["first_token_s"]
    return {"prefill tokens/s": arguments.prompt_tokens / answer["first_token_s"],
            "decode tokens/s": (len(answer["ids"]) - 1) / decode_s, **used}, answer["ids"]  # fmt: skip


def measure_rounds(measure, arguments):
    """For each round the results of both programs."""
    rounds = []
    for number in range(arguments.rounds):
        pair = [None, None]
        # The program that runs first finds the machine as the other one left it, so they alternate.
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            pair[which] = measure((arguments.before, arguments.after)[which])
        rounds.append(pair)
    return rounds


def summary(rounds, figure):
    ratios = sorted(pair[1][figure] / pair[0][figure] for pair in rounds)
    before, after = (statistics.median(pair[which][figure] for pair in rounds) for which in (0, 1))
    return {"before": before, "after": after, "ratio": statistics.median(ratios), "ratios": ratios}


def main():
    arguments, options = parse_arguments()
    draw = random.Random(1)
    ids = ",".join(str(draw.randrange(3, arguments.vocabulary)) for _ in range(arguments.prompt_tokens))
    answers = set()

    def run(program):
        figures, answer = measure_run(program, arguments, options, ids)
        answers.add(tuple(answer))
        return figures

    load_average = os.getloadavg()[0]
    rounds = measure_rounds((lambda program: measure_bench(program, arguments, options)) if arguments.bench else run, arguments)
    figures = {figure: summary(rounds, figure) for figure in rounds[0][0]}
    for figure, found in figures.items():
        print(f"{figure}: before {found['before']:.2f}, after {found['after']:.2f}; ratio {found['ratio']:.4f} "
              f"({found['ratios'][0]:.4f} to {found['ratios'][-1]:.4f} in {len(rounds)} rounds)")  # fmt: skip
    if not arguments.bench:
        print("the same tokens" if len(answers) == 1 else "tokens differ")
    keep({"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {os.cpu_count()} processors",
          "command": " ".join(["bench/two_programs.py BEFORE AFTER", *map(os.path.basename, sys.argv[3:])]), "load_average_before": load_average,
          "figures": figures, "rounds": rounds}, arguments.output)  # fmt: skip


if __name__ == "__main__":
    main()
