#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the planner's own plan and plans that an expert on FlexGen would make by hand, and compares them.

    bench/hand_plans.py [--spillway PROGRAM] [--measure] [--repeat 1] [--limit-s 120] [-o bench/results/NAME.json]
    bench/hand_plans.py --workload "dummy:opt-125m --device cpu --batch 2" --hand FILE

For each workload (the arguments of `spillway bench`; two by default) the planner decides first, then each plan by hand: a line of
options. Prints tokens/s of each, and what its peak memory was predicted to be and was, tier by tier: what the engine takes, then
what kernels and libraries take besides. A plan that does not fit, or takes longer than --limit-s, is listed as such. Exit code 1
where the planner's plan is below --bar of the best. --measure runs `spillway profile` first, into a folder of its own. Needs an
idle machine.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile

from keep_result import keep

WORKLOADS = (
    "dummy:opt-6.7b --gpu-memory 4GiB --batch 32 --prompt-len 512 --gen-len 32 --steps 10",
    "dummy:opt-13b:g4 --compress-kv --gpu-memory 3GiB --batch 64 --prompt-len 512 --gen-len 16 --steps 8",
)

# Most have KV in host memory, as in FlexGen's papers; they differ in where attention runs, the share of resident weights and the batch blocks.
HAND_PLANS = (
    "--weights 0,100,0 --kv 0,100,0 --attention cpu",
    "--weights 10,90,0 --kv 0,100,0 --attention cpu",
    "--weights 20,80,0 --kv 0,100,0 --attention cpu",
    "--weights 10,90,0 --kv 0,100,0 --attention auto",
    "--weights 20,80,0 --kv 0,100,0 --attention auto",
    "--weights 20,80,0 --kv 0,100,0 --attention gpu",
    "--weights 0,100,0 --kv 25,75,0 --attention cpu",
    "--weights 10,90,0 --kv 10,90,0 --attention auto",
    "--weights 25,75,0 --kv 0,100,0 --activations 0,100,0 --attention cpu",
    "--weights 10,90,0 --kv 0,100,0 --attention gpu --schedule zigzag --micro-batch 8 --micro-batches 4",
)


def run(program, arguments, folder, limit_s):
    """Runs a command; returns its output, or the error in one line."""
    environment = {**os.environ, **({"XDG_CACHE_HOME": folder} if folder else {})}
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"longer than {limit_s:g} s"
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return done.stdout, None


def describe_memory(memory):
    def mib(count):
        return f"{count / 2**20:.1f}"

    tiers = []
    for tier, of in memory.items():
        predicted, measured = of["predicted_bytes"], of["measured_bytes"]
        text = mib(measured) if predicted == measured else f"{mib(measured)} ({mib(predicted)} predicted)"
        besides = of["predicted_workspace_bytes"], of["measured_workspace_bytes"]
        tiers.append(f"{tier} {text}" + (f" + {mib(besides[1])} ({mib(besides[0])})" if any(besides) else ""))
    return ", ".join(tiers)


def measure(arguments, workload, plan, folder):
    command = ["bench", *shlex.split(workload), *shlex.split(plan), "--repeat", str(arguments.repeat), "--json"]
    printed, wrong = run(arguments.spillway, command, folder, arguments.limit_s)
    if wrong:
        return {"plan": plan, "wrong": wrong}
    report = json.loads(printed)
    kept = ("generated_tokens_per_s", "decode_tokens_per_s", "prefill_s", "predicted", "memory")
    return {"plan": plan, **{key: report[key] for key in kept}, "in_effect": report["plan"]}


def compare(arguments, workload, hand_plans, folder):
    """The results of each plan for a workload, the planner's own first."""
    print(f"\n{workload}\n\n| plan | tokens/s | predicted | MiB of memory |\n|---|---|---|---|", flush=True)
    results = []
    for plan in ("", *hand_plans):
        result = measure(arguments, workload, plan, folder)
        results.append(result)
        name = plan or "the planner's"
        if "wrong" in result:
            print(f"| {name} | - | - | {result['wrong']} |", flush=True)
            continue
        predicted = result["predicted"]["generated_tokens_per_s"]
        memory = describe_memory(result["memory"])
        print(f"| {name} | {result['generated_tokens_per_s']:.4g} | {predicted:.4g} | {memory} |", flush=True)
    rates = [result.get("generated_tokens_per_s", 0) for result in results]
    ratio = rates[0] / max(rates) if max(rates) > 0 else 0
    print(f"\nThe planner's plan has {ratio:.3f} of the best.", flush=True)
    return {"workload": workload, "ratio": ratio, "plans": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--workload", action="append", help="arguments of spillway bench; may be given several times")
    parser.add_argument("--hand", type=pathlib.Path, help="other plans than these ten: options, a plan on each line")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each plan; the median one counts")
    parser.add_argument("--limit-s", type=float, default=120, help="most seconds of a plan, loading included")
    parser.add_argument("--bar", type=float, default=0.97)
    parser.add_argument("--measure", action="store_true", help="the machine first")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    hand_plans = HAND_PLANS
    if arguments.hand:
        hand_plans = [line.strip() for line in arguments.hand.read_text().splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.measure:
            _, wrong = run(arguments.spillway, ["profile"], folder, None)
            if wrong:
                sys.exit(wrong)
        cache = folder if arguments.measure else None
        results = [compare(arguments, workload, hand_plans, cache) for workload in arguments.workload or WORKLOADS]
    machine = f"{platform.machine()}, {os.cpu_count()} threads"
    command = "bench/" + shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    keep({"date": datetime.date.today().isoformat(), "machine": machine, "command": command, "results": results}, arguments.output)
    return 1 if any(result["ratio"] < arguments.bar for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
