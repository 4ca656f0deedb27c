# SPDX-License-Identifier: Apache-2.0
"""Models through the commands: both layouts of one model agree; missing, damaged and strange ones are refused in one line."""

import json
import math
import os
import shutil

import pytest
import tiny_llama

from conftest import SHARED_DATA

FAILED = 1
WRONG_USAGE = 2
PROMPT = "The river was there"
TEXT = "The river was wide, and in the morning he said: there is a way. " * 20


def greedy_answer(spillway, model):
    answer = spillway.run("run", model, "-p", PROMPT, "-n", "100", "--json", "--logprobs", "2").json()
    gaps = [entry["top"][0]["logprob"] - entry["top"][1]["logprob"] for entry in answer["logprobs"]]
    assert min(gaps) > 1e-3, "so close a choice may turn with the rounding"
    return answer["prompt_ids"], answer["ids"], answer["text"]


# One model in several layouts.


def test_a_folder_and_a_gguf_file_of_one_model_give_the_same_tokens(spillway, tiny_model, tiny_folder):
    answer = greedy_answer(spillway, tiny_model)
    assert len(answer[1]) == 100 and len(set(answer[1])) > 20
    assert greedy_answer(spillway, tiny_folder) == answer


def test_the_order_of_q_and_k_rows_matters(spillway, tiny_model, tmp_path):
    """Shows that the test above can fail: a file with the folder's order gives other tokens."""
    wrong = tiny_llama.write_gguf(tmp_path / "wrong.gguf", permute=False)
    ids = [spillway.run("run", model, "-p", PROMPT, "-n", "100", "--json").json()["ids"] for model in (tiny_model, wrong)]
    assert ids[0] != ids[1]


def test_shards_give_the_same_tokens(spillway, tiny_model, tmp_path):
    answer = greedy_answer(spillway, tiny_model)
    assert greedy_answer(spillway, tiny_llama.write_gguf(tmp_path / "split", shards=3)) == answer
    assert greedy_answer(spillway, tiny_llama.write_folder(tmp_path / "folder", shards=3)) == answer


def test_weights_read_past_the_page_cache_give_the_same_tokens(spillway, tiny_model, tiny_folder):
    for model in (tiny_model, tiny_folder):
        arguments = ["run", model, "-p", PROMPT, "-n", "20", "--json"]
        assert spillway.run(*arguments, "--no-mmap").json()["ids"] == spillway.run(*arguments).json()["ids"]


# Converted models.


@pytest.mark.parametrize("shards", [1, 3])
def test_a_converted_model_gives_the_same_tokens(spillway, tiny_model, tmp_path, shards):
    model = tiny_llama.write_gguf(tmp_path / "split", shards=shards) if shards > 1 else tiny_model
    out = tmp_path / "converted.gguf"
    assert spillway.run("convert", model, out, "--json").json()["bytes"] == out.stat().st_size
    assert greedy_answer(spillway, out) == greedy_answer(spillway, tiny_model)


def test_a_converted_model_has_the_type_that_was_asked_for(spillway, tiny_model, tmp_path):
    spillway.run("convert", tiny_model, tmp_path / "half.gguf", "--type", "f16", "--json").json()
    tensors = spillway.run("inspect", tmp_path / "half.gguf", "--tensors", "--json").json()["tensors"]
    assert {t["type"] for t in tensors if len(t["shape"]) > 1} == {"F16"}


@pytest.mark.parametrize("case", ["type", "itself"])
def test_what_cannot_be_converted_is_refused(spillway, tiny_model, tmp_path, case):
    out = tiny_model if case == "itself" else tmp_path / "out.gguf"
    before = tiny_model.read_bytes()
    done = spillway.run("convert", tiny_model, out, "--type", "q2_x" if case == "type" else "f16")
    done.assert_one_line_error(WRONG_USAGE)
    assert tiny_model.read_bytes() == before and not (tmp_path / "out.gguf").exists()


