#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the documentation to three rules: lines below 160 characters, links to files and headings that exist, and short guides.

usage: scripts/check_docs.py [--root DIR]
Reads every .md file that git does not ignore. Prints one `file:line: message` per finding. Exit codes: 0 clean, 1 findings.
"""

import argparse
import pathlib
import re
import subprocess
import sys

MOST_CHARACTERS = 159
MOST_LINES = {"README.md": 150}
MOST_WORDS = 1500  # of a guide
# Pages of docs/ that are no guides: tables of figures, and pages for tests.
LONG_PAGES = {"speed.md", "fault_injection.md"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def anchors(path):
    """The anchors that links may name after #, as GitHub makes them from headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def lengths_of(path, root):
    """Findings about a document that is too long as a whole."""
    text = path.read_text()
    name = path.relative_to(root).as_posix()
    lines, words = text.count("\n"), len(text.split())
    if lines > MOST_LINES.get(name, lines):
        yield lines, f"{lines} lines; at most {MOST_LINES[name]}"
    if path.parent == root / "docs" and path.name not in LONG_PAGES and words > MOST_WORDS:
        yield 1, f"{words} words; at most {MOST_WORDS}, the rest belongs into docs/notes"


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
            target, _, anchor = target.partition("#")
            other = path.parent / target if target else path
            if "://" in target:
                continue
            if not other.exists():
                yield number, f"{target} does not exist"
            elif anchor and other.suffix == ".md" and anchor not in anchors(other):
                yield number, f"{target} has no heading #{anchor}"


def documents(root):
    """The documents that git does not ignore; in a folder that is no repository, all of them."""
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
        for number, message in [*findings_of(path), *lengths_of(path, root)]:
            print(f"{path.relative_to(root)}:{number}: {message}")
            count += 1
    print(f"{len(paths)} documents: {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
