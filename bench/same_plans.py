#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks whether two builds of the program make the same plans, to the last digit, and measures how long each searches.

    bench/same_plans.py BEFORE AFTER [--cases 40] [--seed 1] [-o bench/results/NAME.json]

Cases are drawn: models, machines, memory, requests, lengths and options. What `plan --json` prints is compared as a whole; a refusal
must be the same line. Prints each case that differs, with the first fields that do. Ends with 1 where any does.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import platform
import random
import resource
import shlex
import statistics
import subprocess
import sys

from keep_result import keep

MODELS = ["opt-6.7b", "opt-30b", "opt-66b", "opt-175b", "llama-2-7b", "llama-2-7b:q4_0", "llama-2-13b", "llama-2-13b:q4_k", "llama-2-70b:q4_0",
          "llama-3-8b", "llama-3.1-70b", "mistral-7b", "tinyllama-1.1b:q8_0", "gpt-3", "gpt-neox-20b", "bloom-176b", "chatglm2-6b", "opt-350m"]  # fmt: skip
MACHINES = ["a10", "a100", "h200", "laptop", "rtx3090", "t4", "ci"]


def draw_case(draw):
    words = [f"dummy:{draw.choice(MODELS)}", "--hardware", draw.choice(MACHINES)]
    words += ["--requests", str(draw.choice([1, 4, 16, 64, 200]))]
    words += ["--prompt-len", str(draw.choice([32, 512, 1024])), "--gen-len", str(draw.choice([8, 32, 128]))]
    if draw.random() < 0.5:
        words += ["--gpu-memory", f"{draw.choice([2, 4, 8, 12])}GiB"]
    if draw.random() < 0.6:
        words += ["--disk-memory", f"{draw.choice([64, 500, 1500])}GiB"]
    for option, chance in (("--compress-weights", 0.15), ("--compress-kv", 0.15), ("--batch 8", 0.15), ("--cpu-linear 0", 0.1)):
        if draw.random() < chance:
            words += option.split()
    return " ".join(words)


def ask(program, case):
    """(output without what depends on the clock, processor time)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([program, "plan", *shlex.split(case), "--json"], capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode != 0:
        return {"refused": done.stderr.strip().splitlines()[-1:]}, seconds
    return json.loads(done.stdout), seconds


def differences(before, after, path=""):
    if type(before) is not type(after):
        return [f"{path}: {before} and {after}"]
    if isinstance(before, dict):
        found = []
        for key in sorted(before.keys() | after.keys()):
            found += differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(before, list) and len(before) == len(after):
        return [line for i, pair in enumerate(zip(before, after)) for line in differences(*pair, f"{path}[{i}]")]
    return [] if before == after else [f"{path}: {before} and {after}"]


def compare(programs, case):
    (before, before_s), (after, after_s) = (ask(program, case) for program in programs)
    return {"case": case, "refused": "refused" in before, "before_s": round(before_s, 3), "after_s": round(after_s, 3),
            "differences": differences(before, after)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    cases = [draw_case(draw) for _ in range(arguments.cases)]
    programs = (arguments.before, arguments.after)
    # One process per case, so that the children's processor time is that case's alone.
    with concurrent.futures.ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        results = list(pool.map(compare, [programs] * len(cases), cases))
    for result in results:
        for line in result["differences"][:4]:
            print(f"{result['case']}: {line}")
    different = sum(bool(result["differences"]) for result in results)
    answered = [result for result in results if not result["refused"]]
    ratio = statistics.median(result["after_s"] / max(result["before_s"], 1e-3) for result in answered)
    print(f"{len(cases) - different} of {len(cases)} equal ({len(answered)} planned, the others refused); processor time after/before {ratio:.3f}")
    keep({"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {os.cpu_count()} processors",
          "command": f"bench/same_plans.py BEFORE AFTER --cases {arguments.cases} --seed {arguments.seed}",
          "equal": len(cases) - different, "search_time_ratio": round(ratio, 3), "cases": results}, arguments.output)  # fmt: skip
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
