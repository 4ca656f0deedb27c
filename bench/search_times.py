#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long `spillway plan` searches and what it finds, in processor time, so that other programs hardly matter.

    bench/search_times.py --after build/release/bin/spillway --before OLD/spillway -o bench/results/NAME.json

Ends with 1 where a search takes longer than --limit seconds, or where the plan after is slower than before.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys

from keep_result import keep

CASES = [
    "dummy:opt-30b --hardware t4 --requests 1",
    "dummy:opt-30b --hardware t4 --requests 32",
    "dummy:opt-30b --hardware t4 --requests 500",
    "dummy:opt-30b --hardware t4 --requests 100000",
    "dummy:opt-30b --hardware h200 --gpu-memory 16GiB --requests 64",
    "dummy:opt-175b --hardware h200 --gpu-memory 16GiB --host-memory 100GiB --requests 64",
    "dummy:opt-175b --hardware t4 --disk-memory 1500GiB --requests 256",
    "dummy:opt-30b --hardware t4 --requests 32 --gpu-memory 3GiB",
    "dummy:opt-175b --hardware a100 --gpu-memory 8GiB --disk-memory 1000GiB --requests 64",
    "dummy:llama-2-13b:q4_0 --hardware laptop --gpu-memory 1GiB --requests 32",
    "dummy:llama-2-7b:q4_0 --hardware ci --host-memory 0.5GiB --disk-memory 16GiB --requests 16",
]


def measure(program, case, rounds, limit):
    """(user seconds of a whole run, its answer); a run far beyond the limit is ended."""
    command = [program, "plan", *shlex.split(case), "--json"]
    seconds, answer = [], {}
    for _ in range(rounds):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, error = process.stdout.read(), process.stderr.read()
        _, _, usage = os.wait4(process.pid, 0)
        seconds.append(usage.ru_utime)
        answer = json.loads(out) if out.strip() else {"refused": error.strip()}
        if usage.ru_utime > 10 * limit:
            break
    result = {"user_s": round(statistics.median(seconds), 3)}
    if "refused" in answer:
        return result | answer
    return result | {
        "sequences": answer["sequences"],
        "tokens_per_s": answer["predicted"]["generated_tokens_per_s"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", default="build/release/bin/spillway")
    parser.add_argument("--before", help="an older program, to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=2.0, help="seconds that a search may take")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    rows, failed = [], False
    for case in CASES:
        row = {"plan": case, "after": measure(options.after, case, options.rounds, options.limit)}
        if options.before:
            row["before"] = measure(options.before, case, 1, options.limit)
        after, before = row["after"], row.get("before", {})
        slower = after.get("tokens_per_s", 0) < 0.9995 * before.get("tokens_per_s", 0)
        failed |= slower or after["user_s"] > options.limit
        print(
            f"{case:90} {before.get('user_s', 0):8.2f} {after['user_s']:6.2f} s   "
            f"{before.get('tokens_per_s', 0):8.4g} {after.get('tokens_per_s', 0):8.4g} tokens/s"
            + (" SLOWER" if slower else ""),
            flush=True,
        )
        rows.append(row)
    keep(
        {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores; user time",
            "command": shlex.join(["bench/search_times.py", *sys.argv[1:]]),
            "limit_s": options.limit,
            "searches": rows,
        },
        options.output,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
