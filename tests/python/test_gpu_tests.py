# SPDX-License-Identifier: Apache-2.0
"""bench/gpu_tests.py runs every test once, and names what failed, crashed or was cut off."""

import contextlib
import pathlib
import stat
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu_tests.py"

# A stand-in for GoogleTest, with tests whose names say how they end.
FAKE = """#!{python}
import os, sys, time
tests = {tests!r}
if "--gtest_list_tests" in sys.argv:
    print("Running main() from gtest_main.cc")
    print("Suite.")
    for i, name in enumerate(tests):
        print(f"  {{name}}  # GetParam() = {{i}}")
    sys.exit(0)
total, index = int(os.environ["GTEST_TOTAL_SHARDS"]), int(os.environ["GTEST_SHARD_INDEX"])
failed = False
for name in tests[index::total]:
    print(f"[ RUN      ] Suite.{{name}}", flush=True)
    if name.startswith("Hangs"):
        time.sleep(60)
    if name.startswith("Crashes"):
        os.abort()
    if name.startswith("Fails"):
        print("a_test.cc:9: Failure")
        print(f"[  FAILED  ] Suite.{{name}}, where GetParam() = 3 (7 ms)")
        failed = True
    elif name.startswith("Skips"):
        print(f"[  SKIPPED ] Suite.{{name}} (0 ms)")
    else:
        print(f"[       OK ] Suite.{{name}} (12 ms)")
if failed:
    print("[  FAILED  ] 1 test, listed below:")
sys.exit(failed)
"""
SANITIZER = """#!/bin/sh
shift 4
setsid "$@" &
wait $!
echo "========= ERROR SUMMARY: {errors} errors"
"""
# Shard 0 uses the GPU, others do not.
IDLE_SANITIZER = """#!/bin/sh
shift 4
"$@"
if [ $GTEST_SHARD_INDEX = 0 ] && [ {errors} = 0 ]; then
  echo "========= ERROR SUMMARY: 0 errors"
else
  echo "========= Error: Target application terminated before first instrumented API call"
  exit 255
fi
"""


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(tmp_path, tests, *options, errors=0, sanitizer=SANITIZER):
    executable(tmp_path / "tests/parity/parity_test", FAKE.format(python=sys.executable, tests=tests))
    executable(tmp_path / "bin/compute-sanitizer", sanitizer.format(errors=errors))
    return subprocess.run([sys.executable, SCRIPT, "--build", tmp_path, "--out", tmp_path / "out", "--suites", "parity", "--jobs",
                           "4", "--shards", "3", *options], capture_output=True, text=True, timeout=50, check=False,
                          env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})


def test_counts_what_passed_and_skipped(tmp_path):
    done = run(tmp_path, ["A/cuda", "B/cuda", "SkipsC/cuda", "D/cuda"])
    assert "parity: ok, 3 of 4 tests passed, 1 skipped, 0 failed, 0 not finished" in done.stdout
    assert done.returncode == 0
    assert len(list((tmp_path / "out").glob("parity.*.txt"))) == 3


def test_tests_without_a_gpu_are_no_matter_for_the_sanitizer(tmp_path):
    done = run(tmp_path, ["A", "B"], "--sanitizer-only", "--tools", "memcheck", sanitizer=IDLE_SANITIZER)
    assert "parity.memcheck: ok, 2 of 2 tests passed" in done.stdout
    assert done.returncode == 0
    done = run(tmp_path, ["A", "CrashesB"], "--sanitizer-only", "--tools", "memcheck", sanitizer=IDLE_SANITIZER)
    assert "NOT FINISHED: Suite.CrashesB" in done.stdout
    assert done.returncode == 1
    done = run(tmp_path, ["A", "B"], "--sanitizer-only", "--tools", "memcheck", sanitizer=IDLE_SANITIZER, errors=1)
    assert "parity.memcheck: NOT OK, 2 of 2 tests passed" in done.stdout
    assert "memcheck saw no GPU" in done.stdout
    assert done.returncode == 1


def test_names_what_failed(tmp_path):
    done = run(tmp_path, ["A", "B", "FailsC", "D"])
    assert "parity: NOT OK, 3 of 4" in done.stdout
    assert "FAILED: Suite.FailsC\n" in done.stdout
    assert done.returncode == 1


def test_names_what_a_crash_leaves_out(tmp_path):
    done = run(tmp_path, ["A", "CrashesB", "C", "D", "E"])
    assert "NOT FINISHED: Suite.CrashesB (was running)" in done.stdout
    assert "NOT FINISHED: Suite.E\n" in done.stdout  # the test after it in its shard
    assert "shard 1 ended with code -6" in done.stdout
    assert done.returncode == 1


def test_names_what_the_time_cut_off(tmp_path):
    done = run(tmp_path, ["A", "B", "HangsC", "D", "E", "F"], "--timeout", "3")
    assert "parity: NOT OK, 4 of 6 tests passed, 0 skipped, 0 failed, 2 not finished" in done.stdout
    assert "NOT FINISHED: Suite.HangsC (was running)" in done.stdout
    assert "NOT FINISHED: Suite.F\n" in done.stdout
    assert done.returncode == 1


def test_what_is_cut_off_does_not_run_on(tmp_path):
    """Even if a tool has started it in a session of its own."""
    done = run(tmp_path, ["A", "HangsB", "C"], "--sanitizer-only", "--tools", "memcheck", "--timeout", "3")
    assert "NOT FINISHED: Suite.HangsB (was running)" in done.stdout
    left = []
    for command in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            left += [command] if str(tmp_path).encode() in command.read_bytes() else []
    assert not left


@pytest.mark.parametrize("errors", [0, 2])
def test_adds_up_the_errors_of_a_sanitizer(tmp_path, errors):
    done = run(tmp_path, ["A", "B", "C"], "--sanitizer-only", errors=errors)
    word = "NOT OK" if errors else "ok"
    assert f"parity.memcheck: {word}, 3 of 3 tests passed, 0 skipped, 0 failed, 0 not finished, memcheck: {3 * errors} errors" in done.stdout
    assert done.returncode == (1 if errors else 0)


def test_a_suite_without_tests_does_not_pass(tmp_path):
    done = run(tmp_path, [])
    assert "parity: NO TESTS" in done.stdout
    assert done.returncode == 1
