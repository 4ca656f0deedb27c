# SPDX-License-Identifier: Apache-2.0
"""How the commands behave: exit codes, one-line errors, JSON, streaming, interrupts, reproducibility."""

import json
import shutil
import signal
import subprocess
import time

import pytest

from conftest import SHARED_DATA

COMMANDS = ["run", "chat", "inspect", "eval", "bench", "tokenize"]
WRONG_USAGE = 2
INTERRUPTED = 130
TINY_CONTEXT = 512


# Help and usage.


def test_help_names_every_command(spillway):
    done = spillway.run("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert command in done.out
    assert done.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(spillway, command):
    done = spillway.run(command, "--help")
    assert done.code == 0
    assert "--help" in done.out and len(done.out.splitlines()) > 3
    assert done.err == ""


def test_version(spillway):
    done = spillway.run("--version")
    assert done.code == 0
    assert any(character.isdigit() for character in done.out)


def test_no_command_is_wrong_usage(spillway):
    assert spillway.run().code == WRONG_USAGE


def test_an_unknown_command_is_wrong_usage(spillway):
    spillway.run("conjure").assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_wrong_usage(spillway, tiny_model, command):
    done = spillway.run(command, tiny_model, "--no-such-flag")
    done.assert_one_line_error(WRONG_USAGE)
    assert "--no-such-flag" in done.err


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "-1"],
        ["-n", "many"],
        ["-n", "99999999999999999999"],
        ["--temp", "-1"],
        ["--temp", "nan"],
        ["--temp", "inf"],
        ["--seed", "x"],
        ["--threads", "-1"],
        ["--threads", "x"],
        ["--device", "toaster"],
        ["--host-memory", "lots"],
        ["--host-memory", "-1GiB"],
    ],
    ids=" ".join,
)
def test_a_bad_value_is_wrong_usage(spillway, tiny_model, options):
    spillway.run("run", tiny_model, "-p", "Once", *options).assert_one_line_error(WRONG_USAGE)


# Models that cannot be read.


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


def test_an_unknown_dummy_is_wrong_usage(spillway):
    spillway.run("inspect", "dummy:no-such-architecture").assert_one_line_error(WRONG_USAGE)


def test_an_error_about_a_strange_file_name_stays_one_printable_line(spillway, tmp_path):
    done = spillway.run("inspect", tmp_path / "a\nb\x1b[31mc\r.gguf")
    done.assert_one_line_error(WRONG_USAGE)
    assert "\x1b" not in done.err and "\r" not in done.err


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
    spillway.run("run", path, "-p", "x").assert_one_line_error(WRONG_USAGE)


def test_an_empty_folder_is_refused(spillway, tmp_path):
    done = spillway.run("inspect", tmp_path)
    done.assert_one_line_error(WRONG_USAGE)
    assert "config.json" in done.err


@pytest.mark.parametrize("config", [b"", b"{", b"[]", b"null", b"{}", b'{"model_type": "no-such-family"}', b'{"model_type": 7}'])
def test_a_bad_config_is_refused(spillway, stories, tmp_path, config):
    folder = tmp_path / "model"
    shutil.copytree(stories / "stories260K-hf", folder)
    (folder / "config.json").write_bytes(config)
    spillway.run("run", folder, "--ids", "1").assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (field, value)
        for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        for value in (0, -1, 3, 10**12, "64", None)
        if (field, value) != ("num_hidden_layers", 3)  # a model may use fewer layers than the file has
    ],
)
def test_a_config_that_does_not_fit_its_tensors_is_refused(spillway, stories, tmp_path, change, value):
    folder = tmp_path / "model"
    shutil.copytree(stories / "stories260K-hf", folder)
    config = json.loads((folder / "config.json").read_text())
    config[change] = value
    (folder / "config.json").write_text(json.dumps(config))
    spillway.run("run", folder, "--ids", "1", "-n", "1").assert_one_line_error(WRONG_USAGE)


