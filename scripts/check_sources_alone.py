#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the syntax of every source on its own, without precompiled headers, so that a missing #include shows.

usage: scripts/check_sources_alone.py [--jobs N] [--only TEXT]
Configures build/plain for the compile commands; nothing is built. --only takes the files whose path contains TEXT. Prints
the compiler's messages for each file that fails. Exit codes: 0 clean, 1 findings.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAUNCHERS = ("env", "ccache")


def alone(entry):
    """The compile command of a source without launcher and output."""
    words = shlex.split(entry["command"])
    while words and (os.path.basename(words[0]) in LAUNCHERS or "=" in words[0]):
        words.pop(0)
    command, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif word not in ("-c", "-MD", "-MMD"):
            command.append(word)
    return command + ["-fsyntax-only", "-O0", "-w"]


def check(entry):
    result = subprocess.run(alone(entry), cwd=entry["directory"], capture_output=True, text=True, check=False)
    return entry["file"], result.returncode, result.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if subprocess.run([ROOT / "scripts/configure.sh", "plain"], check=False).returncode:
        return 1
    commands = json.loads((ROOT / "build/plain/compile_commands.json").read_text())
    entries = {entry["file"]: entry for entry in commands
               if entry["file"].endswith(".cc") and options.only in entry["file"] and "/build/plain/" not in entry["file"]}
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, code, errors in pool.map(check, entries.values()):
            if code:
                failed += 1
                print(f"{path} does not compile without precompiled headers:\n{errors}")
    print(f"{len(entries)} sources, {failed} of them do not include what they use")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
