#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One request at a time with a model larger than the GPU: CPU and GPU share its linear layers (HeteGen, section 5).

    bench/split_layers.py table [--spillway PROGRAM] [--repeat 3] [--limit-s 120] [-o bench/results/NAME.json]
    bench/split_layers.py sweep --model dummy:opt-13b [--points 10]
    bench/split_layers.py ablation --model dummy:opt-13b --gpu-memory 8GiB

table: models in a part of their size, a prompt of 512 tokens and 64 generated. sweep: speed by the share of the weights on the
GPU, from a few percent to all (figure 8); exit code 1 where more of them are more than 3% slower. ablation: without the CPU's
rows, without the GPU's, without overlap (table 3). Prints tokens/s and how busy CPU and bus were. Needs an idle machine, and
`spillway profile` before.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys

from keep_result import keep

LENGTHS = ["--batch", "1", "--prompt-len", "512", "--gen-len", "64"]
TABLE = (
    ("dummy:opt-30b", "6.8GB"),
    ("dummy:opt-13b", "3.4GB"),
    ("dummy:opt-13b", "8GiB"),
    ("dummy:llama-2-13b", "8GiB"),
    ("dummy:llama-2-13b", "16GiB"),
    ("dummy:llama-2-7b:q4_0", "1.25GiB"),
)


def bench(arguments, options):
    """A report of `spillway bench`, or in one line why there is none."""
    command = [arguments.spillway, "bench", *options, *LENGTHS, "--repeat", str(arguments.repeat), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=arguments.limit_s)
    except subprocess.TimeoutExpired:
        return None, f"longer than {arguments.limit_s:g} s"
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return json.loads(done.stdout), None


def figures(report):
    decode = report["decode"]
    bus = sum(link["gb_per_s"] for name, link in decode["links"].items() if name.startswith("host_to_gpu"))
    return {
        "decode_tokens_per_s": report["decode_tokens_per_s"],
        "predicted_decode_tokens_per_s": report["predicted"]["decode_tokens_per_s"],
        "prefill_tokens_per_s": report["prefill_tokens_per_s"],
        "bus_gb_per_s": bus,
        "cpu_gb_per_s": decode["cpu_linear"]["weight_bytes"] / decode["seconds"] / 1e9,
        "cpu_busy": decode["cpu_linear"]["busy"],
        "weights_on_gpu": report["plan"]["weights"]["gpu"],
        "cpu_linear": report["plan"].get("cpu_linear", []),
        "gpu_peak_bytes": report["tiers"]["gpu"]["peak_bytes"],
    }


def show(name, found, problem):
    if problem:
        print(f"| {name} | {problem} | | | | | |", flush=True)
        return
    print(f"| {name} | {found['decode_tokens_per_s']:.2f} | {found['predicted_decode_tokens_per_s']:.2f} "
          f"| {found['prefill_tokens_per_s']:.0f} | {found['bus_gb_per_s']:.1f} | {found['cpu_gb_per_s']:.1f} "
          f"| {found['cpu_busy']:.0%} |", flush=True)  # fmt: skip


def run_all(arguments, rows):
    print("| | decode, tokens/s | predicted | prompt | bus, GB/s | CPU, GB/s | CPU busy |\n|---|---|---|---|---|---|---|", flush=True)
    results = []
    for name, options in rows:
        report, problem = bench(arguments, options)
        found = None if problem else figures(report)
        show(name, found, problem)
        results.append({"name": name, "options": options, **({"problem": problem} if problem else found)})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "sweep", "ablation"))
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--model", default="dummy:opt-13b")
    parser.add_argument("--gpu-memory", default="8GiB")
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=120)
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    failed = False
    if arguments.what == "table":
        results = run_all(arguments, [(f"{model} in {memory}", [model, "--gpu-memory", memory]) for model, memory in TABLE])
    elif arguments.what == "sweep":
        shares = [round(5 + 95 * i / (arguments.points - 1)) for i in range(arguments.points)]
        results = run_all(arguments, [(f"{s}% on the GPU", [arguments.model, "--weights", f"{s},{100 - s},0"]) for s in shares])
        speeds = [result.get("decode_tokens_per_s", 0) for result in results]
        failed = any(after < 0.97 * before for before, after in zip(speeds, speeds[1:]))
    else:
        base = [arguments.model, "--gpu-memory", arguments.gpu_memory]
        rows = [("all", base), ("no rows on the CPU", [*base, "--cpu-linear", "0"]), ("all rows on the CPU", [*base, "--cpu-linear", "100"]),
                ("half of them, whatever the speeds", [*base, "--cpu-linear", "50"]), ("no overlap", [*base, "--no-overlap"])]  # fmt: skip
        results = run_all(arguments, rows)
        failed = results[0].get("decode_tokens_per_s", 0) < 0.97 * max(r.get("decode_tokens_per_s", 0) for r in results)
    keep({"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {os.cpu_count()} threads",
          "command": "bench/split_layers.py " + " ".join(sys.argv[1:]), "results": results}, arguments.output)  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