# Models that cannot be found or read.


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "tokenize"])
def test_a_missing_model_is_named(spillway, tmp_path, command):
    path = tmp_path / "no-such-model.gguf"
    prompt = ["-p", "x"] if command in ("run", "tokenize") else []
    done = spillway.run(command, path, *prompt)
    done.assert_one_line_error(WRONG_USAGE)
    assert "no-such-model.gguf" in done.err


def test_a_missing_model_for_chat_and_eval_is_named(spillway, tmp_path):
    text = tmp_path / "text"
    text.write_text("Some text.")
    for arguments in (["chat", tmp_path / "gone.gguf"], ["eval", tmp_path / "gone.gguf", "--text", text]):
        done = spillway.run(*arguments, stdin="Hello\n")
        done.assert_one_line_error(WRONG_USAGE)
        assert "gone.gguf" in done.err


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_missing_shard_is_named(spillway, tmp_path, command):
    prompt = ["--ids", "1"] if command == "run" else []
    first = tiny_llama.write_gguf(tmp_path / "split", shards=3)
    folder = tiny_llama.write_folder(tmp_path / "folder", shards=3)
    for model, shard in (
        (first, tmp_path / "split-00002-of-00003.gguf"),
        (folder, folder / "model-00002-of-00003.safetensors"),
    ):
        shard.unlink()
        done = spillway.run(command, model, *prompt)
        done.assert_one_line_error(WRONG_USAGE)
        assert shard.name in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("what", ["model", "prompt"])
def test_a_file_that_may_not_be_read_is_named(spillway, tiny_model, tmp_path, what):
    secret = tmp_path / "secret.gguf"
    shutil.copyfile(tiny_model, secret)
    secret.chmod(0)
    arguments = [secret, "-p", "x"] if what == "model" else [tiny_model, "-f", secret]
    done = spillway.run("run", *arguments)
    done.assert_one_line_error(WRONG_USAGE)
    assert "secret.gguf" in done.err


def test_an_unknown_dummy_is_wrong_usage(spillway):
    done = spillway.run("inspect", "dummy:no-such-architecture")
    done.assert_one_line_error(WRONG_USAGE)
    assert "no-such-architecture" in done.err


def test_an_error_about_a_strange_file_name_stays_one_printable_line(spillway, tmp_path):
    done = spillway.run("inspect", tmp_path / "a\nb\x1b[31mc\r.gguf")
    done.assert_one_line_error(WRONG_USAGE)
    assert "\x1b" not in done.err and "\r" not in done.err


@pytest.mark.parametrize("command", ["bench", "run", "eval", "inspect"])
def test_json_of_a_model_whose_path_is_not_utf8(spillway, tiny_model, tmp_path, command):
    model = os.fsencode(tmp_path) + b"/m\xff.gguf"
    with open(model, "wb") as file:
        file.write(tiny_model.read_bytes())
    (tmp_path / "text").write_text(TEXT)
    work = {
        "bench": ["--prompt-len", "4", "--gen-len", "2", "--repeat", "1"],
        "run": ["-p", "x", "-n", "2"],
        "eval": ["--text", tmp_path / "text", "--ctx", "32", "--max-windows", "1"],
        "inspect": [],
    }[command]
    done = spillway.run(command, model, *work, "--json")
    assert isinstance(done.json(), dict)
    done.raw_out.decode()


BAD_GGUF = {
    "empty": b"",
    "one byte": b"G",
    "text": b"This is no model.\n" * 100,
    "magic only": b"GGUF",
    "version 99": b"GGUF" + (99).to_bytes(4, "little") + bytes(16),
    "big-endian version": b"GGUF" + (3).to_bytes(4, "big") + bytes(16),
    "endless tensor count": b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 8 + bytes(8),
    "no architecture": b"GGUF" + (3).to_bytes(4, "little") + bytes(16) + bytes(64),
    "endless key count": b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + b"\xff" * 8,
}


