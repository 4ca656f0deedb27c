# SPDX-License-Identifier: Apache-2.0
"""spillway plan with a given plan estimates it instead of searching."""

import json
import pathlib
import re
import sys

import pytest

from cli_checks import FAILED, WRONG_USAGE

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
import paper_tables  # noqa: E402

T4 = ["plan", "dummy:opt-30b", "--hardware", "t4", "--requests", "16", "--json"]


def test_a_plan_that_is_given_is_priced(spillway, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"weights": {"gpu": 10, "host": 90}, "kv": {"host": 100}, "micro_batch": 8}))
    priced = spillway.run(*T4, "--plan", file).json()
    assert priced["plan"]["weights"]["host"] == 90
    assert priced["plan"]["micro_batch"] == 8
    assert priced["sequences"] == 16
    assert priced["warnings"] == []
    options = ["--weights", "10,90,0", "--kv", "0,100,0", "--micro-batch", "8"]
    by_hand = spillway.run(*T4, *options, "--cpu-linear", "0").json()
    assert by_hand["predicted"] == priced["predicted"]
    # Fields that the options leave open are estimated as in a run: with the CPU's share of linear layers.
    alone = ["plan", "dummy:opt-30b", "--hardware", "t4", "--weights", "20,80,0", "--json"]
    shared = spillway.run(*alone).json()
    assert shared["plan"]["cpu_linear"]
    without = spillway.run(*alone, "--cpu-linear", "0").json()
    assert shared["predicted"]["generated_tokens_per_s"] > 1.3 * without["predicted"]["generated_tokens_per_s"]
    serial = spillway.run(*T4, "--plan", file, "--no-overlap").json()
    assert serial["predicted"]["decode_s"] > priced["predicted"]["decode_s"]
    found = spillway.run(*T4, "--no-advice").json()
    assert found["predicted"]["generated_tokens_per_s"] > priced["predicted"]["generated_tokens_per_s"]


def test_the_example_by_hand_of_help_fits(spillway):
    text = spillway.run("help", "--all", "plan").out.replace(" \\\n    ", " ")
    (example,) = [line.split()[1:] for line in text.splitlines() if line.startswith("  spillway plan") and "--weights" in line]
    assert spillway.run(*example, "--json").json()["warnings"] == []


def test_figures_are_for_people(spillway):
    """Reports say "1 request", not "1 requests", and no time has an exponent."""
    by_hand = ["--weights", "0,0,100", "--disk-memory", "400GiB", "--gen-len", "512"]
    done = spillway.run("plan", "dummy:opt-175b", "--hardware", "t4", *by_hand)
    assert done.code == 0, done.err
    assert "1 request, a prompt of 512, 512 tokens each" in done.out
    assert "concurrent  1 sequence\n" in done.out
    assert " h " in done.out and "e+" not in done.out


def test_the_first_lines_say_it_in_words(spillway):
    """Whether it fits, what lives where, how fast it is: the same figures as in JSON."""
    asked = ["plan", "dummy:opt-30b", "--hardware", "t4", "--no-advice"]
    found = spillway.run(*asked, "--json").json()
    fits, homes, speed, empty, machine = spillway.run(*asked).out.splitlines()[:5]
    assert re.fullmatch(r"It fits: it needs \S+ GiB of the \S+ GiB of GPU memory and \S+ GiB of the \S+ GiB of host memory\.", fits)
    assert re.fullmatch(r"Weights: \d+% on the GPU and \d+% in host memory\. KV cache: .* (GPU|memory)\.", homes)
    one, many = (float(rate) for rate in re.findall(r"([\d.]+) tokens/s", speed))
    assert one == pytest.approx(found["predicted"]["decode_tokens_per_s"], rel=0.005)
    assert many == pytest.approx(found["as_many_as_pay"]["predicted"]["decode_tokens_per_s"], rel=0.005)
    assert f"; {found['as_many_as_pay']['requests']} requests together " in speed
    assert empty == "" and machine.startswith("machine ")
    some = spillway.run(*asked, "--requests", "8", "--batch", "4").out.splitlines()[2]
    assert some.startswith("Estimated speed: 8 requests, 4 of them running, together ")
    too_large = spillway.run(*asked, "--weights", "100,0,0").out
    assert too_large.startswith("It does not fit: it needs ")
    assert "Weights: all on the GPU." in too_large


