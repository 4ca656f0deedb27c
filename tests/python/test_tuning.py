# SPDX-License-Identifier: Apache-2.0
"""spillway profile and the tuning file: measured once, used by the other commands, never trusted blindly."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

FAILED = 1
WRONG_USAGE = 2
SHAPES = {(64, 64), (32, 64), (128, 64), (64, 128)}  # tiny_llama.py's layers, [N, K]
HALF_MODEL = "dummy:smollm2-135m:f16"
IDS = list(range(1, 13))


@pytest.fixture
def cache(tmp_path):
    """An environment with a cache of its own."""
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def measured(spillway, tiny_model, tmp_path):
    """A tuning file with the tiny model's shapes."""
    path = tmp_path / "measured.json"
    assert spillway.run("profile", tiny_model, "-o", path).code == 0
    return path


def bench(spillway, model, *options, env=None):
    work = ["--prompt-len", "8", "--gen-len", "2", "--repeat", "1", "--json"]
    done = spillway.run("bench", model, *work, *options, env=env)
    return done.json(), done.err


def test_profile_measures_every_shape_of_the_model(spillway, tiny_model, cache, tmp_path):
    report = spillway.run("profile", tiny_model, "--json", env=cache).json()
    path = tmp_path / "cache" / "spillway" / "tuning.json"
    assert report["file"] == str(path)
    assert SHAPES <= {(row["n"], row["k"]) for row in report["linear"]}
    stored = json.loads(path.read_text())
    assert stored["format"] == "spillway-tuning" and stored["version"] == 1
    (machine,) = stored["machines"]
    assert machine["hardware"] == report["hardware"] and machine["threads"] == report["threads"]
    assert len(machine["linear"]) == len(report["linear"])
    for row in machine["linear"]:
        assert row["m1"] >= 2 and row["m2"] >= 2


def busy_share():
    """The busy share of all processors over a third of a second, as the system counts it."""

    def ticks():
        with open("/proc/stat", encoding="ascii") as file:
            columns = [int(word) for word in file.readline().split()[1:9]]
        return sum(columns), columns[3] + columns[4]

    total, idle = ticks()
    time.sleep(0.3)
    later, idle_later = ticks()
    return 1 - (idle_later - idle) / max(1, later - total)


def test_a_busy_machine_is_pointed_out(spillway, tiny_model, tmp_path):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        if busy_share() < 0.2:  # a container's quota, on a large machine
            pytest.skip("this process cannot keep the machine busy")
        done = spillway.run("profile", tiny_model, "-o", tmp_path / "tuning.json")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.code == 0, done.err
    assert re.search(r"other programs used \d+\.\d of this machine's \d+ processors, so the figures are too low", done.err)


def test_profile_for_people_is_a_table(spillway, tiny_model, cache):
    done = spillway.run("profile", tiny_model, env=cache)
    assert done.code == 0
    assert all("other programs used" in line for line in done.err.splitlines()), done.err  # which tests that run beside each other cause
    assert "GEMM from" in done.out and "tuning.json" in done.out


def test_profile_adds_to_what_is_there(spillway, tiny_model, measured):
    before = json.loads(measured.read_text())
    done = spillway.run("profile", tiny_model, "-o", measured, "--threads", "1" if before["machines"][0]["threads"] > 1 else "2")
    assert done.code == 0
    after = json.loads(measured.read_text())["machines"]
    assert len(after) == 2 and before["machines"][0] in after


def test_commands_use_this_machine_s_file(spillway, tiny_model, cache):
    assert bench(spillway, tiny_model, env=cache)[0]["tuning"] is None
    report = spillway.run("profile", tiny_model, "--json", env=cache).json()
    assert bench(spillway, tiny_model, env=cache)[0]["tuning"] == {"file": report["file"], "shapes": len(report["linear"])}
    assert bench(spillway, tiny_model, "--no-tuning", env=cache)[0]["tuning"] is None
    assert bench(spillway, tiny_model, "--deterministic", env=cache)[0]["tuning"] is None


