# SPDX-License-Identifier: Apache-2.0
"""Models that could load but would be wrong: each is refused by name, or gets a warning."""

import json
import struct

import pytest
import tiny_llama

from cli_checks import WRONG_USAGE

RUN = ["-p", "The river", "-n", "20", "--temp", "0", "--json"]


def edit_json(path, **changes):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def edit_safetensors(path, edit):
    """Lets `edit` change the header, a dict of the tensors; the data stays."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


@pytest.fixture
def folder(tmp_path):
    return tiny_llama.write_folder(tmp_path / "model")


# Heads that cannot be used.


def change_type(name):
    return lambda header: header["lm_head.weight"].update(dtype=name)


def make_empty(header):
    begin = header["lm_head.weight"]["data_offsets"][0]
    header["lm_head.weight"] = {"dtype": "F32", "shape": [0], "data_offsets": [begin, begin]}


def change_shape(header):
    rows, columns = header["lm_head.weight"]["shape"]
    header["lm_head.weight"]["shape"] = [columns, rows]


def leave_out(header):
    del header["lm_head.weight"]


BAD_HEADS = {
    "F8_E4M3": (change_type("F8_E4M3"), "F8_E4M3"),
    "F64": (change_type("F64"), "F64"),
    "I32": (change_type("I32"), "I32"),
    "empty": (make_empty, "without elements"),
    "shape": (change_shape, f"shape [64, {tiny_llama.VOCABULARY}]"),
    "missing": (leave_out, "missing"),
}


@pytest.mark.parametrize("settings", [{"tie_word_embeddings": False}, {}], ids=["untied", "by default"])
@pytest.mark.parametrize("case", BAD_HEADS)
def test_a_head_that_cannot_be_used_is_refused(spillway, folder, case, settings):
    edit, word = BAD_HEADS[case]
    edit_safetensors(folder / "model.safetensors", edit)
    config = {k: v for k, v in tiny_llama.config_json(tiny_llama.Options()).items() if k != "tie_word_embeddings"}
    (folder / "config.json").write_text(json.dumps(config | settings))
    done = spillway.run("run", folder, *RUN)
    done.assert_one_line_error(WRONG_USAGE)
    assert "'lm_head.weight'" in done.err and word in done.err


def test_a_head_that_the_index_leaves_out_is_refused(spillway, tmp_path):
    folder = tiny_llama.write_folder(tmp_path / "sharded", shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = index["weight_map"].pop("lm_head.weight")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    edit_safetensors(folder / shard, leave_out)
    done = spillway.run("run", folder, *RUN)
    done.assert_one_line_error(WRONG_USAGE)
    assert "'lm_head.weight' is missing" in done.err


def test_a_tied_model_needs_no_head(spillway, folder):
    edit_safetensors(folder / "model.safetensors", leave_out)
    edit_json(folder / "config.json", tie_word_embeddings=True)
    assert spillway.run("run", folder, *RUN).json()["ids"]


# Weights in formats of other libraries.


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "compressed-tensors", "bitsandbytes"])
@pytest.mark.parametrize("command", ["run", "chat", "eval", "inspect"])
def test_a_quantized_folder_is_refused_by_its_method(spillway, folder, tmp_path, method, command):
    """It is refused before any tensor is read, since its tensors are not the network's."""

    def rename(header):
        for name in [name for name in header if "proj" in name]:
            header[name.replace(".weight", ".qweight")] = header.pop(name)

    edit_safetensors(folder / "model.safetensors", rename)
    edit_json(folder / "config.json", quantization_config={"quant_method": method, "bits": 4, "group_size": 128})
    (tmp_path / "text").write_text("The river was there. " * 40)
    more = {"run": RUN, "eval": ["--text", tmp_path / "text"]}.get(command, [])
    done = spillway.run(command, folder, *more)
    if command == "inspect":
        assert done.code == 0 and f"cannot be run: model: {method} is not supported" in done.out
        return
    done.assert_one_line_error(WRONG_USAGE)
    assert f"{method} is not supported" in done.err and "GGUF" in done.err


# Tokens.


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_answer_ends_at_the_ids_of_either_configuration(spillway, folder, name, several):
    ids = spillway.run("run", folder, *RUN).json()["ids"]
    end = next(id for id in ids[3:] if id not in ids[:3])
    edit_json(folder / name, eos_token_id=[tiny_llama.EOS, end] if several else end)
    answer = spillway.run("run", folder, *RUN).json()
    # Ids of the answer without the one that ended it, or with it.
    assert answer["ids"][: ids.index(end)] == ids[: ids.index(end)] and len(answer["ids"]) <= ids.index(end) + 1


def test_an_end_outside_the_vocabulary_is_said(spillway, folder):
    edit_json(folder / "config.json", eos_token_id=[tiny_llama.EOS, 70000])
    done = spillway.run("run", folder, *RUN)
    assert done.code == 0
    assert "eos_token_id is 70000" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("more", [0, 1, 20, 212])
def test_an_embedding_without_tokens_is_said(spillway, folder, more):
    """300 tokens; a few more rows are usual to reach a round number, but not this many."""
    named = tiny_llama.tensors(tiny_llama.Options())
    for name, rows in named:
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            rows.extend([[0.0] * tiny_llama.HIDDEN] * more)
    tiny_llama.write_safetensors(folder / "model.safetensors", named)
    edit_json(folder / "config.json", vocab_size=tiny_llama.VOCABULARY + more)
    done = spillway.run("run", folder, *RUN)
    assert done.code == 0, done.err
    said = f"the tokenizer has 300 tokens, the model's embedding {300 + more}"
    assert done.err == "" if more == 0 else said in done.err


def test_biases_that_the_configuration_does_not_ask_for_are_said(spillway, folder):
    named = tiny_llama.tensors(tiny_llama.Options())
    named.append(("model.layers.1.self_attn.q_proj.bias", [0.5] * tiny_llama.HIDDEN))
    tiny_llama.write_safetensors(folder / "model.safetensors", named)
    done = spillway.run("run", folder, *RUN)
    assert done.code == 0, done.err
    assert "'model.layers.1.self_attn.q_proj.bias' is left out" in done.err