def test_the_model_is_called_what_it_was_called(spillway, tiny_model):
    assert f"model       {tiny_model.stem}, " in spillway.run("plan", tiny_model, "--hardware", "t4").out


@pytest.mark.parametrize(
    ("options", "memory"),
    [(["--weights", "100,0,0"], "GPU memory"), (["--weights", "0,100,0", "--host-memory", "20GiB"], "host memory")],
)
def test_a_plan_that_does_not_fit_is_priced_with_a_warning(spillway, options, memory):
    priced = spillway.run(*T4, *options).json()
    assert priced["predicted"]["generated_tokens_per_s"] > 0
    assert any("does not fit" in warning and memory in warning for warning in priced["warnings"])


def test_named_matrices_are_priced_and_take_their_memory(spillway, tmp_path):
    file = tmp_path / "plan.json"

    def price(*overrides):
        file.write_text(json.dumps({"weights": {"host": 100}, "kv": {"host": 100}, "overrides": list(overrides)}))
        return spillway.run(*T4, "--plan", file)

    all_away = price().json()
    some_home = price({"role": "query", "home": "gpu"}, {"layers": "0-3", "role": "query", "home": "host"}).json()
    moved = 44 * 7168 * 7168 * 2  # of 48 layers
    assert some_home["memory"]["gpu"]["by_tag"]["weights"] - all_away["memory"]["gpu"]["by_tag"]["weights"] == moved
    assert some_home["predicted"]["decode_s"] < all_away["predicted"]["decode_s"]
    assert some_home["plan"]["overrides"][1] == {"layers": "0-3", "role": "query", "home": "host"}
    price({"role": "querry", "home": "gpu"}).assert_one_line_error(WRONG_USAGE)
    beyond = price({"layers": "48", "home": "gpu"})
    beyond.assert_one_line_error(WRONG_USAGE)
    assert "layers 0 to 47" in beyond.err


def test_residence_by_gain_becomes_named_matrices(spillway, tmp_path):
    file = tmp_path / "plan.json"
    command = ("plan", "dummy:opt-13b", "--hardware", "h200", "--gpu-memory", "10GiB", "--no-advice", "--json")
    found = spillway.run(*command).json()
    assert "overrides" not in found["plan"] and found["plan"]["cpu_linear"]
    even = found["plan"] | {"weights": {"gpu": 20, "host": 80}}

    def price(**more):
        file.write_text(json.dumps(even | more))
        return spillway.run(*command, "--plan", file)

    spread = price(residence="even").json()
    assert spread["plan"] == price().json()["plan"]
    by_gain = price(residence="gain").json()
    roles = {entry["role"]: entry["home"] for entry in by_gain["plan"]["overrides"]}
    assert roles["attention_out"] == "gpu" and "mlp_down" not in roles  # small ops gain the most
    weights = [plan["memory"]["gpu"]["by_tag"]["weights"] for plan in (by_gain, spread)]
    assert weights[0] == pytest.approx(weights[1], rel=0.05)
    # The resulting plan can be used as a plan file.
    file.write_text(json.dumps(by_gain["plan"]))
    again = spillway.run(*command, "--plan", file).json()
    assert again["plan"] == by_gain["plan"] and again["predicted"] == by_gain["predicted"]
    beside = price(residence="gain", overrides=[{"role": "query", "home": "gpu"}])
    beside.assert_one_line_error(WRONG_USAGE)
    assert "residence" in beside.err


def test_sparse_attention_is_suggested_and_priced(spillway):
    long = ("plan", "dummy:opt-6.7b", "--hardware", "h200", "--requests", "64", "--prompt-len", "1000", "--gen-len", "1000", "--json")
    dense = spillway.run(*long).json()
    sparse = spillway.run(*long, "--attention-topk", "0.1", "--no-advice").json()
    gain = sparse["predicted"]["generated_tokens_per_s"] / dense["predicted"]["generated_tokens_per_s"]
    suggested = {entry["what"]: entry["gain"] for entry in dense["would_help"]}
    assert suggested["--attention-topk 0.1"] == pytest.approx(gain)
    assert gain > 1.05
    assert sparse["plan"]["attention_topk"] == pytest.approx(0.1)
    assert dense["plan"]["attention_topk"] == 0
    spillway.run(*long, "--attention-topk", "2").assert_one_line_error(WRONG_USAGE)