def test_a_file_of_another_machine_is_not_used(spillway, tiny_model, measured):
    assert bench(spillway, tiny_model, "--tuning", measured)[0]["tuning"] is not None
    measured.write_text(measured.read_text().replace('"hardware": "', '"hardware": "not '))
    result, error = bench(spillway, tiny_model, "--tuning", measured)
    assert result["tuning"] is None and error == ""


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"format": "spillway-tuning", "version": 999, "machines": []}'])
def test_a_broken_file_is_ignored_with_a_warning(spillway, tiny_model, tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    plain = spillway.run("run", tiny_model, "-p", "The river", "-n", "8", "--no-tuning")
    done = spillway.run("run", tiny_model, "-p", "The river", "-n", "8", "--tuning", path)
    assert done.code == 0 and done.out == plain.out
    (line,) = done.err.splitlines()
    assert "warning" in line and "broken.json" in line


def test_a_broken_file_in_the_cache_is_replaced_but_others_are_not_overwritten(spillway, tiny_model, cache, tmp_path):
    path = tmp_path / "cache" / "spillway" / "tuning.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert spillway.run("profile", tiny_model, env=cache).code == 0
    assert json.loads(path.read_text())["machines"]
    precious = tmp_path / "precious.txt"
    precious.write_text("a letter")
    spillway.run("profile", tiny_model, "-o", precious).assert_one_line_error(WRONG_USAGE)
    assert precious.read_text() == "a letter"


def test_a_file_that_was_asked_for_must_exist(spillway, tiny_model, tmp_path):
    done = spillway.run("run", tiny_model, "-p", "x", "--tuning", tmp_path / "none.json")
    done.assert_one_line_error(WRONG_USAGE)
    assert "none.json" in done.err


def test_tuning_and_no_tuning_exclude_each_other(spillway, tiny_model, measured):
    spillway.run("run", tiny_model, "-p", "x", "--tuning", measured, "--no-tuning").assert_one_line_error(WRONG_USAGE)


def test_profile_needs_a_model_that_is_there_and_a_place(spillway, tiny_model, tmp_path):
    spillway.run("profile", tmp_path / "gone.gguf").assert_one_line_error(WRONG_USAGE)
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    spillway.run("profile", tiny_model, env=env).assert_one_line_error(WRONG_USAGE)


def test_the_file_decides_which_kernels_run(spillway, tmp_path):
    """Kernels round differently, so the logits show which one ran; --deterministic uses no tuning file."""
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "tuning.json"
    assert spillway.run("profile", HALF_MODEL, "-o", path).code == 0
    # The token counts from which few-token and matrix kernels are used: each kind in turn gets all 12 tokens.
    points = {"one by one": (1000, 1000), "few": (2, 1000), "matrix": (2, 2)}
    logits = {}
    for kind, (m1, m2) in points.items():
        stored = json.loads(path.read_text())
        for row in stored["machines"][0]["linear"]:
            row.update(m1=m1, m2=m2)
        path.write_text(json.dumps(stored))
        for mode in ("", "--deterministic"):
            options = ["--tuning", path, *filter(None, [mode])]
            logits[kind, mode] = spillway.logits(HALF_MODEL, IDS, tmp_path / "logits", *options)
    scale = numpy.abs(logits["few", ""]).max()
    for kind in points:
        assert (logits[kind, "--deterministic"] == logits["few", "--deterministic"]).all()
        assert numpy.abs(logits[kind, ""] - logits["few", ""]).max() < 0.1 * scale
    features = spillway.run("inspect", "--devices").out
    if "bf16" not in features:
        pytest.skip("no bfloat16 products here: there is no third kernel to choose")
    # One token keeps more of its bits than bfloat16 has. (With AMX the kernels for few tokens round as the matrix ones do.)
    assert (logits["one by one", ""] != logits["matrix", ""]).any()


def test_what_is_deterministic_is_not_measured(spillway):
    done = spillway.run("bench", "dummy:opt-125m", "--device", "cpu", "--tune", "--deterministic")
    done.assert_one_line_error(2)
    assert "--tune" in done.err and "--deterministic" in done.err


def test_there_is_nothing_to_share_without_a_gpu(spillway):
    done = spillway.run("bench", "dummy:opt-125m", "--device", "cpu", "--tune", "--prompt-len", "4", "--gen-len", "2", "--repeat", "1", "--json")
    assert done.code == 0, done.err
