# SPDX-License-Identifier: Apache-2.0
"""Checks what spillway bench counts: the steps and bytes of each phase of one run, whatever ran before. No test checks times."""

import json
import os

import pytest

CPU = ["--device", "cpu"]
LAYERS = 12
# The matrices of OPT-125M's layers: 12 * hidden^2 of two bytes in each.
MATRICES = LAYERS * 12 * 768 * 768 * 2


@pytest.fixture
def disk(tmp_path):
    """An empty folder to be --disk-dir; nothing may be left in it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield ["--disk-memory", "1GiB", "--disk-dir", folder]
    assert os.listdir(folder) == []


def bench(spillway, *options, **more):
    done = spillway.run("bench", "dummy:opt-125m", *CPU, *options, "--json", **more)
    assert done.code == 0, done.err
    return done.json()


def moved(phase):
    """Bytes by link, for the links that were used."""
    return {name: link["bytes"] for name, link in phase["links"].items() if link["bytes"] > 0}


@pytest.mark.parametrize("share", [50, 100])
@pytest.mark.parametrize("runs", [["--repeat", "1"], ["--repeat", "2"], ["--repeat", "5"], ["--repeat", "2", "--warm-up", "2"]])
def test_a_step_reads_what_the_plan_has_on_disk(spillway, disk, share, runs):
    result = bench(spillway, "--weights", f"0,{100 - share},{share}", *disk, "--prompt-len", "8", "--gen-len", "4", *runs)
    on_disk = MATRICES * share // 100
    prefill, decode = result["prefill"], result["decode"]
    assert (prefill["steps"], decode["steps"]) == (1, 3)
    assert moved(prefill) == {"disk_read_weights": on_disk}
    assert moved(decode) == {"disk_read_weights": 3 * on_disk}


@pytest.mark.parametrize("repeat", ["1", "3"])
def test_rates_are_of_one_runs_bytes_and_seconds(spillway, disk, repeat):
    sizes = ["--prompt-len", "8", "--gen-len", "4", "--batch", "2", "--repeat", repeat]
    result = bench(spillway, "--weights", "0,0,100", *disk, *sizes)
    assert result["prefill"]["seconds"] == result["prefill_s"] and result["decode"]["seconds"] == pytest.approx(result["decode_s"])
    for phase in (result["prefill"], result["decode"]):
        link = phase["links"]["disk_read_weights"]
        assert link["gb_per_s"] == pytest.approx(link["bytes"] / phase["seconds"] / 1e9)
        assert sum(phase["stall_s"].values()) <= phase["seconds"]
    assert 0 < result["first_token_s"]["mean"] <= result["first_token_s"]["max"] <= result["prefill_s"]


@pytest.mark.parametrize("placement", [[], ["--weights", "0,40,60"], ["--kv", "50,0,50"], ["--activations", "0,0,100"]])
def test_memory_is_what_was_predicted(spillway, disk, placement):
    options = [*placement, *disk, "--prompt-len", "40", "--gen-len", "4", "--batch", "2", "--repeat", "1"]
    host = bench(spillway, *options)["memory"]["host"]
    assert host["measured_bytes"] == host["predicted_bytes"] > 0
    assert host["measured_workspace_bytes"] <= host["predicted_workspace_bytes"]


@pytest.mark.parametrize("option", ["--kv", "--activations"])
def test_nor_do_kv_and_activations_add_up_over_runs(spillway, disk, option):
    options = [option, "0,0,100", *disk, "--prompt-len", "40", "--gen-len", "4", "--batch", "2"]
    once, often = (bench(spillway, *options, "--repeat", repeat) for repeat in ("1", "3"))
    assert moved(once["prefill"]) and moved(once["decode"])
    for phase in ("prefill", "decode"):
        assert moved(often[phase]) == moved(once[phase])


def test_terms_are_of_one_run(spillway, disk):
    options = ["--weights", "0,0,100", *disk, "--prompt-len", "8", "--gen-len", "3", "--no-overlap"]
    for phase in (bench(spillway, *options, "--repeat", "4")[name] for name in ("prefill", "decode")):
        terms = phase["terms_s"]
        assert 0 < terms["load_weights"] <= phase["seconds"]
        assert 0 < terms["compute"] <= phase["seconds"] and terms["activations"] == 0


def test_steps_that_are_left_out_move_nothing(spillway, disk):
    options = ["--weights", "0,0,100", *disk, "--prompt-len", "8", "--gen-len", "9", "--steps", "2"]
    result = bench(spillway, *options, "--repeat", "2")
    assert result["steps"] == result["decode"]["steps"] == 2
    assert moved(result["decode"]) == {"disk_read_weights": 2 * MATRICES}
    assert result["decode_s"] == pytest.approx(result["decode"]["seconds"] * 8 / 2)


def test_prompts_that_are_cut_and_no_decode_step(spillway):
    result = bench(spillway, "--prompt-len", "8", "--gen-len", "1", "--batch", "3", "--chunk", "5")
    assert result["prefill"]["steps"] == 5  # 24 tokens in steps of 5
    assert result["decode_tokens_per_s"] is None and "decode" not in result


@pytest.mark.parametrize("chunk", ["2", "3", "16"])
def test_all_decode_together_when_their_prompts_are_done(spillway, chunk):
    """Even if a prompt takes longer than another's answer, or the last step of one has a single token."""
    result = bench(spillway, "--prompt-len", "7", "--gen-len", "3", "--batch", "2", "--chunk", chunk, "--repeat", "1")
    assert result["prefill"]["steps"] == {"2": 7, "3": 5, "16": 1}[chunk]
    assert result["decode"]["steps"] == 2