def test_requests_of_mixed_lengths_are_priced_by_the_schedule(spillway, tmp_path):
    lengths = tmp_path / "lengths"
    lengths.write_text("prompt answer\n" + "100 10\n100 200\n" * 16 + "100000 1\n")
    options = ("plan", "dummy:opt-6.7b", "--hardware", "t4", "--weights", "50,50,0", "--kv", "0,100,0", "--batch", "8", "--json")
    some = ("--lengths", lengths, "--requests", "32")
    continuous = spillway.run(*options, *some).json()
    assert continuous["requests"] == 32
    zigzag = spillway.run(*options, *some, "--schedule", "zigzag").json()
    assert zigzag["predicted"]["decode_s"] > 1.3 * continuous["predicted"]["decode_s"]
    spillway.run(*options, *some, "--gen-len", "3").assert_one_line_error(WRONG_USAGE)
    spillway.run(*options, "--lengths", tmp_path / "absent").assert_one_line_error(WRONG_USAGE)


def test_a_plan_is_found_around_what_is_given(spillway):
    found = spillway.run(*T4, "--micro-batch", "8", "--attention", "cpu", "--no-advice").json()
    assert (found["plan"]["micro_batch"], found["plan"]["attention"]) == (8, "cpu")
    free = spillway.run(*T4, "--no-advice").json()
    assert free["predicted"]["generated_tokens_per_s"] >= 0.995 * found["predicted"]["generated_tokens_per_s"]


def test_where_kv_alone_is_given_the_weights_are_found(spillway):
    found = spillway.run(*T4[:-2], "8", "--json", "--kv", "100,0,0").json()
    assert found["plan"]["kv"]["gpu"] == 100
    assert 0 < found["plan"]["weights"]["gpu"] < 50
    assert found["warnings"] == []


CPU = ["plan", "dummy:opt-6.7b", "--hardware", "t4", "--device", "cpu", "--no-advice"]


def test_without_a_number_of_requests_both_answers_are_given(spillway):
    asked = ["plan", "dummy:opt-30b", "--hardware", "t4"]
    found = spillway.run(*asked, "--json").json()
    many = found["as_many_as_pay"]
    assert found["requests"] == 1 and many["requests"] > 1
    # Its estimate for many requests equals the planner's for the same number.
    alone = spillway.run(*asked, "--requests", many["requests"], "--batch", many["requests"], "--json", "--no-advice").json()
    rate = "generated_tokens_per_s"
    assert many["predicted"][rate] == pytest.approx(alone["predicted"][rate], rel=0.01)
    assert many["predicted"][rate] > 2 * found["predicted"][rate]
    assert "as_many_as_pay" not in spillway.run(*asked, "--requests", "1", "--json", "--no-advice").json()
    (line,) = [line for line in spillway.run(*asked).out.splitlines() if line.startswith("batched")]
    assert f"{many['requests']} such requests" in line


def test_no_gpu_is_named_where_none_computes(spillway):
    done = spillway.run(*CPU)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    (machine,) = [line for line in lines if line.startswith("machine")]
    assert "without its GPU" in machine and not any("GPU" in line for line in lines if line != machine)
    assert "Weights: all in host memory. KV cache: all in host memory." in lines
    assert "100.0% host, 0.0% disk" in done.out
    planned = spillway.run(*CPU, "--json").json()
    assert set(planned["predicted"]["terms_s"]) == {"CPU", "disk read", "disk write"}
    assert planned["predicted"]["terms_s"]["CPU"]["decode_step_s"] > 0
    assert "gpu" not in planned["memory"]
    warned = spillway.run(*CPU, "--gpu-memory", "1GiB", "--json").json()["warnings"]
    assert any("--gpu-memory 1GiB" in warning for warning in warned)
    spillway.run(*CPU[:-2], "fpga").assert_one_line_error(WRONG_USAGE)


def test_lengths_beyond_the_models_positions_are_refused(spillway):
    done = spillway.run(*T4, "--prompt-len", "10000")
    done.assert_one_line_error(WRONG_USAGE)
    assert "2048 positions" in done.err


