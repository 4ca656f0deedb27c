#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds src/ to one maker of plans and one owner of copies: what follows from a plan is computed in plan/ and carried, never
derived again, and queues of copies between a device and host memory are made by the transfer scheduler.

usage: scripts/check_plan_once.py [--root DIR]
Counts the callers of the functions below, and of Device::make_stream(), tests left out. Exit codes: 0 clean, 1 findings.
"""

import argparse
import pathlib
import re
import sys

# The functions, the file in plan/ that defines them, and the most calls in the other files there.
RULES = [
    ("footprint", "footprint.cc", 2),
    ("weight_homes", "weight_homes.cc", 1),
    ("streaming_schedules", "streaming_schedule.cc", 2),
    ("balanced_linear_shares", "linear_shares.cc", 2),
    ("with_residence_by_gain", "residence.cc", 1),
    ("search_plans", "search.cc", 2),
    ("place_greedily", "greedy_placement.cc", 1),
    ("try_place_greedily", "greedy_placement.cc", 2),
]
# Queues of copies have one owner; measuring a link has its own.
QUEUE_OWNERS = ("memory/transfer_scheduler.cc", "measure/link_rates.cc", "measure/measure_splits.cc")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def calls(text, name):
    found = 0
    for match in re.finditer(rf"\b{name}\s*\(", text):
        before = text[: match.start()]
        line = before[before.rfind("\n") + 1 :]
        if re.fullmatch(r"\s*(?:\[\[nodiscard\]\]\s*)?(?!return\b)(?:[A-Za-z_][\w:<>,&*]*\s+)+", line):
            continue  # a declaration or a definition
        found += 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    source = parser.parse_args().root / "src"
    texts = {
        path: NOISE.sub("", path.read_text())
        for path in sorted(source.rglob("*"))
        if path.suffix in (".cc", ".h") and not re.search(r"_test\.cc$|^test_", path.name)
    }
    findings = []
    for name, definer, most in RULES:
        inside = 0
        for path, text in texts.items():
            count = calls(text, name)
            where = path.relative_to(source)
            if where.parts[0] != "plan" and count:
                findings.append(f"src/{where}: calls {name}(), which only plan/ may; read the ResolvedPlan instead")
            elif where.name != definer:
                inside += count
        if inside > most:
            findings.append(f"src/plan: {inside} calls of {name}(), at most {most}")
        if inside == 0:
            findings.append(f"src/plan: no calls of {name}(); take it out of scripts/check_plan_once.py")
    for path, text in texts.items():
        where = str(path.relative_to(source))
        makes = re.search(r"(?:\.|->)make_stream\s*\(", text)
        if makes and where not in QUEUE_OWNERS:
            findings.append(f"src/{where}: makes a queue of copies; ask the TransferScheduler for one")
    for line in findings:
        print(line)
    print(f"{len(RULES)} functions: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
