#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists what src/ declares and nobody uses: functions, types and constants of headers without a use outside tests.

usage: scripts/check_unused.py [--root DIR]
Uses are found by name, not by type: a name that something else shares counts as used. Uses in src/ and bench/ count; those
in tests and in files for tests alone (*_test.cc, *_test_data.h, test_*.h) do not. Exceptions are in
scripts/unused_allowed.txt, with the reason; a line there that is not needed any more is a finding, too. Exit codes: 0 clean, 1 findings.
"""

import argparse
import collections
import pathlib
import re
import sys

SUFFIXES = (".h", ".cuh", ".cc", ".cu")
HEADER_SUFFIXES = (".h", ".cuh")
TEST_FILE = re.compile(r"^test_|_test\.cc$|_test_data\.h$|_test_main\.cc$")
# Used without their names in the text: called by the C++ library, or by the language.
BY_THE_LANGUAGE = {"is_transparent", "iterator_category", "difference_type", "const_iterator", "value_type", "__launch_bounds__"}

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
INCLUDE = re.compile(r"^[ \t]*#\s*include[^\n]*", re.M)
TYPE = re.compile(r"^\s*(?:template\s*<[^;{]*>\s*)?(?:struct|class|union|enum(?:\s+class|\s+struct)?)\s+(?:alignas\(\w+\)\s+)?(\w+)\b(?!\s*;)")
ALIAS = re.compile(r"^\s*using\s+(\w+)\s*=")
CONSTANT = re.compile(r"^\s*(?:inline\s+|static\s+|extern\s+)*(?:constexpr|const)\s+[\w:<>,\s*]*?\b(k[A-Z]\w*)\b")
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)")
# The text before a declaration's name: a type, and nothing that an expression begins with.
FUNCTION = re.compile(r"^(\s*)(?:[\w:~]+(?:<[^;()]*>)?[\s*&]+)+?(?:[\w<>]+::)*(\w+)\s*\(")
OWN_MEMBERS = re.compile(r"^\s*(?:explicit\s+|constexpr\s+|virtual\s+)*~?([A-Z]\w*[a-z]\w*)\((?:const\s+\1&|\1&&)?|^\s*([A-Z]\w*)& operator=\((?:const\s+)?\2|\b([A-Z]\w*)::~?\3\(")
NOT_A_TYPE = re.compile(r"^\s*(?:return|throw|else|case|new|delete|using|namespace|typedef|goto|co_\w+|if|for|while|switch|do)\b")


def strip(text):
    """Without comments, strings and includes; lines stay where they are."""
    text = NOISE.sub(lambda match: "\n" * match.group().count("\n"), text)
    return INCLUDE.sub("", text)


def declared_on(line, in_header):
    """The names that a line declares or defines: [(kind, name)]."""
    found = []
    for kind, pattern in (("type", TYPE), ("type", ALIAS), ("constant", CONSTANT), ("macro", MACRO)):
        match = pattern.match(line)
        if match:
            return [(kind, match.group(1))]
    match = FUNCTION.match(line)
    if match and not NOT_A_TYPE.match(line) and "=" not in line[: match.end()]:
        # In sources only lines without indentation are declarations.
        if in_header or not match.group(1):
            found.append(("function", match.group(2)))
    return found


def names_on(line):
    """The names on a line. A class's own constructors, destructor and assignment are no use of it."""
    line = OWN_MEMBERS.sub("", line)
    return re.findall(r"[A-Za-z_]\w*", line)


def sources(root, folder):
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in SUFFIXES and not TEST_FILE.search(path.name):
            yield path


def find_unused(root):
    declarations = {}  # name -> (kind, path, line) of the first one
    declared = collections.Counter()
    seen = collections.Counter()
    for folder in ("src", "bench"):
        for path in sources(root, folder):
            in_header = path.suffix in HEADER_SUFFIXES
            for number, line in enumerate(strip(path.read_text()).splitlines(), start=1):
                seen.update(names_on(line))
                for kind, name in declared_on(line, in_header):
                    declared[name] += 1
                    if in_header and folder == "src":
                        declarations.setdefault(name, (kind, path, number))
    for name, (kind, path, number) in declarations.items():
        if seen[name] <= declared[name] and name not in BY_THE_LANGUAGE:
            yield path, number, kind, name


def read_allowed(path):
    """{name: line} of the file; text behind a name says why."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0]: number for number, line in enumerate(lines, start=1) if line.strip() and line[0] != "#"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    allow_list = root / "scripts/unused_allowed.txt"
    allowed = read_allowed(allow_list)
    unused = sorted(find_unused(root))
    findings = [
        f"{path.relative_to(root)}:{number}: {kind} {name} has no user outside tests; remove it, or move it to the tests"
        for path, number, kind, name in unused
        if name not in allowed
    ]
    names = {name for _, _, _, name in unused}
    findings += [
        f"{allow_list.relative_to(root)}:{number}: {name} has users, or is gone; remove the line"
        for name, number in allowed.items()
        if name not in names
    ]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings, {len(names & allowed.keys())} names allowed without a user")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