@pytest.mark.parametrize("content", BAD_GGUF.values(), ids=BAD_GGUF.keys())
@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_bad_gguf_is_refused(spillway, tmp_path, command, content):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    prompt = ["-p", "x"] if command == "run" else []
    done = spillway.run(command, path, *prompt)
    done.assert_one_line_error(WRONG_USAGE)
    assert "bad.gguf" in done.err


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.5, 0.999])
def test_a_truncated_gguf_is_refused(spillway, tiny_model, tmp_path, keep):
    content = tiny_model.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(len(content) * keep)])
    done = spillway.run("run", path, "-p", "x")
    done.assert_one_line_error(WRONG_USAGE)
    assert "cut.gguf" in done.err


def test_a_vocabulary_alone_cannot_run(spillway):
    model = SHARED_DATA / "tokenizer-vectors" / "ggml-vocab-gpt-2.gguf"
    if not model.is_file():
        pytest.skip("../shared/data/tokenizer-vectors is not here")
    spillway.run("run", model, "-p", "x").assert_one_line_error(WRONG_USAGE)


def test_an_empty_folder_is_refused(spillway, tmp_path):
    done = spillway.run("inspect", tmp_path)
    done.assert_one_line_error(WRONG_USAGE)
    assert "config.json" in done.err


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A copy of the folder to damage."""
    return shutil.copytree(tiny_folder, tmp_path / "model")


@pytest.mark.parametrize("config", [b"", b"{", b"[]", b"null", b"{}", b'{"model_type": "no-such-family"}', b'{"model_type": 7}'])
def test_a_bad_config_is_refused(spillway, folder, config):
    (folder / "config.json").write_bytes(config)
    spillway.run("run", folder, "--ids", "1").assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (field, value)
        for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        for value in (0, -1, 3, 10**12, "64", None)
    ],
)
def test_a_config_that_does_not_fit_its_tensors_is_refused(spillway, folder, change, value):
    config = json.loads((folder / "config.json").read_text())
    config[change] = value
    (folder / "config.json").write_text(json.dumps(config))
    spillway.run("run", folder, "--ids", "1", "-n", "1").assert_one_line_error(WRONG_USAGE)


def test_truncated_safetensors_are_refused(spillway, folder):
    content = (folder / "model.safetensors").read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        (folder / "model.safetensors").write_bytes(content[:length])
        spillway.run("run", folder, "--ids", "1").assert_one_line_error(WRONG_USAGE)


# Models that can be read but are wrong.


@pytest.fixture(params=[math.nan, math.inf], ids=str)
def damaged_model(request, tmp_path):
    return tiny_llama.write_gguf(tmp_path / "damaged.gguf", damage=request.param)


@pytest.mark.parametrize("options", [[], ["--json"], ["--temp", "1"]], ids=" ".join)
def test_run_says_that_a_model_computes_no_numbers(spillway, damaged_model, options):
    done = spillway.run("run", damaged_model, "-p", PROMPT, "-n", "4", *options)
    assert done.code == FAILED
    assert len(done.err.splitlines()) == 1, done.err


def test_eval_says_that_a_model_computes_no_numbers(spillway, damaged_model, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    for options in ([], ["--json"]):
        done = spillway.run("eval", damaged_model, "--text", tmp_path / "text", "--ctx", "32", *options)
        done.assert_one_line_error(FAILED)


@pytest.mark.parametrize("layout", ["gguf", "folder"])
def test_a_tokenizer_larger_than_the_embedding_leaves_ids(spillway, tmp_path, layout):
    write = tiny_llama.write_gguf if layout == "gguf" else tiny_llama.write_folder
    model = write(tmp_path / f"small-{layout}.gguf", embedding_rows=280)
    answer = spillway.run("run", model, "--ids", "1,2,279", "-n", "3", "--json").json()
    assert len(answer["ids"]) == 3
    done = spillway.run("run", model, "-p", "x")
    done.assert_one_line_error(WRONG_USAGE)
    assert "tokenizer" in done.err and "280" in done.err
    spillway.run("run", model, "--ids", "280").assert_one_line_error(WRONG_USAGE)
