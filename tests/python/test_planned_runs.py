# SPDX-License-Identifier: Apache-2.0
"""Commands without placement options call the planner, say so, and report its estimates."""

import json
import os
import re

import pytest

from cli_checks import FAILED, WRONG_USAGE

MODEL = "dummy:opt-125m"
SHORT = ["--device", "cpu", "--prompt-len", "8", "--gen-len", "3", "--repeat", "1"]


@pytest.fixture
def disk(tmp_path):
    """An empty folder to be --disk-dir; nothing may be left in it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield ["--disk-memory", "1GiB", "--disk-dir", folder]
    assert os.listdir(folder) == []


def bench(spillway, *options):
    done = spillway.run("bench", MODEL, *SHORT, *options, "--json")
    assert done.code == 0, done.err
    return done.json(), done.err


def test_what_does_not_fit_is_planned(spillway, disk):
    report, log = bench(spillway, "--host-memory", "200MiB", *disk, "--verbose")
    assert 0 < report["plan"]["weights"]["disk"] < 100
    line = next(line for line in log.splitlines() if "plan: " in line)
    assert "in host memory/on disk" in line and "predicted, bound by" in line and "GPU" not in line
    assert report["predicted"]["of_measured"] > 0
    assert report["predicted"]["bottleneck"] in ("CPU", "disk read", "disk write")


def test_a_plan_that_was_found_gives_the_same_when_passed_back(spillway, disk, tmp_path):
    found, _ = bench(spillway, "--host-memory", "200MiB", *disk)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(found["plan"]))
    again, _ = bench(spillway, "--host-memory", "200MiB", *disk, "--plan", file)
    assert again["plan"] == found["plan"]
    assert again["decode"]["links"]["disk_read_weights"]["bytes"] == found["decode"]["links"]["disk_read_weights"]["bytes"]


@pytest.mark.parametrize("memory", ["60MiB", "150MiB", "200MiB", "2GiB"])
def test_plan_says_what_a_run_does(spillway, disk, memory):
    """Both refuse, or both have the same plan and estimate."""
    options = [MODEL, "--device", "cpu", "--prompt-len", "8", "--gen-len", "3", "--host-memory", memory, *disk[:2], "--json"]
    run = spillway.run("bench", *options, *disk[2:], "--repeat", "1")
    planned = spillway.run("plan", *options, "--no-advice")
    assert planned.code == run.code, planned.err + run.err
    if run.code != 0:
        assert run.code == FAILED
        named = [re.search(r"--host-memory (\d+)MiB", done.err).group(1) for done in (run, planned)]
        assert named[0] == named[1]
        return
    planned, run = planned.json(), run.json()
    for found in (planned["plan"], run["plan"]):
        found.pop("made_for", None)
    assert planned["plan"] == run["plan"]
    del run["predicted"]["of_measured"]
    assert planned["predicted"] == run["predicted"]


def test_options_for_a_gpu_are_said_to_be_without_effect_where_there_is_none(spillway):
    _, log = bench(spillway, "--gpu-memory", "1GiB", "--weights", "50,50,0", "--attention", "gpu")
    assert "--gpu-memory 1GiB, --attention gpu" in log and "--weights 50,50,0" in log
    assert bench(spillway, "--weights", "0,100,0")[1] == ""


def test_what_fits_stays_where_it_is(spillway):
    report, log = bench(spillway, "--host-memory", "2GiB", "--verbose")
    assert "plan: everything on cpu" in log
    assert report["plan"]["weights"]["disk"] == 0


def test_options_hold_and_the_rest_is_found_around_them(spillway, disk):
    options = ["--host-memory", "200MiB", *disk, "--batch", "4", "--schedule", "zigzag", "--micro-batch", "2"]
    report, _ = bench(spillway, *options)
    assert report["plan"]["weights"]["disk"] > 0
    assert (report["plan"]["schedule"], report["plan"]["micro_batch"]) == ("zigzag", 2)


def test_as_many_sequences_as_are_the_fastest(spillway, disk):
    report, _ = bench(spillway, "--host-memory", "300MiB", *disk, "--batch", "auto")
    assert report["batch"] == report["plan"]["sequences"] > 1
    spillway.run("bench", MODEL, *SHORT, "--batch", "many").assert_one_line_error(WRONG_USAGE)
    spillway.run("bench", MODEL, *SHORT, "--batch", "0").assert_one_line_error(WRONG_USAGE)


def test_memory_that_is_refused_is_planned_around(spillway, disk):
    """An allocation within the budget is refused once, as if another program had taken the memory: the next plan is tried."""
    options = ["bench", MODEL, *SHORT, "--no-mmap", "--host-memory", "400MiB", *disk, "--json"]
    done = spillway.run(*options, env=os.environ | {"SPILLWAY_FAULTS": "alloc.host:1:enomem"})
    assert done.code == 0, done.err
    assert "went on with the next plan, within 360 MiB of host memory" in done.err and done.err.count("\n") == 1
    spillway.run(*options, env=os.environ | {"SPILLWAY_FAULTS": "alloc.host:1+:enomem"}).assert_one_line_error(FAILED)


def test_nothing_is_planned_around_a_plan_that_is_given(spillway, disk):
    options = ["bench", MODEL, *SHORT, "--weights", "0,50,50", "--host-memory", "400MiB", *disk]
    spillway.run(*options, env=os.environ | {"SPILLWAY_FAULTS": "alloc.host:1:enomem"}).assert_one_line_error(FAILED)


def test_run_reports_what_was_predicted(spillway):
    done = spillway.run("run", "dummy:opt-125m", "--device", "cpu", "--ids", "5,6,7", "-n", "4", "--json")
    assert done.code == 0, done.err
    predicted = done.json()["predicted"]
    assert predicted["decode_tokens_per_s"] > 0 and predicted["first_token_s"] > 0
    assert predicted["of_measured"] > 0
