# SPDX-License-Identifier: Apache-2.0
"""How the commands behave: usage, prompts, exit codes, JSON, interrupts, sampling. Models are generated (tiny_llama.py);
test_cli_models.py has damaged ones, test_cli_reports.py what commands say of models and texts, test_terminal.py terminals."""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest
import tiny_llama

from cli_checks import FAILED, TEXT, UNKNOWN_FLAG, WRONG_USAGE, assert_bad_value, has_terminal_codes, logprob, read_logits
from conftest import end_process

COMMANDS = ["run", "chat", "batch", "inspect", "eval", "bench", "profile", "tokenize", "convert", "list"]
ENDLESS = ["-n", "100000", "--ignore-end"]  # takes far longer than any test waits
SIGNAL_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


# Help and usage.


def test_help_names_every_command(spillway):
    done = spillway.run("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert command in done.out
    assert done.err == ""


def test_version(spillway):
    done = spillway.run("--version")
    assert done.code == 0
    assert any(character.isdigit() for character in done.out)


def test_no_command_and_help_print_the_help(spillway):
    expected = spillway.run("--help").out
    for arguments in ([], ["help"]):
        done = spillway.run(*arguments)
        assert (done.code, done.out, done.err) == (0, expected, "")


def test_help_for_an_unknown_command_is_wrong_usage(spillway):
    done = spillway.run("help", "conjure")
    done.assert_one_line_error(WRONG_USAGE)
    assert "conjure" in done.err


def test_an_unknown_command_is_named(spillway):
    done = spillway.run("conjure")
    done.assert_one_line_error(WRONG_USAGE)
    assert "conjure" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_wrong_usage(spillway, tiny_model, command):
    done = spillway.run(command, tiny_model, "--no-such-flag")
    done.assert_one_line_error(WRONG_USAGE)
    assert "--no-such-flag" in done.err
    assert UNKNOWN_FLAG.search(done.err), "what assert_bad_value() looks for"


@pytest.mark.parametrize("flag", ["--no\nsuch-flag", "--no\rsuch\x1b[31m-flag"], ids=ascii)
def test_an_error_about_a_strange_flag_stays_one_printable_line(spillway, tiny_model, flag):
    done = spillway.run("run", tiny_model, "-p", "x", flag)
    done.assert_one_line_error(WRONG_USAGE)
    assert not has_terminal_codes(done.err)


BAD_VALUES = {
    "run": [
        ["-n", "-1"],
        ["-n", "many"],
        ["-n", "99999999999999999999"],
        ["--temp", "-1"],
        ["--temp", "nan"],
        ["--temp", "inf"],
        ["--top-p", "-0.1"],
        ["--top-p", "1.5"],
        ["--top-k", "-1"],
        ["--min-p", "-0.1"],
        ["--repetition-penalty", "0"],
        ["--logit-bias", "5"],
        ["--logit-bias", "99999=1"],
        ["--logprobs", "x", "--json"],
        ["--logprobs", "-2", "--json"],
        ["--logprobs", "3"],  # without --json there is no output for them
        ["--seed", "x"],
        ["--seed", "-1"],
        ["--seed", "1.5"],
        ["--seed", ""],
        ["--seed", "18446744073709551616"],
        ["--seed", "99999999999999999999999"],
        ["--stop", ""],
        ["--stop", "x", "--stop", ""],
        ["--repetition-window", "-1"],
        ["--system", "Be brief."],  # without --chat
        ["--chat", "--no-special"],
        ["--ctx", "-1"],
        ["--ctx", "x"],
        ["--ctx", "99999"],
        ["--threads", "-1"],
        ["--threads", "x"],
        ["--threads", ""],
        ["--threads", "100000"],
        ["--threads", "0-"],
        ["--threads", "1,"],
        ["--threads", "8000-8001"],  # no such processors
        ["--chunk", "0"],
        ["--device", "toaster"],
        ["--gpu-memory", "ten"],  # a wrong value on every machine
        ["--host-memory", "ten"],
        ["--kv-type", "q1"],
    ],
    "chat": [["--seed", "18446744073709551616"], ["--stop", ""], ["--temp", "nan"], ["--top-k", "-1"], ["-n", "0"]],
    "eval": [["--ctx", "0"], ["--ctx", "1"], ["--ctx", "-5"], ["--ctx", "100000000"], ["--max-windows", "-1"]],
    "bench": [
        ["--batch", "0"],
        ["--gen-len", "-1"],
        ["--prompt-len", "0"],
        ["--prompt-len", "100000"],
        ["--repeat", "0"],
        ["--chunk", "0"],
    ],
}


@pytest.mark.parametrize(
    ("command", "options"),
    [(command, options) for command, cases in BAD_VALUES.items() for options in cases],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_bad_value_is_wrong_usage(spillway, tiny_model, tmp_path, command, options):
    (tmp_path / "text").write_text(TEXT * 10)
    work = {"run": ["-p", "Once"], "chat": [], "eval": ["--text", tmp_path / "text"], "bench": []}[command]
    assert_bad_value(spillway.run(command, tiny_model, *work, *options))


@pytest.mark.parametrize("options", [["--stop", "foo"], ["--logit-bias", "5=1"], ["--seed", "3", "--stop", "foo"]], ids=" ".join)
def test_options_with_values_may_stand_before_the_model(spillway, tiny_model, options):
    before = spillway.run("run", *options, tiny_model, "-p", "hi", "-n", "4", "--json").json()
    after = spillway.run("run", tiny_model, "-p", "hi", "-n", "4", "--json", *options).json()
    assert before["ids"] == after["ids"] and len(before["ids"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["MODEL", "Once upon"],
        ["-m", "MODEL", "Once upon"],
        ["Once upon", "-m", "MODEL"],
        ["--model", "MODEL", "-p", "Once upon"],
        ["-p", "Once upon", "--model=MODEL"],
        ["-mMODEL", "Once upon"],
        ["-m", "MODEL", "--", "Once upon"],
        ["MODEL", "-t", "1", "-c", "64", "--temperature", "0", "-p", "Once upon"],
    ],
    ids=" ".join,
)
def test_a_run_may_be_asked_for_in_many_ways(spillway, tiny_model, arguments):
    expected = spillway.run("run", tiny_model, "--prompt", "Once upon", "-n", "4", "--json").json()
    arguments = [one.replace("MODEL", str(tiny_model)) for one in arguments]
    answer = spillway.run("run", "-n", "4", "--json", *arguments).json()
    assert (answer["prompt_ids"], answer["ids"]) == (expected["prompt_ids"], expected["ids"])


def test_the_short_names_are_the_long_ones(spillway, tiny_model, tmp_path):
    prompt = ",".join(["200"] * 20)
    for context in ("-c", "--ctx"):
        done = spillway.run("run", tiny_model, "--ids", prompt, context, "10")
        done.assert_one_line_error(WRONG_USAGE)
        assert "--ctx is 10" in done.err
    (tmp_path / "text").write_text(TEXT * 10)
    work = ["bench", "-m", tiny_model, "--prompt-len", "4", "--gen-len", "2", "--repeat", "1", "--json"]
    assert spillway.run(*work, "-t", "1").json()["threads"] == 1
    scores = [
        spillway.run("eval", *model, "--text", tmp_path / "text", context, "16", "--json").json()["perplexity"]
        for model, context in (([tiny_model], "--ctx"), (["--model", tiny_model], "-c"))
    ]
    assert scores[0] == scores[1]
    ids = [spillway.run("tokenize", *model, TEXT, "--json").json()["ids"] for model in ([tiny_model], ["-m", tiny_model])]
    assert ids[0] == ids[1] == spillway.run("tokenize", tiny_model, "-p", TEXT, "--json").json()["ids"]
    assert spillway.run("inspect", "-m", tiny_model, "--json").json() == spillway.run("inspect", tiny_model, "--json").json()


@pytest.mark.parametrize(
    "extra", [["a", "b"], ["a", "-p", "b"], ["a", "-f", "b"], ["a", "--ids", "1"], ["-m", "MODEL", "a", "b"]], ids=" ".join
)
def test_two_prompts_or_models_are_wrong_usage(spillway, tiny_model, extra):
    model = [] if "-m" in extra else [tiny_model]
    done = spillway.run("run", *model, *[one.replace("MODEL", str(tiny_model)) for one in extra])
    done.assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "MODEL", "The", "capital", "of", "France"], "put it in quotes: 'The capital of France'"),
        (["rnu", "MODEL"], "no command 'rnu'; did you mean run?"),
        (["run", "MODEL", "x", "--temprature", "1"], "unknown option --temprature; did you mean --temperature?"),
        (["run", "smolm2", "x"], "'smolm2'; did you mean smollm2?"),
        (["run", "dummy:opt-1.3", "--ids", "1"], "'opt-1.3'; did you mean opt-1.3b?"),
        (["help", "tokenise"], "no command 'tokenise'; did you mean tokenize?"),
    ],
    ids=["prompt", "command", "flag", "model", "dummy", "help"],
)
def test_what_was_probably_meant_is_said(spillway, tiny_model, words, hint):
    done = spillway.run(*[word.replace("MODEL", str(tiny_model)) for word in words])
    done.assert_one_line_error(WRONG_USAGE)
    assert hint in done.err


