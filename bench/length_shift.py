#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how soon the length predictor adapts when answers become of another kind.

    bench/length_shift.py -m MODEL [--data ../shared/data] [--encoder DIR] [-o bench/results/NAME.json]

MODEL supplies the tokenizer. A predictor is trained on one file, then learns as a server does from 500 answers of another, and is tested on parts of
that one which it has not seen, beside a predictor that was trained on these 500 alone. "At the start": the first answer after training is of the
other kind; "in mid-run": 512 of the kind before came first. Files that are not there are named and left out. Needs build/release/bin/length_shift.
"""

import argparse
import datetime
import json
import lzma
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile

from keep_result import keep

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL, LONG, SHAREGPT = "alpaca_small_2000.json", "alpaca_long_2000.json", "sharegpt_sample_50.json"
SHIFTS = ((SMALL, SHAREGPT), (SMALL, LONG), (LONG, SMALL))


def found(name, data, folder):
    """The path of the file, which is unpacked into the folder if need be; None if there is no such file."""
    path = data / "text" / name
    packed = path.with_name(name + ".xz")
    if path.is_file() or not packed.is_file():
        return path if path.is_file() else None
    target = folder / name
    if not target.is_file():
        target.write_bytes(lzma.open(packed).read())
    return target


def percent(value):
    return f"{100 * value:.1f}%"


def cells(of):
    """A row of the table; the error is that of the difference from a fresh predictor."""
    after = [f"{percent(run['accuracy'])} ({100 * run['beyond_fresh']:+.1f}, error {100 * run['standard_error']:.1f})" for run in (of["at_start"], of["mid_run"])]
    return [percent(of["before"]), *after, percent(of["fresh"]), percent(of["most_frequent"]), f"{of['distinct_requests']}, {of['tests']} tests"]


def print_table(result):
    print("| then | before | after 500, at the start | after 500, in mid-run | trained on these alone | most frequent one | different ones |")
    print("|---|---|---|---|---|---|---|")
    for shift in result["shifts"]:
        print("| " + " | ".join([f"{shift['predictor']}: {shift['before_file']} -> {shift['other_file']}", *cells(shift)]) + " |")


def run(arguments):
    predictors = [("n-grams", [])] + ([("encoder", ["--encoder", arguments.encoder])] if arguments.encoder else [])
    shifts = []
    with tempfile.TemporaryDirectory() as name:
        for predictor, options in predictors:
            for before, other in SHIFTS:
                paths = [found(file, pathlib.Path(arguments.data), pathlib.Path(name)) for file in (before, other)]
                if None in paths:
                    print(f"{before} -> {other}: not in {arguments.data}, left out", file=sys.stderr)
                    continue
                command = [arguments.program, *paths, "-m", arguments.model, *options]
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    sys.exit(done.stderr.strip())
                shifts.append({"predictor": predictor, "before_file": before, "other_file": other} | json.loads(done.stdout))
    return shifts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=ROOT.parent / "shared" / "data", help="the folder with text/")
    parser.add_argument("-m", "--model", required=True, help="whose tokens are counted")
    parser.add_argument("--encoder", help="a folder: the predictor with this encoder, too")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "bin" / "length_shift")
    parser.add_argument("-o", "--output", help="keep the result as JSON")
    arguments = parser.parse_args()
    result = {"date": datetime.date.today().isoformat(), "machine": platform.machine(), "command": shlex.join(sys.argv), "shifts": run(arguments)}
    keep(result, arguments.output)
    print_table(result)


if __name__ == "__main__":
    main()
