#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One request at a time with a model larger than the GPU: CPU and GPU share its linear layers (HeteGen, section 5).

    bench/split_layers.py table [--spillway PROGRAM] [--repeat 3] [--limit-s 120] [-o bench/results/NAME.json]
    bench/split_layers.py sweep --model dummy:opt-13b [--points 10] [--hardware FILE]
    bench/split_layers.py ablation --model dummy:opt-13b --gpu-memory 8GiB
    bench/split_layers.py layer --model dummy:opt-13b --gpu-memory 8GiB

table: models in a part of their size, a prompt of 512 tokens and 64 generated; of prompts also the share of the time that the bus
needs for what is not on the GPU. sweep: speed by the share of the weights on the GPU, from a few percent to all (figure 8), by the
planner's own plans in one process; exit code 1 where more of them are more than 3% slower. ablation (table 3): all; without
the CPU's rows (hybrid parallelism); without overlap (parameter manager); by the rates of a machine that ships instead of what
was measured (alpha benchmark); with nothing resident but what has to be (module scheduler); and with residence spread evenly.
layer: how busy CPU and bus were over whole steps, and inside shared linear layers (table 2). Needs an idle machine, and
`spillway profile` and `spillway profile MODEL` before.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from keep_result import keep

LENGTHS = ["--batch", "1", "--prompt-len", "512"]
TABLE = (
    ("dummy:opt-30b", "6.8GB"),
    ("dummy:opt-13b", "3.4GB"),
    ("dummy:opt-13b", "8GiB"),
    ("dummy:llama-2-13b", "8GiB"),
    ("dummy:llama-2-13b", "16GiB"),
    ("dummy:llama-2-7b:q4_0", "1.75GiB"),
)
BUS_GB_PER_S = 55.3  # the bus rate that the bar for prompts assumes


def call(arguments, options):
    """The program's output, or in one line the reason for its failure."""
    try:
        done = subprocess.run([arguments.spillway, *options], capture_output=True, text=True, check=False, timeout=arguments.limit_s)
    except subprocess.TimeoutExpired:
        return None, f"longer than {arguments.limit_s:g} s"
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return done.stdout, None


def bench(arguments, options):
    """The reports of `spillway bench`, one for each plan, or in one line the reason for its failure."""
    lengths = [*LENGTHS, "--gen-len", str(arguments.generate)]
    printed, problem = call(arguments, ["bench", *options, *lengths, "--repeat", str(arguments.repeat),
                                           "--warm-up", str(arguments.warm_up), "--json"])  # fmt: skip
    if problem:
        return [], problem
    reports, at = [], 0
    while printed[at:].strip():
        report, length = json.JSONDecoder().raw_decode(printed[at:].lstrip())
        at += len(printed[at:]) - len(printed[at:].lstrip()) + length
        reports.append(report)
    return reports, None


def figures(report):
    decode, prefill = report["decode"], report["prefill"]
    bus = sum(link["gb_per_s"] for name, link in decode["links"].items() if name.startswith("host_to_gpu"))
    resident = report["tiers"]["gpu"]["peak_bytes_by_tag"].get("weights", 0)
    away = max(0, report["weight_bytes"] - resident)
    found = {
        "decode_tokens_per_s": report["decode_tokens_per_s"],
        "predicted_decode_tokens_per_s": report["predicted"]["decode_tokens_per_s"],
        "prefill_tokens_per_s": report["prefill_tokens_per_s"],
        "prefill_share_of_bus": prefill and away * 1e-9 / BUS_GB_PER_S / report["prefill_s"],
        "bus_gb_per_s": bus,
        "cpu_gb_per_s": decode["cpu_linear"]["weight_bytes"] / decode["seconds"] / 1e9,
        "cpu_busy": decode["cpu_linear"]["busy"],
        "weights_on_gpu": resident / report["weight_bytes"],
        "cpu_linear": report["plan"].get("cpu_linear", []),
        "gpu_peak_bytes": report["tiers"]["gpu"]["peak_bytes"],
    }
    if "timeline" in report:
        found["timeline"] = report["timeline"]["phases"]
    return found


def show(name, found, problem=None):
    if problem:
        print(f"| {name} | {problem} | | | | | | | |", flush=True)
        return
    print(f"| {name} | {found['decode_tokens_per_s']:.2f} | {found['predicted_decode_tokens_per_s']:.2f} "
          f"| {found['prefill_tokens_per_s']:.0f} | {found['prefill_share_of_bus']:.0%} | {found['bus_gb_per_s']:.1f} "
          f"| {found['cpu_gb_per_s']:.1f} | {found['cpu_busy']:.0%} | {found['weights_on_gpu']:.1%} |", flush=True)  # fmt: skip


