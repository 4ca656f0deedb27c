#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long the project takes to build and to test, and where the time goes.

    bench/build_times.py cold quickstart      clone this checkout, empty compiler cache, run scripts/quickstart.sh
    bench/build_times.py cold test            the same with scripts/test.sh
    bench/build_times.py warm test            once more in that clone, with a full compiler cache and no build folder
    bench/build_times.py touch                change two headers and ten sources, one at a time; build and run their tests
    bench/build_times.py table build/release  per folder and the slowest files, of a build that is there

Options: -o FILE keeps the figures as JSON; --seed N draws other sources for `touch`; --clone DIR is where `cold` works.
Processor time is that of all processes of a command; the time of one file is the clock's, from ninja's log, so on a
machine that is busy otherwise compare shares, not seconds.
"""

import argparse
import collections
import datetime
import os
import pathlib
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time

from keep_result import keep

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = {"device/ops.h": "device_test", "plan/plan.h": "plan_test"}


def run(command, **options):
    """Runs the command; returns (exit code, wall-clock seconds, processor seconds)."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    code = subprocess.run(command, **options).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return code, time.monotonic() - start, used


def ninja_seconds(build):
    """{output: seconds} of the newest run of each command in a build folder."""
    seconds = {}
    for line in (build / ".ninja_log").read_text().splitlines():
        if line.startswith("#"):
            continue
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000
    return seconds


def folder_of(output):
    """src/plan/CMakeFiles/spw_plan.dir/fill.cc.o -> ('src/plan', 'greedy_placement.cc')."""
    folder, _, rest = output.partition("/CMakeFiles/")
    name = rest.partition(".dir/")[2].removesuffix(".o")
    return folder, name


def table_of(build):
    """Seconds per folder (tests apart) and the twenty slowest files."""
    folders, files = collections.Counter(), {}
    for output, seconds in ninja_seconds(build).items():
        if output.endswith(".gch"):
            folders["precompiled headers"] += seconds
        elif output.endswith(".o") and "/CMakeFiles/" in output:
            folder, name = folder_of(output)
            kind = " (CUDA)" if name.endswith(".cu") else " (tests)" if name.endswith("_test.cc") else ""
            folders[folder + kind] += seconds
            files[f"{folder}/{name}"] = seconds
        elif not output.endswith((".a", ".stamp", ".ninja", ".cmake")):
            folders["linking and the rest"] += seconds
    total = sum(folders.values())
    return {
        "seconds": round(total),
        "folders": {name: {"seconds": round(seconds, 1), "share": round(seconds / max(total, 1e-9), 3)}
                    for name, seconds in folders.most_common()},
        "slowest": {name: round(seconds, 1) for name, seconds in sorted(files.items(), key=lambda item: -item[1])[:20]},
    }


def print_table(table):
    print(f"{'seconds':>8} {'share':>6}  folder ({table['seconds']} s in all, of the clock, per command)")
    for name, row in table["folders"].items():
        print(f"{row['seconds']:8.1f} {100 * row['share']:5.1f}%  {name}")
    print(f"{'seconds':>8}  slowest files")
    for name, seconds in table["slowest"].items():
        print(f"{seconds:8.1f}  {name}")


def clone_of(options):
    """A fresh clone beside a link to shared/, so that tests find their data."""
    clone = pathlib.Path(options.clone)
    shutil.rmtree(clone, ignore_errors=True)
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    shared = clone.parent / "shared"
    if (ROOT.parent / "shared").exists() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")
    return clone


