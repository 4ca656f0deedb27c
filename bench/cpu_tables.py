#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tables with targets of cpu_report.sh's measurements: shares of the read loop, and Spillway beside llama.cpp.

    bench/cpu_tables.py OUT_FOLDER [-o bench/results/DATE-MACHINE-cpu.json]

Reads linear.csv and attention.csv (of Google Benchmark) where they are there. A target that was missed is marked, and
named once more at the end.
"""

import argparse
import csv
import datetime
import json
import pathlib
import platform
import re
import sys

LINEAR_TARGET = {True: 0.85, False: 0.90}  # on machines of up to two threads, on larger ones
ATTENTION_TARGET = 0.75
MOST_SHARED = 4  # heads that share keys; beyond that arithmetic bounds attention


def read_rows(path):
    """The benchmarks of a CSV file, which begins with lines about the machine."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("name,")]
    return list(csv.DictReader(lines[starts[0] :])) if starts else []


def number(row, *names):
    found = next((row[name] for name in names if row.get(name)), None)
    return float(found) if found else None


class Report:
    def __init__(self):
        self.missed, self.kept = [], []

    def share(self, what, value, target):
        """A cell of a table; with target None nothing is required of it."""
        self.kept.append({"what": what, "of_read": round(value, 3), "target": target})
        if target is None or value >= target:
            return f"{value:.0%}"
        self.missed.append(f"{what}: {value:.0%}, target {target:.0%}")
        return f"**{value:.0%}**"


def linear_table(report, rows, threads):
    target = LINEAR_TARGET[threads <= 2]
    cells, tokens_seen = {}, set()
    for row in rows:
        found = re.match(r"linear/(\w+)/([\w.-]+)/tokens:(\d+)", row["name"])
        share = number(row, "of_read")
        if not found or share is None:
            continue
        kind, matrix, tokens = found[1], found[2], int(found[3])
        tokens_seen.add(tokens)
        # Several tokens need more arithmetic for the same bytes: only a single token is bound by memory alone.
        text = report.share(f"{kind} {matrix} {tokens} tokens", share, target if tokens == 1 else None)
        cells.setdefault((kind, matrix), {})[tokens] = f"{text} ({number(row, 'GB/s'):.0f})"
    if not cells:
        return
    counts = sorted(tokens_seen)
    print(f"\nLinear layers, share of the best read loop (GB/s), {threads} threads; target with one token {target:.0%}\n")
    print(f"| type | matrix | {' | '.join(f'{count} tokens' if count > 1 else '1 token' for count in counts)} |")
    print("|---" * (2 + len(counts)) + "|")
    for (kind, matrix), found in cells.items():
        print(f"| {kind} | {matrix} | {' | '.join(found.get(count, '') for count in counts)} |")


def attention_table(report, rows, threads):
    cells, columns = {}, []
    for row in rows:
        found = re.match(r"attention/(\w+)/([\w.-]+)/batch:(\d+)/rows:1/cached:(\d+)/real_time", row["name"])
        share = number(row, "of_read")
        if not found or share is None:
            continue
        column = f"{found[3]} x {int(found[4]) + 1}"
        if column not in columns:
            columns.append(column)
        group = {"llama-2-7b": 1, "llama-3-8b": 4, "llama-3-70b": 8}.get(found[2])
        target = ATTENTION_TARGET if group is not None and group <= MOST_SHARED else None
        text = report.share(f"attention {found[1]} {found[2]} {column}", share, target)
        cells.setdefault((found[1], found[2], group), {})[column] = f"{text} ({number(row, 'bytes_per_second') / 1e9:.0f})"
    if not cells:
        return
    print(f"\nDecode attention, share of the best read loop (GB/s), {threads} threads, sequences x keys; target "
          f"{ATTENTION_TARGET:.0%} for up to {MOST_SHARED} heads that share keys\n")  # fmt: skip
    print(f"| KV | shape | heads per key | {' | '.join(columns)} |")
    print("|---" * (3 + len(columns)) + "|")
    for (kind, shape, group), found in cells.items():
        print(f"| {kind} | {shape} | {group or ''} | {' | '.join(found.get(column, '') for column in columns)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        sys.exit(f"{arguments.folder}: no such folder; cpu_report.sh makes it")
    report = Report()
    linear_table(report, read_rows(arguments.folder / "linear.csv"), arguments.threads)
    attention_table(report, read_rows(arguments.folder / "attention.csv"), arguments.threads)
    print("\nMissed targets: " + ("; ".join(report.missed) if report.missed else "none") + ".")
    if arguments.output:
        kept = {"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {arguments.threads} threads",
                "command": "bench/cpu_report.sh", "missed_targets": report.missed, "figures": report.kept}  # fmt: skip
        pathlib.Path(arguments.output).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
