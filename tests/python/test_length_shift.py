# SPDX-License-Identifier: Apache-2.0
"""bench/length_shift.py: which data files it finds, and what it reports about a shift."""

import json
import lzma
import pathlib
import stat
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
AFTER = {"accuracy": 0.36, "beyond_fresh": -0.02, "standard_error": 0.06}
SHIFT = {"requests": 500, "distinct_requests": 42, "tests": 50, "before": 0.12, "at_start": AFTER, "mid_run": AFTER, "fresh": 0.38, "most_frequent": 0.25}


def test_it_runs_over_the_data_that_is_there_and_names_what_is_not(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "alpaca_small_2000.json").write_text("[]")
    (text / "alpaca_long_2000.json.xz").write_bytes(lzma.compress(b"[1]"))
    program, kept = tmp_path / "program", tmp_path / "kept.json"
    program.write_text(f"#!/bin/sh\ncat \"$1\" \"$2\" >>{tmp_path}/read\necho '{json.dumps(SHIFT)}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, BENCH / "length_shift.py", "--data", tmp_path, "-m", "any", "--program", program, "-o", kept]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=60)
    assert "sharegpt_sample_50.json: not in" in done.stderr
    assert (tmp_path / "read").read_text() == "[][1][1][]", "there and back, unpacked"
    assert done.stdout.count("| 12.0% | 36.0% (-2.0, error 6.0) | 36.0% (-2.0, error 6.0) | 38.0% | 25.0% | 42, 50 tests |") == 2
    assert [shift["predictor"] for shift in json.loads(kept.read_text())["shifts"]] == ["n-grams"] * 2