def timed_script(options):
    """A whole script in a fresh clone, with an empty (cold) or a full (warm) compiler cache."""
    clone = pathlib.Path(options.clone)
    cache = clone.parent / "build-times-ccache"
    if options.command == "cold":
        clone = clone_of(options)
        shutil.rmtree(cache, ignore_errors=True)
    else:
        shutil.rmtree(clone / "build", ignore_errors=True)
    environment = dict(os.environ, CCACHE_DIR=str(cache))
    log = clone.parent / f"{options.what}-{options.command}.log"
    with open(log, "w") as output:
        code, clock, processors = run([f"scripts/{options.what}.sh"], cwd=clone, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=output, stderr=subprocess.STDOUT)
    figures = {"script": f"scripts/{options.what}.sh", "cache": options.command, "exit_code": code,
               "clock_s": round(clock), "processor_minutes": round(processors / 60, 1)}
    print(f"{figures['script']}, {options.command}: {clock:.0f} s of the clock, {processors / 60:.1f} processor minutes, "
          f"exit code {code}; log: {log}")
    text = log.read_text(errors="replace")
    if "== time" in text:
        figures["stages"] = text.partition("== time\n")[2].partition("\n\n")[0].splitlines()
        print("\n".join(figures["stages"]))
    for build in sorted((clone / "build").glob("*/.ninja_log")):
        figures[f"build/{build.parent.name}"] = table_of(build.parent)
        if options.command == "cold":
            print(f"\nbuild/{build.parent.name}")
            print_table(figures[f"build/{build.parent.name}"])
    return figures


def time_to_test(source, target):
    """Changes a file, then builds and runs a test; (clock, processor) seconds."""
    path = ROOT / "src" / source
    text = path.read_text()
    try:
        # A new comment each time, so that the compiler cache has no result for it.
        path.write_text(text + f"// {time.time_ns()}\n")
        build, clock, processors = run(["cmake", "--build", "build/release", "--parallel", str(os.cpu_count()),
                                        "--target", target], cwd=ROOT, stdout=subprocess.DEVNULL)
        binary = next((ROOT / "build/release").glob(f"**/{target}"))
        code, test_clock, test_processors = run([str(binary), "--gtest_brief=1"], cwd=ROOT, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL)
    finally:
        path.write_text(text)
    if build or code:
        sys.exit(f"build_times: {target} failed after a change of {source}")
    return clock + test_clock, processors + test_processors


def touch(options):
    """Measures two headers, and ten sources drawn from the folders that have a test."""
    figures = {"headers": {}, "sources": {}}
    tests = {path.name for path in (ROOT / "build/release/src").glob("*/*_test")}
    if not tests:
        sys.exit("build_times: build build/release first: scripts/configure.sh release && cmake --build build/release")
    sources = [path.relative_to(ROOT / "src") for path in sorted((ROOT / "src").glob("*/**/*.cc"))
               if f"{path.relative_to(ROOT / 'src').parts[0]}_test" in tests and not path.name.endswith("_test.cc")
               and f"{path.relative_to(ROOT / 'src').parts[0]}" != "cuda"]
    drawn = random.Random(options.seed).sample(sources, 10)
    changes = [("headers", header, test) for header, test in HEADERS.items()]
    changes += [("sources", str(source), f"{source.parts[0]}_test") for source in drawn]
    for kind, source, target in changes:
        time_to_test(source, target)  # A first, unmeasured run builds whatever else was out of date.
        clock, processors = time_to_test(source, target)
        figures[kind][source] = {"test": target, "clock_s": round(clock, 1), "processor_s": round(processors, 1)}
        print(f"{clock:7.1f} s, {processors:7.1f} s of processors  {source} -> {target}", flush=True)
    medians = [row["clock_s"] for row in figures["sources"].values()]
    figures["median_of_sources_s"] = round(statistics.median(medians), 1)
    print(f"median of the sources: {figures['median_of_sources_s']} s")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["cold", "warm", "touch", "table"])
    parser.add_argument("what", nargs="?", help="quickstart or test; a build folder for `table`")
    parser.add_argument("-o", "--output", help="keep the figures as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clone", default="/tmp/spillway-build-times/clone")
    options = parser.parse_args()
    if options.command == "table":
        build = pathlib.Path(options.what or ROOT / "build/release")
        if not (build / ".ninja_log").exists():
            parser.error(f"{build} has no .ninja_log: not a build folder, or never built")
        figures = table_of(build)
        print_table(figures)
    elif options.command == "touch":
        figures = touch(options)
    elif options.what not in ("quickstart", "test"):
        parser.error("say quickstart or test")
    else:
        figures = timed_script(options)
    keep({
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": "bench/build_times.py " + " ".join(sys.argv[1:]),
        "load_average_at_end": [round(load, 1) for load in os.getloadavg()],
        **figures,
    }, options.output)
    return figures.get("exit_code", 0)


if __name__ == "__main__":
    sys.exit(main())