def test_a_misspelled_file_gets_its_neighbour(spillway, tiny_model, tmp_path):
    (tmp_path / "tiny-llama.gguf").symlink_to(tiny_model)
    done = spillway.run("run", tmp_path / "tiny_lama.gguf", "x")
    done.assert_one_line_error(WRONG_USAGE)
    assert f"did you mean {tmp_path}/tiny-llama.gguf?" in done.err


@pytest.mark.parametrize("command", ["run", "chat", "eval"])
def test_without_a_tokenizer_only_flags_are_advised_that_there_are(spillway, command, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    words = {"run": ["x"], "chat": [], "eval": ["--text", tmp_path / "text"]}[command]
    done = spillway.run(command, "dummy:opt-125m", *words, stdin="x\n")
    done.assert_one_line_error(WRONG_USAGE)
    assert "dummy:opt-125m has no tokenizer" in done.err
    offered = spillway.run("run" if "spillway run" in done.err else command, "--help-all").out
    assert all(flag in offered for flag in re.findall("--[a-z]+", done.err))


def test_a_known_model_needs_a_place_to_be_kept(spillway, tmp_path):
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    done = spillway.run("run", "smollm2", "-p", "x", env=env, cwd=tmp_path)
    done.assert_one_line_error(WRONG_USAGE)


def test_a_known_model_that_is_not_fetched_says_how(spillway, tmp_path):
    done = spillway.run("run", "smollm2", "-p", "x", env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, cwd=tmp_path)
    done.assert_one_line_error(WRONG_USAGE)
    assert "fetch_model.sh" in done.err


# Prompts.


def test_an_empty_prompt_is_the_beginning_of_sequence_alone(spillway, tiny_model):
    answer = spillway.run("run", tiny_model, "-p", "", "-n", "8", "--temp", "0", "--json").json()
    assert answer["prompt_ids"] == [tiny_llama.BOS]
    assert len(answer["ids"]) == 8


def test_an_empty_prompt_needs_a_beginning_of_sequence(spillway, no_bos_model):
    done = spillway.run("run", no_bos_model, "-p", "")
    done.assert_one_line_error(WRONG_USAGE)
    assert "empty" in done.err


def test_no_tokens_at_all_is_wrong_usage(spillway, tiny_model):
    assert_bad_value(spillway.run("run", tiny_model, "--ids", ""))


def test_a_missing_prompt_is_wrong_usage(spillway, tiny_model):
    done = spillway.run("run", tiny_model)
    assert_bad_value(done)
    assert "no prompt" in done.err


@pytest.mark.parametrize("ids", ["1,300", "1,-1", "1,x", "1,,2", "1,2.5", "1,99999999999999999999", "4294967297"])
def test_bad_token_ids_are_wrong_usage(spillway, tiny_model, ids):
    assert_bad_value(spillway.run("run", tiny_model, f"--ids={ids}"))


def test_bad_token_ids_are_wrong_usage_even_if_nothing_is_generated(spillway, tiny_model):
    assert_bad_value(spillway.run("run", tiny_model, "--ids", "1,99999", "-n", "0"))


def test_invalid_utf8_is_wrong_usage(spillway, tiny_model):
    for prompt in (b"\xff\xfe", b"caf\xc3", b"\xc0\xaf", b"\xed\xa0\x80"):
        assert_bad_value(spillway.run("run", tiny_model, "-p", b"Once " + prompt))
        assert_bad_value(spillway.run("run", tiny_model, "-f", "-", stdin=b"Once " + prompt))


def test_any_valid_utf8_is_accepted(spillway, tiny_model):
    answer = spillway.run("run", tiny_model, "-p", "Grüße, 世界 🙂 é", "-n", "4", "--json").json()
    assert len(answer["prompt_ids"]) > 4


@pytest.mark.parametrize("count", [tiny_llama.CONTEXT + 1, tiny_llama.CONTEXT * 10])
def test_a_prompt_longer_than_the_context_is_wrong_usage(spillway, tiny_model, count):
    done = spillway.run("run", tiny_model, "--ids", ",".join(["200"] * count))
    done.assert_one_line_error(WRONG_USAGE)
    assert str(count) in done.err and "context" in done.err


def test_zero_tokens_may_be_asked_for(spillway, tiny_model):
    answer = spillway.run("run", tiny_model, "-p", "Once", "-n", "0", "--json").json()
    assert answer["ids"] == [] and answer["text"] == "" and answer["prompt_ids"]


def test_generation_ends_where_the_context_ends(spillway, tiny_model):
    ids = ",".join(["200"] * (tiny_llama.CONTEXT - 9))
    answer = spillway.run("run", tiny_model, "--ids", ids, "-n", "100", "--ignore-end", "--json").json()
    assert len(answer["ids"]) == 9
    assert answer["finish_reason"] == "length"


@pytest.mark.parametrize("context", [6, 16, 17, 20, 33])
def test_ctx_is_exact(spillway, tiny_model, context):
    """KV blocks have 16 tokens; the limit does not."""
    answer = spillway.run(
        "run", tiny_model, "--ids", "1,2,3,4,5", "-n", "100", "--ctx", context, "--ignore-end", "--json"
    ).json()
    assert context - 1 <= len(answer["prompt_ids"]) + len(answer["ids"]) <= context


def test_a_prompt_may_come_from_standard_input(spillway, tiny_model, tmp_path):
    for text in (TEXT, TEXT + "\n", "two\nlines\n"):
        (tmp_path / "text").write_text(text)
        piped = spillway.run("run", tiny_model, "-f", "-", "-n", "4", "--json", stdin=text).json()
        from_file = spillway.run("run", tiny_model, "-f", tmp_path / "text", "-n", "4", "--json").json()
        assert piped["prompt_ids"] == from_file["prompt_ids"]
        assert piped["ids"] == from_file["ids"]


@pytest.mark.parametrize("command", ["run", "tokenize"])
def test_what_is_piped_in_is_the_prompt_unless_one_is_given(spillway, tiny_model, command):
    def prompt_ids(*arguments, stdin):
        answer = spillway.run(command, tiny_model, *arguments, "--json", stdin=stdin).json()
        return answer["prompt_ids" if command == "run" else "ids"]

    expected = prompt_ids("-p", "two\nlines", stdin="")
    assert prompt_ids(stdin="two\nlines") == expected
    assert prompt_ids(stdin="two\nlines\n") == expected, "echo's newline is not meant"
    assert prompt_ids("-p", "two\nlines", stdin="others\n") == expected
    assert prompt_ids("-f", "-", stdin="two\nlines\n") != expected, "a file is taken as it is"


@pytest.mark.parametrize("command", ["run", "tokenize"])
def test_a_prompt_may_come_from_a_fifo(spillway, tiny_model, tmp_path, command):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def write():
        with contextlib.suppress(BrokenPipeError):  # the program's failure to read is seen below
            fifo.write_text(TEXT)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    options = ["-n", "1"] if command == "run" else []
    answer = spillway.run(command, tiny_model, "-f", fifo, "--json", *options, timeout=20).json()
    writer.join(timeout=2)
    expected = spillway.run("tokenize", tiny_model, "-p", TEXT, "--json").json()["ids"]
    assert answer["prompt_ids" if command == "run" else "ids"] == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_prompt_may_come_from_a_process_substitution(spillway, tiny_model):
    script = '"$1" run "$2" -f <(printf %s "$3") -n 1 --json'
    command = ["bash", "-c", script, "bash", spillway.path, tiny_model, TEXT]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    expected = spillway.run("tokenize", tiny_model, "-p", TEXT, "--json").json()["ids"]
    assert json.loads(done.stdout)["prompt_ids"] == expected


# Output.


def test_run_writes_only_text_when_piped(spillway, tiny_model):
    done = spillway.run("run", tiny_model, "-p", TEXT, "-n", "40", "--temp", "0")
    assert done.code == 0
    assert done.out.strip()
    assert done.err == ""
    assert not has_terminal_codes(done.out)


def test_run_tells_a_story(spillway, stories):
    done = spillway.run("run", stories / "stories260K-f32.gguf", "-p", "Once upon a time", "-n", "40", "--temp", "0")
    assert done.code == 0
    assert "there was" in done.out


def test_the_text_of_json_is_the_text_of_plain_output(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", TEXT, "-n", "40", "--temp", "0"]
    plain = spillway.run(*arguments)
    answer = spillway.run(*arguments, "--json").json()
    assert len(answer["ids"]) == 40
    assert answer["text"].strip() != ""
    assert plain.out == answer["text"] + "\n"


def test_ids_in_give_the_same_as_text_in(spillway, tiny_model):
    from_text = spillway.run("run", tiny_model, "-p", TEXT, "-n", "16", "--json").json()
    assert spillway.greedy(tiny_model, from_text["prompt_ids"], 16) == from_text["ids"]


def test_text_is_streamed(spillway, long_model):
    process = spillway.start("run", long_model, "-p", TEXT, *ENDLESS)
    try:
        pieces = [os.read(process.stdout.fileno(), 65536) for _ in range(10)]
        assert process.poll() is None, "text came only at the end"
    finally:
        end_process(process)
    assert all(pieces)
    assert len(pieces[0]) < 4096, "text came only when a buffer was full"


@pytest.mark.parametrize("number", SIGNAL_CODES, ids=lambda number: number.name)
def test_a_signal_keeps_what_was_written_and_ends_the_run(spillway, long_model, number):
    process = spillway.start("run", long_model, "-p", TEXT, *ENDLESS)
    try:
        first = os.read(process.stdout.fileno(), 8)
        assert first, process.stderr.read()
        process.send_signal(number)
        started = time.monotonic()
        rest, error = process.communicate(timeout=10)
        stopped_after_s = time.monotonic() - started
    finally:
        end_process(process)
    assert process.returncode == SIGNAL_CODES[number], error
    assert (first + rest).decode(), "whole characters only"
    assert len(error.splitlines()) <= 1
    assert stopped_after_s < 3


def wait_until_full(pipe):
    """Makes a pipe small and returns when its writer waits for room: no token's text fits, and nothing more comes."""
    room = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096) - 16
    waiting, since, deadline = 0, time.monotonic(), time.monotonic() + 30
    while waiting < room or time.monotonic() - since < 0.3:
        assert time.monotonic() < deadline, f"{waiting} bytes wait, {room} fit"
        now = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
        if now != waiting:
            waiting, since = now, time.monotonic()
        time.sleep(0.01)


@pytest.mark.parametrize("number", SIGNAL_CODES, ids=lambda number: number.name)
def test_a_signal_ends_a_run_that_waits_for_its_reader(spillway, long_model, number):
    # With one thread, the signal arrives at the one that writes.
    process = spillway.start("run", long_model, "-p", TEXT, *ENDLESS, "--threads", "1")
    try:
        wait_until_full(process.stdout)
        process.send_signal(number)
        time.sleep(0.3)  # the signal arrives while there is still no room
        _, error = process.communicate(timeout=10)
    finally:
        end_process(process)
    assert process.returncode == SIGNAL_CODES[number], error
    assert error == b""


@pytest.mark.parametrize("number", SIGNAL_CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("command", ["bench", "eval"])
def test_a_signal_ends_bench_and_eval(spillway, tiny_model, tmp_path, command, number):
    (tmp_path / "text").write_text(TEXT * 20000)
    work = {"bench": ["--prompt-len", "64", "--repeat", "1000000"], "eval": ["--text", tmp_path / "text", "--ctx", "4"]}
    process = spillway.start(command, tiny_model, *work[command])
    try:
        assert process.poll() is None, "over before the signal"
        process.send_signal(number)
        output, error = process.communicate(timeout=10)
    finally:
        end_process(process)
    assert process.returncode == SIGNAL_CODES[number], error
    assert output == b""
    assert len(error.splitlines()) <= 1


def test_a_signal_while_chatting_through_a_pipe_ends_the_chat(spillway, long_model):
    process = spillway.start("chat", long_model, "--ctx", "100000", "-n", "90000", "--temp", "0", stdin=subprocess.PIPE)
    try:
        process.stdin.write(b"Write a very long story about a river.\n")
        assert os.read(process.stdout.fileno(), 4)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    finally:
        end_process(process)
    assert process.returncode == SIGNAL_CODES[signal.SIGINT]


def test_a_reader_that_goes_away_ends_the_run_quietly(spillway, long_model):
    process = spillway.start("run", long_model, "-p", TEXT, *ENDLESS)
    try:
        assert os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        code = process.wait(timeout=10)
        error = process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert code in (0, 141, -signal.SIGPIPE), error
    assert error == b""


def test_a_full_disk_is_a_failure(spillway, tiny_model):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            spillway.command("run", tiny_model, "-p", "Once", "-n", "8", "--json"),
            stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == FAILED
    assert len(done.stderr.splitlines()) == 1


# Sampling, ends, log-probabilities.


def sample(spillway, model, *options):
    return spillway.run("run", model, "-p", "Once upon", "-n", "48", "--json", *options).json()["text"]


def test_the_same_seed_gives_the_same_text(spillway, tiny_model):
    first = sample(spillway, tiny_model, "--temp", "1", "--seed", "7")
    assert sample(spillway, tiny_model, "--temp", "1", "--seed", "7") == first


def test_another_seed_gives_another_text(spillway, tiny_model):
    texts = {sample(spillway, tiny_model, "--temp", "1", "--seed", seed) for seed in ("1", "2", "3")}
    assert len(texts) == 3


def test_a_seed_is_drawn_unless_one_is_given(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", "Once upon", "-n", "48", "--temp", "1", "--json"]
    first, second = spillway.run(*arguments).json(), spillway.run(*arguments).json()
    assert first["seed"] != second["seed"] and first["text"] != second["text"]
    for seed in (first["seed"], 0, 2**64 - 1):
        again = [spillway.run(*arguments, "--seed", seed).json() for _ in range(2)]
        assert again[0]["seed"] == seed and again[0]["text"] == again[1]["text"]
        assert seed != first["seed"] or again[0]["text"] == first["text"]


def test_greedy_does_not_depend_on_the_seed(spillway, tiny_model):
    assert sample(spillway, tiny_model, "--temp", "0", "--seed", "1") == sample(spillway, tiny_model, "--temp", "0", "--seed", "2")


def test_greedy_is_the_default(spillway, tiny_model):
    assert sample(spillway, tiny_model) == sample(spillway, tiny_model, "--temp", "0", "--seed", "0")


def test_the_single_most_likely_token_is_greedy_at_any_temperature(spillway, tiny_model):
    assert sample(spillway, tiny_model, "--temp", "2", "--top-k", "1", "--seed", "3") == sample(spillway, tiny_model)


@pytest.mark.parametrize("options", [["--temp", "0"], ["--temp", "1", "--seed", "5"]], ids=" ".join)
def test_deterministic_text_does_not_depend_on_threads(spillway, tiny_model, options):
    texts = {sample(spillway, tiny_model, "--deterministic", "--threads", n, *options) for n in ("1", "2", "3")}
    assert len(texts) == 1


def test_threads_may_be_processors(spillway, tiny_model):
    cpus = sorted(os.sched_getaffinity(0))
    chosen = ",".join(map(str, reversed(cpus[-2:]))) if len(cpus) > 1 else f"{cpus[0]}-{cpus[0]}"
    assert sample(spillway, tiny_model, "--threads", chosen) == sample(spillway, tiny_model)
    work = ["--prompt-len", "4", "--gen-len", "2", "--repeat", "1", "--json"]
    assert spillway.run("bench", tiny_model, *work, "--threads", chosen).json()["threads"] == len(cpus[-2:])
    one = spillway.run("bench", tiny_model, *work, "--threads", f"{cpus[-1]}-{cpus[-1]}").json()
    assert one["threads"] == 1


def test_more_threads_than_processors_are_remarked_on(spillway, tiny_model):
    count = len(os.sched_getaffinity(0)) + 1
    done = spillway.run("run", tiny_model, "-p", "x", "-n", "2", "--threads", count)
    assert done.code == 0 and "warning" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("chunk", ["1", "7", "1048576"])
def test_any_chunk_gives_the_same_text(spillway, tiny_model, chunk):
    arguments = ["run", tiny_model, "-p", TEXT, "-n", "24", "--deterministic", "--json"]
    assert spillway.run(*arguments, "--chunk", chunk).json()["ids"] == spillway.run(*arguments).json()["ids"]


def test_a_stop_string_ends_the_text_before_it(spillway, tiny_model):
    whole = sample(spillway, tiny_model)
    stop = whole[20:24]
    answer = spillway.run("run", tiny_model, "-p", "Once upon", "-n", "48", "--json", "--stop", stop).json()
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    plain = spillway.run("run", tiny_model, "-p", "Once upon", "-n", "48", "--stop", stop)
    assert plain.out == answer["text"] + "\n"


def test_of_several_stop_strings_the_first_in_the_text_counts(spillway, tiny_model):
    whole = sample(spillway, tiny_model)
    later, sooner = whole[30:33], whole[10:13]
    assert whole.index(sooner) < whole.index(later)
    assert sample(spillway, tiny_model, "--stop", later, "--stop", sooner) == whole[: whole.index(sooner)]


def test_the_end_token_ends_the_text_unless_it_is_ignored(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", "Once", "-n", "5", "--json", f"--logit-bias={tiny_llama.EOS}=1000"]
    ended = spillway.run(*arguments).json()
    assert ended["text"] == "" and ended["finish_reason"] == "stop" and len(ended["ids"]) <= 1
    ignored = spillway.run(*arguments, "--ignore-end").json()
    assert ignored["ids"] == [tiny_llama.EOS] * 5 and ignored["finish_reason"] == "length"


def test_a_chat_model_that_says_nothing_is_explained(spillway, tiny_model, stories):
    end = f"--logit-bias={tiny_llama.EOS}=1000"
    done = spillway.run("run", tiny_model, "-p", "Once", end)
    assert (done.code, done.out) == (0, "\n")
    assert "--chat" in done.err and len(done.err.splitlines()) == 1
    assert spillway.run("run", tiny_model, "-p", "Once", "-n", "2").err == "", "it said something"
    assert spillway.run("run", tiny_model, "-p", "Once", "-n", "0").err == "", "nothing was asked for"
    assert spillway.run("run", tiny_model, "--chat", "Once", end).err == "", "it is chatting already"
    other = spillway.run("run", stories / "stories260K-f32.gguf", "-p", "Once", "--logit-bias=2=1000")
    assert (other.out, other.err) == ("\n", ""), "no chat model"


def test_logprobs_are_those_of_the_tokens(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", TEXT, "-n", "12", "--json"]
    assert "logprobs" not in spillway.run(*arguments).json()
    answer = spillway.run(*arguments, "--logprobs", "5").json()
    assert len(answer["logprobs"]) == len(answer["ids"]) == 12
    for token, entry in zip(answer["ids"], answer["logprobs"]):
        values = [one["logprob"] for one in entry["top"]]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert entry["id"] == token
        assert entry["top"][0] == {"id": token, "token": entry["token"], "logprob": pytest.approx(entry["logprob"])}
        assert sum(map(math.exp, values)) <= 1.0001


def test_logprobs_agree_with_the_logits(spillway, tiny_model, tmp_path):
    answer = spillway.run("run", tiny_model, "-p", TEXT, "-n", "6", "--json", "--logprobs", "1").json()
    rows = read_logits(spillway, tiny_model, answer["prompt_ids"] + answer["ids"], tmp_path / "logits")
    for step, (token, entry) in enumerate(zip(answer["ids"], answer["logprobs"])):
        expected = logprob(rows[len(answer["prompt_ids"]) + step - 1], token)
        assert entry["logprob"] == pytest.approx(expected, abs=1e-3)
