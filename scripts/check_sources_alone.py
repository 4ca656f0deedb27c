#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every source of a build folder on its own, without precompiled headers, so that a missing #include shows.

usage: scripts/check_sources_alone.py [BUILD] [--jobs N] [--only TEXT]
Only the syntax is checked, nothing is written. BUILD (default build/release) needs to be configured, not built. --only takes
the files whose path contains TEXT. Prints the compiler's words for each file that fails. Exit codes: 0 clean, 1 findings.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

LAUNCHERS = ("env", "ccache")


def alone(entry):
    """The compile command of a source without launcher, output and precompiled header."""
    words = shlex.split(entry["command"])
    while words and (os.path.basename(words[0]) in LAUNCHERS or "=" in words[0]):
        words.pop(0)
    command, skip = [], False
    for word, following in zip(words, words[1:] + [""]):
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT") or (word == "-include" and "cmake_pch" in following):
            skip = True
        elif word not in ("-c", "-MD", "-MMD", "-Winvalid-pch"):
            command.append(word)
    return command + ["-fsyntax-only", "-O0", "-w"]


def check(entry):
    result = subprocess.run(alone(entry), cwd=entry["directory"], capture_output=True, text=True, check=False)
    return entry["file"], result.returncode, result.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build/release", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    database = options.build / "compile_commands.json"
    if not database.exists():
        print(f"check_sources_alone: {database} is missing; configure first: scripts/configure.sh release", file=sys.stderr)
        return 1
    build = str(options.build.resolve())
    entries = {entry["file"]: entry for entry in json.loads(database.read_text())
               if entry["file"].endswith(".cc") and options.only in entry["file"] and not entry["file"].startswith(build)}
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
