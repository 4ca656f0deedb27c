#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds src/ to its architecture: the include table in src/folders.txt and the file rules of CONTRIBUTING.md.

usage: scripts/check_includes.py [--root DIR]
Prints one `file:line: message` per finding. Exit codes: 0 clean, 1 findings.
"""

import argparse
import pathlib
import re
import sys

SUFFIXES = (".h", ".cuh", ".cc", ".cu")
HEADER_SUFFIXES = (".h", ".cuh")
SPDX = "// SPDX-License-Identifier: Apache-2.0"
MAX_LINES = 800
BANNED_STEMS = ("utils", "common", "helpers")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl)[\w.]*(/|$)")
# Headers that take seconds to compile, with the only sources that may include them; the others go through ours.
CONFINED = {
    "CLI/": ("cli/command_line.cc", "cli/value_check.cc"),
    "spdlog/": ("base/log.cc",),
    "boost/": ("serve/http/http_connection.cc", "serve/http/http_connection.h", "serve/http/http_server.cc",
               "serve/http/io_loop.cc", "serve/http/io_loop.h"),
    "prometheus/": ("serve/api/metric_registry.h",),
    "regex": (),
}
# Headers include <nlohmann/json_fwd.hpp> instead, except those whose types hold JSON values.
JSON_HEADER = "nlohmann/json.hpp"
JSON_HOLDERS = ("serve/completion_logprobs.h", "serve/openai_request.h", "text/chat_template.h", "text/jinja/chat_rendering.h")
TABLE_LINE = re.compile(r"^(!?[a-z]+):\s*((?:[a-z]+\s*)*)$")


class Findings:
    """Collects findings; paths are printed relative to the root."""

    def __init__(self, root):
        self.root = root
        self.lines = []

    def add(self, path, line, message):
        self.lines.append(f"{path.relative_to(self.root)}:{line}: {message}")


def read_table(path, findings):
    """{folder: (line, {folders it may include})} of folders.txt; `!folder` names a folder that none of its files may reach, not even indirectly."""
    table = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = TABLE_LINE.match(line)
        if not match:
            findings.add(path, number, "expected 'folder: folder folder ...'")
        elif match.group(1) in table:
            findings.add(path, number, f"folder '{match.group(1)}' is listed twice")
        else:
            table[match.group(1)] = (number, set(match.group(2).split()))
    for folder, (number, others) in table.items():
        for other in sorted((others | {folder.removeprefix("!")}) - table.keys()):
            findings.add(path, number, f"'{folder}' lists '{other}', which is not in the table")
    return table


def quoted_includes(path):
    """[(line, target)] of a file."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match and match.group(1):
            found.append((number, match.group(1)))
    return found


class Reach:
    """Finds the folders that headers include, directly and indirectly."""

    def __init__(self, source):
        self.source = source
        self.folders = {}  # target -> {folder: the header next on the way there}

    def of(self, target):
        if target not in self.folders:
            found = self.folders[target] = {}  # set before the others are looked at: includes may go in circles
            path = self.source / target
            for _, other in quoted_includes(path) if path.is_file() else []:
                for folder in {other.partition("/")[0], *self.of(other)}:
                    found.setdefault(folder, other)
        return self.folders[target]


def check_reach(path, banned, reach, findings):
    """Checks that no header that `path` includes leads to a banned folder. (Direct includes are checked by the table.)"""
    for number, target in quoted_includes(path):
        for folder in sorted(banned & reach.of(target).keys()):
            way = [target]
            while way[-1].partition("/")[0] != folder:
                way.append(reach.of(way[-1])[folder])
            findings.add(path, number, f"brings along {folder}/ ({' -> '.join(way)}), which src/folders.txt rules out")


def find_cycle(table):
    """The folders of one cycle, first one repeated at the end; empty when there is none."""
    state = {}  # folder -> "open" while on the path, "closed" once done

    def visit(folder, path):
        state[folder] = "open"
        for other in sorted(table[folder][1] & table.keys()):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other]
            if other not in state:
                cycle = visit(other, [*path, other])
                if cycle:
                    return cycle
        state[folder] = "closed"
        return []

    for folder in table:
        if folder not in state:
            cycle = visit(folder, [folder])
            if cycle:
                return cycle
    return []


def check_include(path, line, target, folder, table, findings):
    """Checks one quoted include, `target`, of a file in `folder`."""
    root = findings.root
    first, slash, _ = target.partition("/")
    if path.stem.endswith("_test") and slash and first == "tests":
        if not (root / target).is_file():
            findings.add(path, line, f'"{target}" does not exist')
        return
    if not slash or first not in table:
        findings.add(path, line, f'"{target}" must start with a folder of src/ (foreign headers take <>)')
        return
    if not (root / "src" / target).is_file():
        findings.add(path, line, f'"{target}" does not exist in src/')
    if first != folder and first not in table[folder][1]:
        findings.add(path, line, f"{folder}/ may not include {first}/ (src/folders.txt)")


