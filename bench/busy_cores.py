#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures prefill and decode beside busy loops of other programs, by default and with --threads 1.

    bench/busy_cores.py [--spillway PROGRAM] [--before PROGRAM] [--cpus 0,1] [--loops 0,1,2,4] [--rounds 5] [-o RESULT.json]

For each number of loops (plain processes of the same priority) the runs alternate; the table has medians of tokens/s and the
ratio of the default to --threads 1 under the same load. --before: another build of the program, which runs in turns with this
one; without loops the ratio of the two says what sharing work costs on an idle machine. --cpus puts all of it on a few
processors of a larger machine.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time

from keep_result import keep

PHASES = ("prefill", "decode")


def spin(cpus):
    os.sched_setaffinity(0, cpus)
    while True:
        pass


class Loops:
    """Runs this many busy loops as long as the `with` block lasts."""

    def __init__(self, count, cpus):
        self.processes = [multiprocessing.Process(target=spin, args=(cpus,), daemon=True) for _ in range(count)]

    def __enter__(self):
        for process in self.processes:
            process.start()
        time.sleep(0.5 if self.processes else 0)

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()


def measure(program, options, threads, cpus):
    command = [program, "bench", options.model, "--device", "cpu", "--no-tuning", "--prompt-len", str(options.prompt_len)]
    command += ["--gen-len", str(options.gen_len), "--repeat", "1", "--json"] + (["--threads", str(threads)] if threads else [])
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return {"prefill": report["prefill_tokens_per_s"], "decode": report["decode_tokens_per_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--before", help="another build, in turns with this one")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cpus", help="such as 0,1; default: all that this process may use")
    parser.add_argument("--loops", default="0,1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=256)
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    cpus = {int(c) for c in options.cpus.split(",")} if options.cpus else os.sched_getaffinity(0)

    programs = {"": options.spillway} | ({"before ": options.before} if options.before else {})
    rows = []
    print(f"{'loops':>5} {'phase':>8} {'program':>8} {'1 thread':>10} {'default':>10} {'ratio':>7}", flush=True)
    for loops in map(int, options.loops.split(",")):
        figures = {}
        with Loops(loops, cpus):
            for _ in range(options.rounds):
                for name, program in programs.items():
                    for threads in (1, 0):
                        for phase, value in measure(program, options, threads, cpus).items():
                            figures.setdefault((name, phase, threads), []).append(value)
        for phase in PHASES:
            for name in programs:
                one, default = (figures[name, phase, threads] for threads in (1, 0))
                row = {"loops": loops, "phase": phase, "program": name.strip() or "this", "one_thread": one, "default": default}
                row["ratio"] = statistics.median(default) / statistics.median(one)
                rows.append(row)
                print(
                    f"{loops:5} {phase:>8} {row['program']:>8} {statistics.median(one):10.1f} {statistics.median(default):10.1f}"
                    f" {row['ratio']:7.2f}",
                    flush=True,
                )
            if options.before and loops == 0:
                share = statistics.median(figures["", phase, 0]) / statistics.median(figures["before ", phase, 0])
                print(f"      {phase:>8} this / before, default threads: {share:.3f}", flush=True)
    keep(
        {
            "date": datetime.date.today().isoformat(),
            "machine": {"processor": platform.machine(), "processors": len(cpus)},
            "command": " ".join(["bench/busy_cores.py"] + sys.argv[1:]),
            "unit": "tokens/s",
            "rows": rows,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
