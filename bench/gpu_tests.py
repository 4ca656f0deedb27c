#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that use a GPU in many processes at once, also under compute-sanitizer, and says what was not run.

Each suite is cut into shards (GTEST_TOTAL_SHARDS); as many of them run at a time as there are processors. A shard's output
goes to OUT/NAME.SHARD.txt. A suite passes when every one of its tests was run to its end and none failed: tests that a
time-out cut off, or that never began, are named. Exit codes: 0 all passed, 1 not, 2 wrong usage.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

SUITES = {  # name: (executable in the build folder, tests)
    "parity": ("tests/parity/parity_test", "*cuda*"),
    "cuda": ("src/cuda/cuda_test", "*"),
    "generation": ("tests/generation/generation_test", "*Cuda*:*/cuda"),
    "placement": ("tests/placement/placement_test", "*/cuda"),
}
SANITIZED = ("parity", "cuda")
TOOLS = ("memcheck", "racecheck")
UNTOUCHED = "terminated before first instrumented API call"  # a tool's last line for tests that use no GPU


class Suite:
    """One set of tests, plain or under a tool, and the results of its shards."""

    def __init__(self, name, executable, tests, tool, shards, tool_options=()):
        self.name, self.executable, self.filter, self.tool, self.tool_options = name, executable, tests, tool, tool_options
        self.tests = list_tests(executable, tests)
        self.shards = min(shards, max(1, len(self.tests)))
        self.passed, self.skipped, self.failed, self.seconds = set(), set(), set(), {}
        self.cut, self.errors, self.tool_errors, self.broken = set(), [], 0, []
        self.summaries = 0  # summaries that the tool has printed

    def command(self):
        run = [str(self.executable), f"--gtest_filter={self.filter}"]
        if self.tool is None:
            return run
        return ["compute-sanitizer", "--tool", self.tool, "--error-exitcode", "99", *self.tool_options, *run]

    def take(self, shard, text, code, timed_out):
        """Adds the output and the exit code of one shard."""
        begun = []
        for line in text.splitlines():
            if found := re.match(r"\[ RUN      \] (\S+)", line):
                begun.append(found.group(1))
            elif found := re.match(r"\[ +(OK|SKIPPED|FAILED) +\] (\S+?),? .*\((\d+) ms\)", line):
                kind, name = found.group(1), found.group(2)
                {"OK": self.passed, "SKIPPED": self.skipped, "FAILED": self.failed}[kind].add(name)
                self.seconds[name] = int(found.group(3)) / 1000
            elif UNTOUCHED in line:
                pass
            elif re.search(r"Failure$|: error:|^========= (Error|Warning|Invalid|Program hit|Internal)", line):
                self.errors.append(f"shard {shard}: {line.strip()}")
        self.cut.update(n for n in begun if n not in self.passed | self.skipped | self.failed)
        said_result = False
        if self.tool is not None:
            for count in re.findall(r"ERROR SUMMARY: (\d+) error", text):
                self.tool_errors, said_result = self.tool_errors + int(count), True
            for hazards in re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text):
                self.tool_errors, said_result = self.tool_errors + int(hazards), True
        self.summaries += said_result
        if timed_out:
            return
        # For tests that use no GPU a tool reports nothing, and ends with 255.
        untouched = self.tool is not None and UNTOUCHED in text and code == 255
        if self.tool is not None and not said_result and not untouched:
            self.broken.append(f"shard {shard}: {self.tool} gave no summary (exit code {code})")
        elif code not in (0, 1, 99) and not untouched:
            self.broken.append(f"shard {shard} ended with code {code}")

    def missing(self):
        """Tests that have no result: cut off, or after one that was."""
        return [t for t in self.tests if t not in self.passed | self.skipped | self.failed]

    def ok(self):
        return self.did_something() and not (self.failed or self.missing() or self.tool_errors or self.broken)

    def did_something(self):
        return bool(self.passed) and (self.tool is None or self.summaries > 0)

    def summary(self):
        tool = f", {self.tool}: {self.tool_errors} errors" if self.tool else ""
        if self.tool and self.passed and not self.summaries:
            tool = f", {self.tool} saw no GPU"
        if not self.tests:
            return f"{self.name}: NO TESTS (no GPU, or not built with CUDA)"
        return (f"{self.name}: {'ok' if self.ok() else 'NOT OK'}, {len(self.passed)} of {len(self.tests)} tests passed, "
                f"{len(self.skipped)} skipped, {len(self.failed)} failed, {len(self.missing())} not finished{tool}")

    def details(self):
        missing = self.missing()
        for name in sorted(self.failed):
            yield f"FAILED: {name}"
        for name in missing:
            yield f"NOT FINISHED: {name}" + (" (was running)" if name in self.cut else "")
        yield from self.broken
        yield from self.errors[:12]
        slow = sorted(self.seconds.items(), key=lambda item: -item[1])[:3]
        if slow and slow[0][1] >= 5:
            yield "slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in slow)