def header():
    print("| | decode, tokens/s | predicted | prompt | share of the bus | bus, GB/s | CPU, GB/s | CPU busy | weights on the GPU |\n"
          "|---|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip


def run_all(arguments, rows):
    header()
    results = []
    for name, options in rows:
        reports, problem = bench(arguments, options)
        found = None if problem else figures(reports[0])
        show(name, found, problem)
        results.append({"name": name, "options": options, **({"problem": problem} if problem else found)})
    return results


def plan_for(arguments, memory, *options):
    """The planner's plan within this much GPU memory, or None."""
    hardware = ["--hardware", arguments.hardware] if arguments.hardware else []
    lengths = [*LENGTHS, "--gen-len", "64"]
    printed, problem = call(arguments, ["plan", arguments.model, *lengths, "--gpu-memory", memory, "--json", *hardware, *options])
    if problem:
        print(f"{memory}: {problem}", file=sys.stderr)
        return None
    return json.loads(printed)


def sweep(arguments, folder):
    """Measures with budgets that hold 5% to all of the weights, and all else that must be on the GPU."""
    whole = plan_for(arguments, "1TiB")
    gpu = whole["memory"]["gpu"]
    weights = gpu["by_tag"]["weights"]
    besides = gpu["bytes"] - weights + (256 << 20)
    files = []
    for i in range(arguments.points):
        share = 0.05 + 0.95 * i / (arguments.points - 1)
        found = plan_for(arguments, f"{int(besides + share * weights) >> 20}MiB")
        if found is None:
            continue
        path = pathlib.Path(folder) / f"{i}.json"
        path.write_text(json.dumps(found["plan"]))
        files += ["--plan", str(path)]
    reports, problem = bench(arguments, [arguments.model, *files])
    header()
    if problem:
        show(arguments.model, None, problem)
        return [{"name": arguments.model, "problem": problem}], True
    results = []
    for report in reports:
        found = figures(report)
        name = f"{found['weights_on_gpu']:.0%} on the GPU"
        show(name, found)
        results.append({"name": name, **found})
    speeds = [result["decode_tokens_per_s"] for result in results]
    return results, len(speeds) < arguments.points or any(after < 0.97 * before for before, after in zip(speeds, speeds[1:]))


def ablation(arguments, folder):
    base = [arguments.model, "--gpu-memory", arguments.gpu_memory]
    rows = [("all", base), ("no hybrid parallelism", [*base, "--cpu-linear", "0"]), ("no parameter manager", [*base, "--no-overlap"])]
    found = plan_for(arguments, arguments.gpu_memory)
    variants = {}
    if arguments.shipped:
        kept, arguments.hardware = arguments.hardware, arguments.shipped
        variants["no alpha benchmark"] = plan_for(arguments, arguments.gpu_memory)["plan"]
        arguments.hardware = kept
    variants["nothing resident"] = {**found["plan"], "weights": {"gpu": 0, "host": 100, "disk": 0}}
    variants["module scheduler"] = {**found["plan"], "residence": "gain"}
    for name, plan in variants.items():
        path = pathlib.Path(folder) / f"{len(rows)}.json"
        path.write_text(json.dumps(plan))
        rows.append((name, [arguments.model, "--plan", str(path)]))
    results = run_all(arguments, rows)
    return results, results[0].get("decode_tokens_per_s", 0) < 0.97 * max(r.get("decode_tokens_per_s", 0) for r in results)


def layer(arguments, folder):
    drawing = os.path.join(folder, "timeline.json")
    results = run_all(arguments, [(arguments.model, [arguments.model, "--gpu-memory", arguments.gpu_memory, "--timeline", drawing])])
    for phase, of in results[0].get("timeline", {}).items():
        busy = ", ".join(f"{name} {share:.1%}" for name, share in of["busy"].items())
        print(f"{phase}: {busy}")
        for name, linear in of["shared_linears"].items():
            print(f"  in {name}: CPU {linear['cpu']:.1%}, to the GPU {linear['to_gpu']:.1%}, {linear['seconds'] / linear['count'] * 1e3:.3f} ms each")
    return results, "timeline" not in results[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "sweep", "ablation", "layer"))
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--model", default="dummy:opt-13b")
    parser.add_argument("--gpu-memory", default="8GiB")
    parser.add_argument("--hardware", help="the machine that plans of sweep and ablation are made for (default: this one)")
    parser.add_argument("--shipped", help="ablation: the machine's name without what was measured, such as h200")
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=120)
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "table":
            results = run_all(arguments, [(f"{model} in {memory}", [model, "--gpu-memory", memory]) for model, memory in TABLE])
        else:
            results, failed = {"sweep": sweep, "ablation": ablation, "layer": layer}[arguments.what](arguments, folder)
    keep({"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {os.cpu_count()} threads",
          "command": "bench/split_layers.py " + " ".join(sys.argv[1:]), "results": results}, arguments.output)  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