def test_blocks_come_one_after_the_other(spillway, disk):
    """In the row-by-row schedule a batch block is a micro-batch, and each reads the weights for itself."""
    options = ["--weights", "0,0,100", *disk, "--prompt-len", "8", "--gen-len", "3", "--batch", "5", "--micro-batch", "2"]
    row = bench(spillway, *options, "--schedule", "row", "--repeat", "2")
    assert (row["prefill"]["steps"], row["decode"]["steps"]) == (3, 3 * 2)
    assert moved(row["prefill"]) == {"disk_read_weights": 3 * MATRICES}
    assert moved(row["decode"]) == {"disk_read_weights": 6 * MATRICES}
    zigzag = bench(spillway, *options, "--repeat", "2")
    assert (zigzag["prefill"]["steps"], zigzag["decode"]["steps"]) == (1, 2)


@pytest.mark.parametrize("runs", [["--repeat", "1"], ["--repeat", "3"], ["--repeat", "1", "--warm-up", "1"]])
def test_requests_of_mixed_lengths_are_counted_in_the_same_way(spillway, disk, tmp_path, runs):
    lengths = tmp_path / "lengths"
    lengths.write_text("8 3\n4 5\n6 2\n")
    result = bench(spillway, "--weights", "0,50,50", *disk, "--lengths", lengths, "--batch", "2", "--schedule", "zigzag", *runs)
    assert result["predicted"]["of_measured"] > 0
    assert result["steps"] == result["run"]["steps"] == 5 + 2
    assert moved(result["run"]) == {"disk_read_weights": 7 * MATRICES // 2}


def test_what_the_engine_survives_bench_survives(spillway, disk):
    """A page of KV that comes back changed is computed again, as in every other command."""
    options = ["--kv", "0,0,100", *disk, "--prompt-len", "40", "--gen-len", "4", "--repeat", "1"]
    done = spillway.run("bench", "dummy:opt-125m", *CPU, *options, env=os.environ | {"SPILLWAY_FAULTS": "spill.flip:7:eio"})
    assert done.code == 0, done.err
    assert "computed again" in done.err


def test_a_drawing_has_every_phase_and_perfetto_reads_it(spillway, disk, tmp_path):
    drawing = tmp_path / "drawing.json"
    options = ["--weights", "0,50,50", *disk, "--prompt-len", "8", "--gen-len", "20", "--repeat", "1", "--timeline", drawing]
    result = bench(spillway, *options)
    phases = result["timeline"]["phases"]
    assert sorted(phases) == ["decode", "prefill"]
    for phase in phases.values():
        assert all(0 <= share <= 1 for share in phase["busy"].values())
        assert phase["busy"]["gpu"] > 0  # the device that computes, even if it is a CPU
        assert phase["busy"]["to_gpu"] > 0  # weights that come from the disk
    events = json.loads(drawing.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"qkv", "attention", "mlp_up", "mlp_down", "head", "weights"} <= names
    # A few steps of it are enough to see.
    assert sum(event["name"] == "head" for event in events) == 9


def test_where_nothing_can_be_drawn_nothing_is_measured(spillway, tmp_path):
    done = spillway.run("bench", "dummy:opt-125m", *CPU, "--timeline", tmp_path / "none" / "drawing.json")
    done.assert_one_line_error(1)
    assert "none" in done.err
