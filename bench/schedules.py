#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Zig-zag, diagonal and row-by-row schedules on the same requests, with weights partly on disk.

    bench/schedules.py TRACE.csv -o bench/results/NAME.json
    bench/schedules.py TRACE.csv --model dummy:opt-1.3b --batch 32 --most-tokens 1024 --requests 200

Takes the first requests of a trace (columns ContextTokens and GeneratedTokens) that have at most --most-tokens tokens, so that
short runs are possible. Rounds alternate between the schedules; the median of each is reported.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

FIGURES = (
    "generated_tokens_per_s",
    "total_tokens_per_s",
    "padded_generated_tokens_per_s",
    "padded_total_tokens_per_s",
    "padding_efficiency",
    "steps",
    "mean_sequences",
    "occupancy",
    "max_admissions",
    "block",
    "preemptions",
    "latency_s",
    "first_token_s",
    "seconds",
)


def read_requests(trace, count, most_tokens):
    with open(trace, newline="") as file:
        rows = ((int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file))
        return [row for row in rows if min(row) > 0 and sum(row) <= most_tokens][:count]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--model", default="dummy:opt-125m")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--most-tokens", type=int, default=256, help="of a prompt and its answer")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=4, help="of the row-by-row schedule")
    parser.add_argument("--weights", default="50,0,50", help="percent on GPU (or CPU), host, disk")
    parser.add_argument("--disk-dir", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    return parser.parse_args()


def run(options, lengths, schedule):
    command = [options.spillway, "bench", options.model, "--lengths", lengths, "--batch", str(options.batch)]
    command += ["--weights", options.weights, "--disk-memory", "1TiB", "--disk-dir", options.disk_dir]
    command += ["--schedule", schedule, "--repeat", "1", "--json"]
    if schedule == "row":
        command += ["--micro-batch", str(options.micro_batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    options = parse_arguments()
    requests = read_requests(options.trace, options.requests, options.most_tokens)
    runs = {"zigzag": [], "diagonal": [], "row": []}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lengths:
        lengths.write("".join(f"{prompt} {answer}\n" for prompt, answer in requests))
        lengths.flush()
        for _ in range(options.rounds):
            for schedule, reports in runs.items():
                reports.append(run(options, lengths.name, schedule))
    schedules = {}
    for schedule, reports in runs.items():
        reports.sort(key=lambda report: report["seconds"])
        middle = reports[len(reports) // 2]
        schedules[schedule] = {name: middle[name] for name in FIGURES}
        schedules[schedule]["seconds_of_all_rounds"] = [report["seconds"] for report in reports]
        schedules[schedule]["disk_read"] = middle["run"]["links"]["disk_read_weights"]
        schedules[schedule]["stall_s"] = middle["run"]["stall_s"]
        schedules[schedule]["tiers"] = middle["tiers"]
    first = runs["zigzag"][0]
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {first['device']}",
        "command": shlex.join(["bench/schedules.py", options.trace.name, *sys.argv[2:]]),
        "model": options.model,
        "weights_percent": options.weights,
        "batch": options.batch,
        "requests": len(requests),
        "prompt_tokens": {"mean": statistics.mean(p for p, _ in requests), "max": max(p for p, _ in requests)},
        "answer_tokens": {"mean": statistics.mean(a for _, a in requests), "max": max(a for _, a in requests)},
        "schedules": schedules,
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{'':10}{'tokens/s':>10}{'padded':>10}{'steps':>8}{'at work':>9}{'latency, mean':>15}{'max':>9}")
    for schedule, f in schedules.items():
        print(
            f"{schedule:10}{f['generated_tokens_per_s']:10.1f}{f['padded_generated_tokens_per_s']:10.1f}{f['steps']:8}"
            f"{f['occupancy']:9.0%}{f['latency_s']['mean']:13.2f} s{f['latency_s']['max']:7.2f} s"
        )


if __name__ == "__main__":
    main()