def list_tests(executable, tests):
    """Full names, in the order in which they are dealt to shards."""
    done = subprocess.run([executable, "--gtest_list_tests", f"--gtest_filter={tests}"], capture_output=True, text=True,
                          check=True)
    names, suite = [], ""
    for line in done.stdout.splitlines():
        entry = line.split("  # ")[0].rstrip()
        if re.match(r"\S+\.$", entry):
            suite = entry
        elif line.startswith("  ") and suite:
            names.append(suite + entry.strip())
    return [n for n in names if not re.search(r"(^|[./])DISABLED_", n)]


def adopt_orphans():
    """Makes this process the parent of those whose parent ends: a sanitizer's test has its own process group, and outlives the tool."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def kill_descendants(root):
    """Kills all descendants of `root`, which may have been cut off: they would run on beside the next measurement."""
    children = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()  # after the name: state, parent
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    below = list(children.get(root, []))
    for pid in below:
        below += children.get(pid, [])
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_shard(suite, shard, out, deadline):
    path = out / f"{suite.name}.{shard}.txt"
    environment = {**os.environ, "GTEST_TOTAL_SHARDS": str(suite.shards), "GTEST_SHARD_INDEX": str(shard)}
    timed_out = False
    with path.open("w") as file:
        if time.time() >= deadline:
            file.write("not begun: the time was over\n")
            return shard, path, None, True
        process = subprocess.Popen(suite.command(), stdout=file, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)
        try:
            code = process.wait(timeout=max(0.1, deadline - time.time()))
        except subprocess.TimeoutExpired:
            kill_descendants(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            code, timed_out = process.wait(), True
    return shard, path, code, timed_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/gpu-report"))
    parser.add_argument("--suites", default=",".join(SUITES), help=f"which, of {', '.join(SUITES)}")
    parser.add_argument("--filter", help="instead of the suites' own tests, in GoogleTest's words")
    parser.add_argument("--sanitizer", action="store_true", help=f"also {' and '.join(TOOLS)} over {' and '.join(SANITIZED)}")
    parser.add_argument("--sanitizer-only", action="store_true", help="that alone, over all of --suites")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of the sanitizer; default: {','.join(TOOLS)}")
    parser.add_argument("--sanitizer-options", default="", help="more options for compute-sanitizer, in one argument")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--shards", type=int, default=0, help="parts of a suite; default: twice --jobs")
    parser.add_argument("--timeout", type=float, default=230, help="seconds for everything")
    arguments = parser.parse_args()
    names = arguments.suites.split(",")
    if unknown := [n for n in names if n not in SUITES]:
        parser.error(f"no such suite: {', '.join(unknown)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    start, deadline = time.time(), time.time() + arguments.timeout

    def suite(name, tool):
        executable, tests = SUITES[name]
        return Suite(name if tool is None else f"{name}.{tool}", arguments.build / executable, arguments.filter or tests,
                     tool, arguments.shards or 2 * arguments.jobs, shlex.split(arguments.sanitizer_options))

    suites = [] if arguments.sanitizer_only else [suite(name, None) for name in names]
    if arguments.sanitizer or arguments.sanitizer_only:
        suites += [suite(name, tool) for tool in arguments.tools.split(",") for name in names
                   if name in SANITIZED or arguments.sanitizer_only]
    # Long tests are spread over the shards: one pool for all suites keeps every processor busy to the end.
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(run_shard, s, shard, arguments.out, deadline): s
                   for s in suites if s.tests for shard in range(s.shards)}
        for future in concurrent.futures.as_completed(running):
            shard, path, code, timed_out = future.result()
            running[future].take(shard, path.read_text(errors="replace"), code, timed_out)
    kill_descendants(os.getpid())
    for s in suites:
        print(s.summary(), flush=True)
        for line in s.details():
            print("  " + line[:200], flush=True)
    print(f"tests took {time.time() - start:.0f} s in {arguments.jobs} processes")
    return 0 if all(s.ok() for s in suites) else 1


if __name__ == "__main__":
    sys.exit(main())
