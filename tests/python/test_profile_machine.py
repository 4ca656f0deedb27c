# SPDX-License-Identifier: Apache-2.0
"""spillway profile without a model, and which machine spillway plan then plans for. No test checks a speed."""

import json
import os

import pytest
from cli_checks import WRONG_USAGE

SHORT = ["--seconds", "0.5", "--device", "cpu"]
MODEL = "dummy:opt-125m"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """An environment with a cache of its own, for all tests here."""
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def report(spillway, cache):
    """The report of one measurement of this machine."""
    return spillway.run("profile", *SHORT, "--json", env=cache).json()


def plan(spillway, env, *options):
    done = spillway.run("plan", MODEL, "--gen-len", "4", "--prompt-len", "16", "--json", *options, env=env)
    return done.json(), done.err


def kept_file(env):
    return os.path.join(env["XDG_CACHE_HOME"], "spillway", "hardware.json")


def test_the_file_has_every_rate_that_a_plan_needs(report, cache):
    assert report["file"] == kept_file(cache)
    with open(report["file"], encoding="utf-8") as file:
        machine = json.load(file)
    assert machine == report["hardware"]
    host = machine["host"]
    assert host["memory_gib"] > 0 and host["read_gb_per_s"] > 0 and host["tflops"] > 0
    for kind in ("F16", "BF16", "Q4_0", "Q4_K", "Q6_K", "Q8_0", "G4"):
        points = host["linear_tflops"][kind]
        assert points[0][0] == 1 and len(points) >= 2
        assert all(rate > 0 for _, rate in points)
    assert set(host["attention_gb_per_s"]) == {"f32", "f16", "bf16", "int8", "int4"}
    for rates in host["attention_gb_per_s"].values():
        assert set(rates) == {"1", "4", "8"} and min(rates.values()) > 0
    assert machine["disk"]["read_gb_per_s"] > 0 and machine["disk"]["write_gb_per_s"] > 0
    assert len(machine["measured"]) == len("2026-11-16")


def test_people_see_a_summary(spillway, tmp_path):
    done = spillway.run("profile", *SHORT, "-o", tmp_path / "machine.json", "--disk-dir", tmp_path)
    assert done.code == 0, done.err
    for word in ("GFLOP/s", "attention", "disk", "machine.json"):
        assert word in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


def test_plan_uses_what_was_measured_here_and_says_so(spillway, report, cache):
    found, errors = plan(spillway, cache)
    assert "measured here on " + report["hardware"]["measured"] in found["machine_source"]
    assert found["machine"] == report["hardware"]["name"]
    assert errors == ""


def test_plan_without_a_measurement_says_so(spillway, tmp_path):
    found, _ = plan(spillway, os.environ | {"XDG_CACHE_HOME": str(tmp_path)})
    assert "not measured" in found["machine_source"] and "spillway profile" in found["machine_source"]
    assert list(tmp_path.iterdir()) == [], "nothing is measured unasked"


def test_the_file_of_another_machine_is_not_used(spillway, report, tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    other = dict(report["hardware"], host=dict(report["hardware"]["host"], name="Another"))
    os.makedirs(tmp_path / "spillway")
    (tmp_path / "spillway" / "hardware.json").write_text(json.dumps(other))
    found, _ = plan(spillway, env)
    assert "not measured" in found["machine_source"]
    named, _ = plan(spillway, env, "--hardware", kept_file(env))
    assert "measured on" in named["machine_source"]


def test_a_damaged_file_is_an_error_where_it_was_asked_for(spillway, tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    os.makedirs(tmp_path / "spillway")
    path = tmp_path / "spillway" / "hardware.json"
    path.write_text('{"version": 1, "machines": []}')
    spillway.run("plan", MODEL, "--hardware", path).assert_one_line_error(WRONG_USAGE)
    found, errors = plan(spillway, env)
    assert "not measured" in found["machine_source"]
    assert "hardware.json" in errors and len(errors.splitlines()) == 1
    # The cache's own file is replaced, another file is not.
    spillway.run("profile", *SHORT, "-o", path).assert_one_line_error(WRONG_USAGE)
    assert spillway.run("profile", *SHORT, env=env).code == 0
    assert "measured here" in plan(spillway, env)[0]["machine_source"]


def test_wrong_usage_is_found_before_anything_is_measured(spillway, tmp_path):
    spillway.run("profile", "--seconds", "0").assert_one_line_error(WRONG_USAGE)
    spillway.run("profile", "--softmax").assert_one_line_error(WRONG_USAGE)
    done = spillway.run("profile", *SHORT, "-o", tmp_path / "x.json", "--disk-dir", tmp_path / "gone")
    done.assert_one_line_error(WRONG_USAGE)
    assert "gone" in done.err
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    spillway.run("profile", *SHORT, env=env).assert_one_line_error(WRONG_USAGE)
