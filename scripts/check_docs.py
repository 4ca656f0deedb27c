#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the documentation to two rules: lines below 160 characters, and links to files that exist.

usage: scripts/check_docs.py [--root DIR]
Reads every .md file that git does not ignore. Prints one `file:line: message` per finding. Exit codes: 0 clean, 1 findings.
"""

import argparse
import pathlib
import re
import subprocess
import sys

MOST_CHARACTERS = 159
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")


def findings_of(path):
    in_block = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if len(line) > MOST_CHARACTERS:
            yield number, f"{len(line)} characters; at most {MOST_CHARACTERS}"
        if line.lstrip().startswith("```"):
            in_block = not in_block
        if in_block:
            continue
        for target in LINK.findall(CODE.sub("", line)):
            target = target.split("#")[0]
            if target and "://" not in target and not (path.parent / target).exists():
                yield number, f"{target} does not exist"


def documents(root):
    """Those of the repository; of a folder that is none, all."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md"],
                            capture_output=True, text=True, check=False)  # fmt: skip
    if listed.returncode != 0:
        return sorted(root.rglob("*.md"))
    return sorted(root / name for name in listed.stdout.splitlines() if (root / name).exists())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    paths = documents(root)
    count = 0
    for path in paths:
        for number, message in findings_of(path):
            print(f"{path.relative_to(root)}:{number}: {message}")
            count += 1
    print(f"{len(paths)} documents: {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