def test_truncated_safetensors_are_refused(spillway, stories, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(stories / "stories260K-hf", folder)
    content = (folder / "model.safetensors").read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        (folder / "model.safetensors").write_bytes(content[:length])
        spillway.run("run", folder, "--ids", "1").assert_one_line_error(WRONG_USAGE)


# Prompts.


def test_an_empty_prompt_is_the_beginning_of_sequence_alone(spillway, tiny_model):
    answer = spillway.run("run", tiny_model, "-p", "", "-n", "8", "--temp", "0", "--json").json()
    assert answer["prompt_ids"] == [1]
    assert len(answer["ids"]) == 8


def test_no_tokens_at_all_is_wrong_usage(spillway, tiny_model):
    spillway.run("run", tiny_model, "--ids", "").assert_one_line_error(WRONG_USAGE)


def test_a_missing_prompt_is_wrong_usage(spillway, tiny_model):
    spillway.run("run", tiny_model).assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize("ids", ["1,512", "1,-1", "1,x", "1,,2", "1,2.5", "1,99999999999999999999", "4294967297"])
def test_bad_token_ids_are_wrong_usage(spillway, tiny_model, ids):
    spillway.run("run", tiny_model, f"--ids={ids}").assert_one_line_error(WRONG_USAGE)


def test_invalid_utf8_is_wrong_usage(spillway, tiny_model):
    for prompt in (b"\xff\xfe", b"caf\xc3", b"\xc0\xaf", b"\xed\xa0\x80"):
        spillway.run("run", tiny_model, "-p", b"Once " + prompt).assert_one_line_error(WRONG_USAGE)


def test_any_valid_utf8_is_accepted(spillway, tiny_model):
    prompt = "Grüße, 世界 🙂 \u0000é".replace("\u0000", "")
    answer = spillway.run("run", tiny_model, "-p", prompt, "-n", "4", "--json").json()
    assert len(answer["prompt_ids"]) > 4


@pytest.mark.parametrize("count", [TINY_CONTEXT + 1, TINY_CONTEXT * 10])
def test_a_prompt_longer_than_the_context_is_wrong_usage(spillway, tiny_model, count):
    done = spillway.run("run", tiny_model, "--ids", ",".join(["300"] * count))
    done.assert_one_line_error(WRONG_USAGE)
    assert str(count) in done.err and "context" in done.err


def test_zero_tokens_may_be_asked_for(spillway, tiny_model):
    answer = spillway.run("run", tiny_model, "-p", "Once", "-n", "0", "--json").json()
    assert answer["ids"] == [] and answer["text"] == "" and answer["prompt_ids"]


def test_generation_ends_where_the_context_ends(spillway, tiny_model):
    ids = ",".join(["1"] + ["300"] * (TINY_CONTEXT - 9))
    answer = spillway.run("run", tiny_model, "--ids", ids, "-n", "100", "--temp", "0", "--json").json()
    assert 1 <= len(answer["ids"]) <= 9


# Output.


def has_terminal_codes(text):
    return "\x1b" in text or "\r" in text or "\b" in text


def test_run_writes_only_text_when_piped(spillway, tiny_model):
    done = spillway.run("run", tiny_model, "-p", "Once upon a time", "-n", "40", "--temp", "0")
    assert done.code == 0
    assert "there was" in done.out
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


def test_the_text_of_json_is_the_text_of_plain_output(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", "Once upon a time", "-n", "40", "--temp", "0"]
    plain = spillway.run(*arguments)
    answer = spillway.run(*arguments, "--json").json()
    assert len(answer["ids"]) == 40
    assert answer["text"].strip() != ""
    assert answer["text"].strip() in plain.out


def test_text_is_streamed(spillway, chat_model):
    process = subprocess.Popen(
        spillway.command("run", chat_model, "-p", "Tell a long story about a river.", "-n", "60", "--ignore-end"),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        arrivals = []
        while process.stdout.read1(64):
            arrivals.append(time.monotonic())
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert len(arrivals) > 10


def test_an_interrupt_keeps_what_was_written_and_exits_130(spillway, chat_model):
    process = subprocess.Popen(
        spillway.command("run", chat_model, "-p", "Write a very long story about a river.", "-n", "1000", "--ignore-end"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        first = process.stdout.read(8)
        assert first, process.stderr.read()
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        rest, error = process.communicate(timeout=10)
        stopped_after_s = time.monotonic() - started
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == INTERRUPTED, error
    assert (first + rest).decode(), "whole characters only"
    assert len(error.splitlines()) <= 1
    assert stopped_after_s < 3


def test_an_interrupt_while_chatting_exits_130(spillway, chat_model):
    process = subprocess.Popen(
        spillway.command("chat", chat_model), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        process.stdin.write(b"Write a very long story about a river.\n")
        process.stdin.flush()
        assert process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == INTERRUPTED


def test_a_reader_that_goes_away_ends_the_run(spillway, chat_model):
    process = subprocess.Popen(
        spillway.command("run", chat_model, "-p", "Write a very long story.", "-n", "1000"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process.stdout.read(4)
        process.stdout.close()
        code = process.wait(timeout=10)
        error = process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert code in (1, 141, -signal.SIGPIPE), error
    assert len(error.splitlines()) <= 1


def test_a_full_disk_is_a_failure(spillway, tiny_model):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            spillway.command("run", tiny_model, "-p", "Once", "-n", "8", "--json"),
            stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


# Sampling.


def sample(spillway, model, *options):
    return spillway.run("run", model, "-p", "Once upon", "-n", "48", "--json", *options).json()["text"]


def test_the_same_seed_gives_the_same_text(spillway, tiny_model):
    first = sample(spillway, tiny_model, "--temp", "1", "--seed", "7")
    assert sample(spillway, tiny_model, "--temp", "1", "--seed", "7") == first


def test_another_seed_gives_another_text(spillway, tiny_model):
    texts = {sample(spillway, tiny_model, "--temp", "1", "--seed", seed) for seed in ("1", "2", "3")}
    assert len(texts) == 3


def test_greedy_does_not_depend_on_the_seed(spillway, tiny_model):
    assert sample(spillway, tiny_model, "--temp", "0", "--seed", "1") == sample(spillway, tiny_model, "--temp", "0", "--seed", "2")


def test_greedy_is_the_default(spillway, tiny_model):
    assert sample(spillway, tiny_model) == sample(spillway, tiny_model, "--temp", "0", "--seed", "0")


@pytest.mark.parametrize("options", [["--temp", "0"], ["--temp", "1", "--seed", "5"]], ids=" ".join)
def test_deterministic_text_does_not_depend_on_threads(spillway, tiny_model, options):
    texts = {sample(spillway, tiny_model, "--deterministic", "--threads", n, *options) for n in ("1", "2", "3")}
    assert len(texts) == 1


# chat


def test_chat_answers_each_line_of_a_pipe(spillway, chat_model):
    done = spillway.run("chat", chat_model, stdin="What is the capital of France? Answer in one word.\n", timeout=180)
    assert done.code == 0, done.err
    assert "Paris" in done.out
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


def test_chat_remembers_the_conversation(spillway, chat_model):
    lines = "My name is Zebulon. Say hello in one short sentence.\nWhat is my name? Answer in one short sentence.\n"
    done = spillway.run("chat", chat_model, stdin=lines, timeout=180)
    assert done.code == 0, done.err
    assert "Zebulon" in done.out


def test_chat_without_input_ends(spillway, chat_model):
    done = spillway.run("chat", chat_model, stdin="")
    assert done.code == 0, done.err


def test_chat_keeps_control_tokens_out_of_the_text(spillway, chat_model):
    done = spillway.run("chat", chat_model, stdin="Say hi.\n", timeout=180)
    assert "<|im_" not in done.out


# inspect


@pytest.mark.parametrize("model", ["stories260K-f32.gguf", "stories260K-hf", "stories15M-Q8_0.gguf"])
def test_inspect_tells_what_is_in_a_model(spillway, stories, model):
    done = spillway.run("inspect", stories / model)
    assert done.code == 0, done.err
    assert "llama" in done.out.lower()
    assert not has_terminal_codes(done.out)
    description = spillway.run("inspect", stories / model, "--json").json()
    assert isinstance(description, dict)
    assert "llama" in json.dumps(description).lower()


def test_inspect_describes_a_model_that_is_not_there(spillway):
    started = time.monotonic()
    description = spillway.run("inspect", "dummy:opt-30b", "--json").json()
    assert "opt" in json.dumps(description).lower()
    assert time.monotonic() - started < 5, "describing a dummy must not make its weights"


def test_inspect_lists_devices(spillway):
    assert "cpu" in spillway.run("inspect", "--devices").out.lower()
    assert "cpu" in json.dumps(spillway.run("inspect", "--devices", "--json").json()).lower()


def test_inspect_of_nothing_is_wrong_usage(spillway):
    spillway.run("inspect").assert_one_line_error(WRONG_USAGE)


# tokenize


def test_tokenize_prints_the_ids_that_run_uses(spillway, tiny_model):
    prompt = "The dog and the cat went to the"
    ids = spillway.run("tokenize", tiny_model, "-p", prompt, "--json").json()["ids"]
    assert ids == spillway.run("run", tiny_model, "-p", prompt, "-n", "1", "--json").json()["prompt_ids"]
    plain = spillway.run("tokenize", tiny_model, "-p", prompt)
    assert plain.code == 0
    assert [int(word) for word in plain.out.replace(",", " ").split()] == ids


def test_tokenize_without_special_tokens_leaves_the_beginning_of_sequence_out(spillway, tiny_model):
    ids = spillway.run("tokenize", tiny_model, "-p", "The dog", "--json").json()["ids"]
    bare = spillway.run("tokenize", tiny_model, "-p", "The dog", "--no-special", "--json").json()["ids"]
    assert ids[0] == 1 and bare == ids[1:]


def test_tokenize_reads_a_file(spillway, tiny_model, tmp_path):
    text = "One day,\nTim found a key.\n"
    (tmp_path / "text").write_text(text)
    from_file = spillway.run("tokenize", tiny_model, "-f", tmp_path / "text", "--json").json()["ids"]
    assert from_file == spillway.run("tokenize", tiny_model, "-p", text, "--json").json()["ids"]
    spillway.run("tokenize", tiny_model, "-f", tmp_path / "gone").assert_one_line_error(WRONG_USAGE)
    spillway.run("tokenize", tiny_model, "-f", tmp_path).assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3"])
def test_tokenize_takes_a_model_that_is_only_a_vocabulary(spillway, name, tmp_path):
    model = SHARED_DATA / "tokenizer-vectors" / f"ggml-vocab-{name}.gguf"
    if not model.is_file():
        pytest.skip("../shared/data/tokenizer-vectors is not here")
    texts = model.with_suffix(".gguf.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    expected = model.with_suffix(".gguf.out").read_text().splitlines()
    # A few through the program; the tokenizers' own tests take all of them.
    for index in (1, 10, 25, 40):
        (tmp_path / "text").write_bytes(texts[index])
        answer = spillway.run("tokenize", model, "-f", tmp_path / "text", "--no-special", "--json").json()
        assert answer["ids"] == [int(word) for word in expected[index].split()]


def test_a_vocabulary_alone_cannot_run(spillway):
    model = SHARED_DATA / "tokenizer-vectors" / "ggml-vocab-gpt-2.gguf"
    if not model.is_file():
        pytest.skip("../shared/data/tokenizer-vectors is not here")
    spillway.run("run", model, "-p", "x").assert_one_line_error(WRONG_USAGE)


# eval


def test_eval_prefers_a_story_to_noise(spillway, tiny_model, stories, tmp_path):
    story = " ".join(e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"])
    (tmp_path / "story").write_text(story)
    (tmp_path / "noise").write_text(story[::-1])
    results = [
        spillway.run("eval", tiny_model, "--text", tmp_path / name, "--ctx", "128", "--json").json()
        for name in ("story", "noise")
    ]
    for result in results:
        assert result["tokens"] > 0
        assert result["perplexity"] > 1
    assert results[0]["perplexity"] * 5 < results[1]["perplexity"]
    assert results[0]["perplexity"] < 4, "this text is the model's own greedy output"


def test_eval_refuses_what_it_cannot_score(spillway, tiny_model, tmp_path):
    spillway.run("eval", tiny_model, "--text", tmp_path / "gone").assert_one_line_error(WRONG_USAGE)
    (tmp_path / "short").write_text("Once")
    spillway.run("eval", tiny_model, "--text", tmp_path / "short", "--ctx", "128").assert_one_line_error(WRONG_USAGE)
    (tmp_path / "text").write_text("Once upon a time there was a dog. " * 50)
    for context in ("0", "1", "-5", "100000000"):
        done = spillway.run("eval", tiny_model, "--text", tmp_path / "text", f"--ctx={context}")
        done.assert_one_line_error(WRONG_USAGE)


# bench


def test_bench_reports_the_agreed_fields(spillway, tiny_model):
    result = spillway.run("bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--batch", "2", "--json").json()
    for field in ("prefill_tokens_per_s", "decode_tokens_per_s", "generated_tokens_per_s", "total_tokens_per_s", "prefill_s", "decode_s"):
        assert result[field] > 0, field
    assert result["batch"] == 2
    generated = result["generated_tokens_per_s"] * (result["prefill_s"] + result["decode_s"])
    assert generated == pytest.approx(2 * 8, rel=0.02)
    total = result["total_tokens_per_s"] * (result["prefill_s"] + result["decode_s"])
    assert total == pytest.approx(2 * (32 + 8), rel=0.02)


def test_bench_for_people_has_no_terminal_codes_when_piped(spillway, tiny_model):
    done = spillway.run("bench", tiny_model, "--prompt-len", "16", "--gen-len", "4")
    assert done.code == 0, done.err
    assert done.out.strip()
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


@pytest.mark.parametrize("options", [["--batch", "0"], ["--gen-len", "-1"], ["--prompt-len", "0"], ["--prompt-len", "100000"]], ids=" ".join)
def test_bench_refuses_impossible_work(spillway, tiny_model, options):
    spillway.run("bench", tiny_model, *options).assert_one_line_error(WRONG_USAGE)
