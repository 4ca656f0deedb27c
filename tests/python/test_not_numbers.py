# SPDX-License-Identifier: Apache-2.0
"""Values that are not numbers, or beyond the range of the KV cache's type, end a request with one line that says so, never with text."""

import math

import pytest
import tiny_llama
from cli_checks import FAILED, TEXT

KV_TYPES = ["f32", "f16", "int8", "int4"]
PROMPT = "The river was wide, and in the morning"


def layer_tensor(layer, name):
    return f"model.layers.{layer}.self_attn.{name}_proj.weight"


def write(path, **factors):
    return tiny_llama.write_gguf(path, factors=factors)


def assert_ends(done, *words):
    assert done.code == FAILED, f"exit code {done.code}: {done.out}"
    assert done.out.strip() == "" and len(done.err.splitlines()) == 1, done.out + done.err
    for word in words:
        assert word in done.err, done.err


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT * 4)
    return path


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_weights_that_are_not_numbers_end_every_command(spillway, tmp_path, text, name, value, kv_type):
    model = write(tmp_path / "m.gguf", **{layer_tensor(0, name): value})
    for prompt in ("x", PROMPT, PROMPT * 8):
        assert_ends(spillway.run("run", model, "-p", prompt, "-n", "4", "--kv-type", kv_type), "not numbers", "damaged")
    done = spillway.run("eval", model, "--text", text, "--ctx", "64", "--kv-type", kv_type)
    assert_ends(done, "not numbers", "damaged")
    assert "--kv-type" not in done.err


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize(("name", "what"), [("k", "key"), ("v", "value")])
@pytest.mark.parametrize("layer", [0, 1])
def test_what_the_kv_type_does_not_hold_names_layer_and_flag(spillway, tmp_path, text, layer, name, what, kv_type):
    model = write(tmp_path / "m.gguf", **{layer_tensor(layer, name): 1e8})
    for command in (
        ("run", model, "-p", PROMPT, "-n", "4", "--kv-type", kv_type),
        ("run", model, "-p", PROMPT * 8, "-n", "4", "--kv-type", kv_type, "--temp", "1"),
        ("eval", model, "--text", text, "--ctx", "64", "--kv-type", kv_type),
    ):
        done = spillway.run(*command)
        if kv_type == "f32":
            assert done.code == 0, done.err
        else:
            assert_ends(done, "not numbers", f"layer {layer} ", f"a {what} ", f"{kv_type} KV", "--kv-type bf16 or f32")


def test_int8_holds_more_than_f16(spillway, tmp_path):
    model = write(tmp_path / "m.gguf", **{layer_tensor(1, "k"): 1e5})
    assert_ends(spillway.run("run", model, "-p", PROMPT, "-n", "4", "--kv-type", "f16"), "layer 1 ", "--kv-type bf16 or f32")
    for kv_type in ("f32", "int8"):
        assert spillway.run("run", model, "-p", PROMPT, "-n", "4", "--kv-type", kv_type).code == 0


def test_an_answer_in_the_middle_of_which_it_happens_keeps_what_it_had(spillway, tmp_path):
    """The failure comes at some position: the text so far is kept, followed by one line and exit code 1."""
    model = write(tmp_path / "m.gguf", **{layer_tensor(1, "k"): 1.6e4})
    done = spillway.run("run", model, "-p", "x", "-n", "400", "--kv-type", "f16")
    assert done.code == FAILED and "layer 1 " in done.err, done.err
    assert len(done.out.strip()) > 3 and len(done.err.splitlines()) == 1, done.out + done.err