def test_machines_whose_prices_are_far_off_are_not_offered(spillway):
    assert "gh200" not in spillway.run("plan", "--help-all").out
    assert "gh200" not in spillway.run(*T4[:2], "--hardware", "none").err


def test_a_refusal_names_what_works_and_what_pays(spillway):
    """70 billion weights of 4 bits almost fit: a little disk is enough, with prompts in small chunks; more is faster."""
    small = ["plan", "dummy:llama-2-70b:q4_0", "--hardware", "laptop", "--no-advice"]
    refused = spillway.run(*small)
    refused.assert_one_line_error(FAILED)
    named = re.search(r"--disk-memory (\d[^\s,]*)(?: \(estimated (\S+) tokens/s; (\S+) give ([0-9.]+)\))?", refused.err)
    assert named, refused.err
    least = spillway.run(*small, "--disk-memory", named[1], "--json").json()["predicted"]["generated_tokens_per_s"]
    if named[2]:
        assert least == pytest.approx(float(named[2]), rel=0.01)
        more = spillway.run(*small, "--disk-memory", named[3], "--json").json()["predicted"]["generated_tokens_per_s"]
        assert more == pytest.approx(float(named[4]), rel=0.01)
        assert more > 1.3 * least
    plenty = spillway.run(*small, "--disk-memory", "100GiB", "--json").json()["predicted"]["generated_tokens_per_s"]
    assert plenty < 1.3 * (more if named[2] else least)


def test_flexgen_places_whole_matrices_and_sequences():
    # 20% become one attention matrix of four and none of the MLP's two: a twelfth of the bytes.
    assert paper_tables.weights_placed("opt-30b", 20, 80) == pytest.approx([100 / 12, 1100 / 12, 0])
    assert paper_tables.weights_placed("opt-30b", 10, 90) == pytest.approx([0, 100, 0])
    assert paper_tables.weights_placed("opt-175b", 0, 50) == pytest.approx([0, 50, 50])
    assert paper_tables.weights_placed("opt-175b", 0, 25) == pytest.approx([0, 100 / 12, 1100 / 12])
    # 40% and 60% of four sequences are rounded to one and two, so one is on disk.
    assert paper_tables.kv_placed(4, 40, 60) == [25, 50, 25]


def test_the_frontier_is_a_table_and_a_drawing(spillway, tmp_path):
    drawing = tmp_path / "frontier.svg"
    options = ("plan", "dummy:opt-6.7b", "--hardware", "t4", "--requests", "8", "--frontier", drawing)
    done = spillway.run(*options)
    assert done.code == 0, done.err
    assert [int(line[1:].split()[0]) for line in done.out.splitlines()[1:]] == [1, 2, 4, 8]
    text = drawing.read_text()
    assert text.startswith("<svg") and text.count("<circle") == 4
    points = spillway.run(*options, "--json").json()["frontier"]
    assert all(a["predicted"]["latency_s"] <= b["predicted"]["latency_s"] for a, b in zip(points, points[1:]))
    spillway.run(*options[:-1], tmp_path / "no" / "such.svg").assert_one_line_error(FAILED)


LONG = ["plan", "dummy:llama-2-7b", "--hardware", "h200", "--requests", "1", "--prompt-len", "131040", "--gen-len", "32", "--no-advice"]


def test_a_sequence_that_no_memory_holds_is_planned_over_several(spillway):
    """64 GiB of KV: a GPU's and a host's memory that are both too small for it."""
    memory = ["--gpu-memory", "40GiB", "--host-memory", "50GiB"]
    found = spillway.run(*LONG, *memory, "--json").json()
    kv = found["plan"]["kv"]
    assert kv["gpu"] > 10
    assert kv["host"] > 10
    assert kv["gpu"] + kv["host"] == pytest.approx(100)
    for name, limit in (("gpu", 40), ("host", 50)):
        assert found["memory"][name]["bytes"] <= limit << 30
    told = spillway.run(*LONG, *memory).out
    assert "a sequence has" in told
    # Then some KV must be on disk, too; without a disk the plan is refused.
    small = ["--gpu-memory", "10GiB", "--host-memory", "40GiB"]
    on_three = spillway.run(*LONG, *small, "--disk-memory", "100GiB", "--json").json()
    assert on_three["plan"]["kv"]["disk"] > 5
    spillway.run(*LONG, *small).assert_one_line_error(FAILED)
