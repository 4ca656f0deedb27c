#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit reports of ctest, GoogleTest and pytest: what failed, what was skipped and why, and one closing line of counts.

usage: scripts/test_summary.py [--failed STAGE]... [--skipped NAME=REASON]... [SUITE=REPORT.xml]...

--failed counts a stage that broke without a report of its own (a build, a check), --skipped one that could not run.
Exit codes: 0 all passed, 1 something failed or nothing ran.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter


def gtest_skip_reason(output):
    """The text after GTEST_SKIP() <<, which GoogleTest prints on the lines after 'file:line: Skipped'."""
    match = re.search(r"^.*: Skipped\n(.*?)(?=\n\s*\n|\n\[|\Z)", output, re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""


def outcome(case):
    """(passed | failed | skipped, reason) of one <testcase>."""
    status = case.get("status", "run")
    output = case.findtext("system-out") or ""
    failure = case.find("failure")
    if failure is None:
        failure = case.find("error")
    if failure is not None or status == "fail":
        return "failed", (failure.get("message") or "") if failure is not None else ""
    skipped = case.find("skipped")
    if status == "disabled" or case.get("result") == "suppressed":
        return "skipped", "disabled"
    if skipped is not None or status == "notrun":
        message = (skipped.get("message") or "") if skipped is not None else ""
        if status == "notrun" and "SKIP" not in message:
            return "failed", message or "did not run"  # ctest: the executable is missing
        reason = gtest_skip_reason(output) or re.sub(r"^\S+:\d+\n", "", message)
        return "skipped", reason or "no reason given"
    return "passed", ""


def read_report(suite, path):
    """[(name, result, reason)] of a report; a report that cannot be read is a failure."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        return [(suite, "failed", f"no readable report: {error}")]
    cases = []
    for case in root.iter("testcase"):
        scope = case.get("classname") or ""
        name = case.get("name") or "?"
        if scope and scope != name:
            name = f"{scope.removeprefix('tests.python.')}.{name}"
        cases.append((f"{suite}: {name}", *outcome(case)))
    return cases


def one_line(text, limit=160):
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", metavar="SUITE=REPORT.xml")
    parser.add_argument("--failed", action="append", default=[], metavar="STAGE")
    parser.add_argument("--skipped", action="append", default=[], metavar="NAME=REASON")
    options = parser.parse_intermixed_args(arguments)

    cases = []
    for item in options.reports:
        suite, _, path = item.partition("=")
        suite_cases = read_report(suite, path)
        counts = Counter(result for _, result, _ in suite_cases)
        print(f"{suite}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped of {len(suite_cases)}")
        cases += suite_cases
    cases += [(stage, "failed", "see its output above") for stage in options.failed]
    for item in options.skipped:
        name, _, reason = item.partition("=")
        cases.append((name, "skipped", reason))

    for result in ("skipped", "failed"):
        for name, case_result, reason in cases:
            if case_result == result:
                print(f"{result}: {name}" + (f" ({one_line(reason)})" if reason else ""))
    counts = Counter(result for _, result, _ in cases)
    ran = counts["passed"] + counts["failed"]
    if ran == 0:
        print("no test ran")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if ran > 0 and counts["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