def check_confined(path, line, target, findings):
    """Checks that an expensive foreign header is included only by the few sources that hide it."""
    inside = path.relative_to(findings.root / "src").as_posix()
    for prefix, sources in CONFINED.items():
        if target.startswith(prefix) and inside not in sources:
            allowed = " and ".join(sources) or "nothing"
            findings.add(path, line, f"<{target}> is slow to compile; only {allowed} may include it")
    if target == JSON_HEADER and path.suffix in HEADER_SUFFIXES and inside not in JSON_HOLDERS and not path.stem.startswith("test_"):
        findings.add(path, line, f"<{target}> is slow to compile; a header takes <nlohmann/json_fwd.hpp>")


def is_per_target(path, lines):
    """Whether this is a Highway header, compiled once per instruction set: `*_inl.h` guarded by HWY_TARGET_TOGGLE."""
    return path.stem.endswith("_inl") and any("defined(HWY_TARGET_TOGGLE)" in line for line in lines)


def is_test(path):
    return path.stem.endswith("_test") or path.stem.startswith("test_")


def find_circles(graph):
    """[[node, ...]]: nodes each of which reaches all others of its list (Tarjan's algorithm)."""
    order, lowest, stack, on_stack, circles = {}, {}, [], set(), []

    def visit(node):
        order[node] = lowest[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
            if other in on_stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            if len(stack) > at + 1:
                circles.append(sorted(stack[at:]))
            on_stack.difference_update(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return circles


class Pairs:
    """Pairs of a header and the source of its name. Pairs must not include each other in a circle, whichever of their files does."""

    def __init__(self):
        self.edges = {}  # pair -> {pair: (path, line) of an include}

    def add(self, path, pair, line, target):
        other = target.rpartition(".")[0]
        if other != pair:
            self.edges.setdefault(pair, {}).setdefault(other, (path, line))

    def check(self, findings):
        graph = {pair: others.keys() & self.edges.keys() for pair, others in self.edges.items()}
        for circle in find_circles(graph):
            for pair in circle:
                for other in sorted(graph[pair] & set(circle)):
                    path, line = self.edges[pair][other]
                    findings.add(path, line, f"circle of {', '.join(circle)}: {pair} includes {other}")


def check_file(path, folder, table, findings, pairs):
    """One source file or header of `folder`; returns how many includes it has."""
    if path.stem in BANNED_STEMS:
        findings.add(path, 1, f"name the file after its main type, not '{path.stem}'")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        findings.add(path, 1, f"not UTF-8: {error.reason} at byte {error.start}")
        return 0
    if len(lines) > MAX_LINES:
        findings.add(path, MAX_LINES + 1, f"{len(lines)} lines; {MAX_LINES} is the end, split the file")
    if not lines or lines[0] != SPDX:
        findings.add(path, 1, f"the first line must be '{SPDX}'")
    if path.suffix in HEADER_SUFFIXES and "#pragma once" not in lines and not is_per_target(path, lines):
        findings.add(path, 1, "a header needs '#pragma once'")
    includes = 0
    for number, line in enumerate(lines, start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        includes += 1
        quoted, angled = match.groups()
        if quoted:
            check_include(path, number, quoted, folder, table, findings)
            if not is_test(path):
                pairs.add(path, path.relative_to(findings.root / "src").with_suffix("").as_posix(), number, quoted)
        elif angled.partition("/")[0] in table and (findings.root / "src" / angled).is_file():
            findings.add(path, number, f'our own headers take quotes: "{angled}"')
        elif CUDA_HEADER.match(angled) and folder != "cuda":
            findings.add(path, number, f"<{angled}>: only cuda/ may include CUDA headers")
        else:
            check_confined(path, number, angled, findings)
    return includes


def check_tree(root):
    """(findings, files, includes) of the tree under root."""
    findings = Findings(root)
    source = root / "src"
    table_path = source / "folders.txt"
    table = read_table(table_path, findings)
    cycle = find_cycle(table)
    if cycle:
        findings.add(table_path, table[cycle[0]][0], f"cycle: {' -> '.join(cycle)}")
    files = includes = 0
    reach = Reach(source)
    pairs = Pairs()
    used = {}  # folder -> folders that it includes
    for path in sorted(source.rglob("*")):
        if path.is_dir() and path.parent == source and path.name not in table:
            findings.add(path, 1, "this folder is not in src/folders.txt")
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        folder = path.relative_to(source).parts[0]
        if path.parent == source:
            findings.add(path, 1, "sources belong into a folder of src/")
        elif folder in table:
            files += 1
            includes += check_file(path, folder, table, findings, pairs)
            used.setdefault(folder, set()).update(target.partition("/")[0] for _, target in quoted_includes(path))
            if f"!{folder}" in table and not is_test(path):
                check_reach(path, table[f"!{folder}"][1], reach, findings)
    pairs.check(findings)
    for folder, others in used.items():
        line, allowed = table[folder]
        for other in sorted((allowed & table.keys()) - others):
            findings.add(table_path, line, f"'{folder}' lists '{other}', which none of its files includes")
    return findings.lines, files, includes


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=pathlib.Path, default=default_root, help="the repository (default: this one)")
    root = parser.parse_args(arguments).root.resolve()
    if not (root / "src" / "folders.txt").is_file():
        print(f"check_includes: {root / 'src' / 'folders.txt'} is missing", file=sys.stderr)
        return 1
    findings, files, includes = check_tree(root)
    for line in findings:
        print(line)
    print(f"{files} files, {includes} includes: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
