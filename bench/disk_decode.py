#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast models decode whose weights are on disk, beside the disk's own rate.

Each round measures the disk with disk_bench's plain loop of reads, then decodes with every configuration, then the disk
again, in the same folder: machines that share a disk have good and bad minutes, and a share is of what its round had.

    bench/disk_decode.py --dir /tmp --rounds 5 -o bench/results/DATE-MACHINE-disk.json
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Model, percent of its layers on GPU, host and disk.
CONFIGURATIONS = [
    ("dummy:tinyllama-1.1b:q8_0", "0,30,70"),
    ("dummy:tinyllama-1.1b:q8_0", "0,0,100"),
    ("dummy:tinyllama-1.1b:f16", "0,30,70"),
    ("dummy:tinyllama-1.1b:f16", "0,0,100"),
]


def run_json(command):
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def disk_rate(options):
    command = [options.disk_bench, options.dir, "--raw-reads", "--mib", "1024", "--repeat", "3", "--json"]
    return run_json(command)["read"]["raw"]["gb_per_s"]


def decode(options, model, weights, steps):
    command = [
        options.spillway, "bench", model, "--device", "cpu", "--weights", weights, "--disk-memory", "8GiB", "--disk-dir", options.dir,
        "--prompt-len", "16", "--gen-len", str(steps + 1), "--repeat", "1", "--json", *options.extra,
    ]  # fmt: skip
    return run_json(command)


def summary(options, model, weights, rounds):
    rates = [r["read_gb_per_s"] for r in rounds]
    shares = [r["share_of_disk"] for r in rounds]
    in_memory = decode(options, model, "0,100,0", options.steps)
    return {
        "model": model,
        "weights_percent_gpu_host_disk": weights,
        "tokens_per_s": statistics.median(r["tokens_per_s"] for r in rounds),
        "tokens_per_s_in_memory": in_memory["decode_tokens_per_s"],
        "read_gb_per_s": statistics.median(rates),
        "share_of_disk": statistics.median(shares),
        "best_share_of_disk": max(shares),
        "waited_for_weights": statistics.median(r["waited_for_weights"] for r in rounds),
        "rounds": rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=".", help="folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="decode steps of each run")
    parser.add_argument("--only", default="", help="configurations whose model has this in its name")
    parser.add_argument("--spillway", default=str(ROOT / "build/release/bin/spillway"))
    parser.add_argument("--disk-bench", default=str(ROOT / "build/release/bin/disk_bench"))
    parser.add_argument("--note", default="", help="something about the machine, for the results")
    parser.add_argument("-o", "--output", help="JSON file for the results (default: stdout)")
    parser.add_argument("extra", nargs="*", help="more options of spillway bench, after --")
    options = parser.parse_args()

    chosen = [c for c in CONFIGURATIONS if options.only in c[0]]
    rounds = {c: [] for c in chosen}
    before = disk_rate(options)
    for number in range(options.rounds):
        for model, weights in chosen:
            result = decode(options, model, weights, options.steps)
            after = disk_rate(options)
            read = result["decode"]["links"]["disk_read_weights"]["gb_per_s"]
            disk = (before + after) / 2
            rounds[model, weights].append({
                "disk_gb_per_s": disk,
                "read_gb_per_s": read,
                "share_of_disk": read / disk,
                "tokens_per_s": result["decode_tokens_per_s"],
                "waited_for_weights": result["decode"]["stall_s"]["weights"] / result["decode"]["seconds"],
            })  # fmt: skip
            before = after
            print(f"round {number + 1}: {model} {weights}: {read:.2f} of {disk:.2f} GB/s ({100 * read / disk:.0f}%), "
                  f"{result['decode_tokens_per_s']:.2f} tokens/s", file=sys.stderr)  # fmt: skip
    report = {
        "machine": {"architecture": platform.machine(), "processors": os.cpu_count()},
        "method": "decode from disk between two measurements of the disk by disk_bench --raw-reads, in turns; medians of rounds",
        "note": options.note,
        "steps": options.steps,
        "configurations": [summary(options, model, weights, rounds[model, weights]) for model, weights in chosen],
    }
    text = json.dumps(report, indent=2) + "\n"
    if options.output:
        pathlib.Path(options.output).write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
