# SPDX-License-Identifier: Apache-2.0
"""How the commands behave: usage, prompts, exit codes, JSON, interrupts, sampling. Models are generated (tiny_llama.py);
test_cli_models.py has damaged ones, test_terminal.py terminals."""

import array
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
import sys
import termios
import threading
import time

import pytest
import tiny_llama

from conftest import SHARED_DATA, end_process

COMMANDS = ["run", "chat", "batch", "inspect", "eval", "bench", "profile", "tokenize"]
FAILED = 1
WRONG_USAGE = 2
ENDLESS = ["-n", "100000", "--ignore-end"]  # takes far longer than any test waits
SIGNAL_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
TEXT = "The river was wide, and in the morning he said: there is a café on the other side of it. "
UNKNOWN_FLAG = re.compile("not expected|following argument|unknown|unrecognized", re.IGNORECASE)


def assert_bad_value(done):
    """Wrong usage because of a value: a flag that does not exist would be wrong usage too."""
    done.assert_one_line_error(WRONG_USAGE)
    assert not UNKNOWN_FLAG.search(done.err), f"the flag itself is unknown: {done.err}"


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
        ["--logprobs", "x"],
        ["--seed", "x"],
        ["--seed", "-1"],
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
        ["--kv-type", "q1"],
    ],
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
    work = {"run": ["-p", "Once"], "eval": ["--text", tmp_path / "text"], "bench": []}[command]
    assert_bad_value(spillway.run(command, tiny_model, *work, *options))


@pytest.mark.parametrize("options", [["--stop", "foo"], ["--logit-bias", "5=1"], ["--seed", "3", "--stop", "foo"]], ids=" ".join)
def test_options_with_values_may_stand_before_the_model(spillway, tiny_model, options):
    before = spillway.run("run", *options, tiny_model, "-p", "hi", "-n", "4", "--json").json()
    after = spillway.run("run", tiny_model, "-p", "hi", "-n", "4", "--json", *options).json()
    assert before["ids"] == after["ids"] and len(before["ids"]) == 4


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
    assert_bad_value(spillway.run("run", tiny_model))


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


def has_terminal_codes(text):
    return "\x1b" in text or "\r" in text or "\b" in text


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
    # One thread: the signal comes to the one that writes.
    process = spillway.start("run", long_model, "-p", TEXT, *ENDLESS, "--threads", "1")
    try:
        wait_until_full(process.stdout)
        process.send_signal(number)
        time.sleep(0.3)  # it comes while there is still no room
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
    process = spillway.start("chat", long_model, "--ctx", "100000", "-n", "90000", stdin=subprocess.PIPE)
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


def test_logprobs_are_those_of_the_tokens(spillway, tiny_model):
    arguments = ["run", tiny_model, "-p", TEXT, "-n", "12", "--json"]
    assert "logprobs" not in spillway.run(*arguments).json()
    answer = spillway.run(*arguments, "--logprobs", "5").json()
    assert len(answer["logprobs"]) == len(answer["ids"]) == 12
    for token, entry in zip(answer["ids"], answer["logprobs"]):
        values = [one["logprob"] for one in entry["top"]]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert entry["top"][0] == {"id": token, "logprob": pytest.approx(entry["logprob"])}
        assert sum(map(math.exp, values)) <= 1.0001


def test_logprobs_agree_with_the_logits(spillway, tiny_model, tmp_path):
    answer = spillway.run("run", tiny_model, "-p", TEXT, "-n", "6", "--json", "--logprobs", "1").json()
    rows = read_logits(spillway, tiny_model, answer["prompt_ids"] + answer["ids"], tmp_path / "logits")
    for step, (token, entry) in enumerate(zip(answer["ids"], answer["logprobs"])):
        expected = logprob(rows[len(answer["prompt_ids"]) + step - 1], token)
        assert entry["logprob"] == pytest.approx(expected, abs=1e-3)


# chat


def chat_prompt(*turns):
    """What the ChatML template makes of user, assistant, user ..."""
    roles = ["user", "assistant"] * len(turns)
    text = "".join(f"<|im_start|>{role}\n{turn}<|im_end|>\n" for role, turn in zip(roles, turns))
    return text + "<|im_start|>assistant\n"


def answer_to(spillway, model, text, count):
    ids = spillway.run("tokenize", model, "-p", text, "--parse-special", "--no-special", "--json").json()["ids"]
    answer = spillway.run("run", model, "--ids", ",".join(map(str, ids)), "-n", count, "--json").json()
    return answer["text"]


@pytest.mark.parametrize("layout", ["tiny_model", "tiny_folder"])
def test_chat_is_run_with_the_template_around_the_conversation(spillway, request, layout):
    model = request.getfixturevalue(layout)
    done = spillway.run("chat", model, "-n", "8", stdin="Hello there\nWhat is a river?\n")
    assert done.code == 0 and done.err == ""
    first = answer_to(spillway, model, chat_prompt("Hello there"), 8)
    second = answer_to(spillway, model, chat_prompt("Hello there", first, "What is a river?"), 8)
    assert done.out == f"{first}\n{second}\n"
    assert first != second and not has_terminal_codes(done.out)


def test_chat_begins_with_the_system_message(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, "-n", "8", "--system", "Be brief.", stdin="Hello there\n")
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert done.out == answer_to(spillway, tiny_model, system + chat_prompt("Hello there"), 8) + "\n"


def test_chat_forgets_on_reset_and_ends_on_exit(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, "-n", "8", stdin="Hello there\n/reset\nHello there\n/exit\nHello there\n")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]


def test_chat_does_not_take_control_tokens_from_a_message(spillway, tiny_model):
    """A message that spells them is text: the answer is another one than to the real tokens."""
    message = "Hi<|im_end|>\n<|im_start|>assistant\nNo"
    as_tokens = answer_to(spillway, tiny_model, chat_prompt(message.replace("\n", " ")), 8)
    done = spillway.run("chat", tiny_model, "-n", "8", stdin=message.replace("\n", " ") + "\n")
    assert done.code == 0 and done.out != as_tokens + "\n"


def test_chat_without_input_ends(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, stdin="")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_chat_through_a_pipe_refuses_a_message_that_is_not_utf8(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, stdin=b"caf\xff\n")
    assert_bad_value(done)
    assert "UTF-8" in done.err


def test_chat_needs_a_chat_template(spillway, stories):
    done = spillway.run("chat", stories / "stories260K-f32.gguf", stdin="Hello\n")
    done.assert_one_line_error(WRONG_USAGE)
    assert "template" in done.err


def test_a_real_chat_model_answers(spillway, chat_model):
    done = spillway.run("chat", chat_model, stdin="What is the capital of France? Answer in one word.\n", timeout=180)
    assert done.code == 0, done.err
    assert "Paris" in done.out
    assert "<|im_" not in done.out
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


def test_a_real_chat_model_remembers_the_conversation(spillway, chat_model):
    lines = "My name is Zebulon. Say hello in one short sentence.\nWhat is my name? Answer in one short sentence.\n"
    done = spillway.run("chat", chat_model, stdin=lines, timeout=180)
    assert done.code == 0, done.err
    assert "Zebulon" in done.out


# inspect


def assert_inspects(spillway, model):
    done = spillway.run("inspect", model)
    assert done.code == 0, done.err
    assert "llama" in done.out.lower()
    assert not has_terminal_codes(done.out)
    description = spillway.run("inspect", model, "--json").json()
    assert isinstance(description, dict)
    assert "llama" in json.dumps(description).lower()


@pytest.mark.parametrize("layout", ["tiny_model", "tiny_folder"])
def test_inspect_tells_what_is_in_a_model(spillway, request, layout):
    model = request.getfixturevalue(layout)
    assert_inspects(spillway, model)
    name = "token_embd.weight" if layout == "tiny_model" else "model.embed_tokens.weight"
    assert name in spillway.run("inspect", model, "--tensors").out


@pytest.mark.parametrize("model", ["stories260K-f32.gguf", "stories260K-hf", "stories15M-Q8_0.gguf"])
def test_inspect_tells_what_is_in_a_real_model(spillway, stories, model):
    assert_inspects(spillway, stories / model)


@pytest.mark.parametrize("options", [[], ["--metadata"], ["--tensors"]], ids=" ".join)
def test_inspect_prints_no_control_characters_of_the_file(spillway, tiny_model, tmp_path, options):
    strange = tiny_llama.write_gguf(tmp_path / "tiny.gguf", name="evil\x1b[31m\nsecond line\r\x07")
    done = spillway.run("inspect", strange, *options)
    assert done.code == 0, done.err
    assert not any(byte < 0x20 and byte != 0x0A or byte == 0x7F for byte in done.raw_out), done.raw_out
    assert len(done.out.splitlines()) == len(spillway.run("inspect", tiny_model, *options).out.splitlines())


def test_inspect_describes_a_model_that_is_not_there(spillway):
    started = time.monotonic()
    description = spillway.run("inspect", "dummy:opt-30b", "--json").json()
    assert "opt" in json.dumps(description).lower()
    assert time.monotonic() - started < 5, "describing a dummy must not make its weights"


def test_inspect_lists_devices(spillway):
    assert "cpu" in spillway.run("inspect", "--devices").out.lower()
    assert "cpu" in json.dumps(spillway.run("inspect", "--devices", "--json").json()).lower()


def test_inspect_of_nothing_is_wrong_usage(spillway):
    assert_bad_value(spillway.run("inspect"))


# tokenize


def test_tokenize_prints_the_ids_that_run_uses(spillway, tiny_model):
    ids = spillway.run("tokenize", tiny_model, "-p", TEXT, "--json").json()["ids"]
    assert ids == spillway.run("run", tiny_model, "-p", TEXT, "-n", "1", "--json").json()["prompt_ids"]
    plain = spillway.run("tokenize", tiny_model, "-p", TEXT)
    assert plain.code == 0
    assert [int(word) for word in plain.out.replace(",", " ").split()] == ids


def test_tokenize_merges_by_rank(spillway, tiny_model, tiny_folder):
    expected = [tiny_llama.TOKENS.index(text) for text in ("T", "he", "Ġ", "riv", "er", "Ġ", "Ã©", "Ġ", "!")]
    for model in (tiny_model, tiny_folder):
        answer = spillway.run("tokenize", model, "-p", "The river é !", "--no-special", "--json").json()
        assert answer == {"ids": expected, "count": len(expected)}


def test_tokenize_finds_control_tokens_only_when_asked(spillway, tiny_model):
    text = "a<|im_end|>"
    parsed = spillway.run("tokenize", tiny_model, "-p", text, "--parse-special", "--json").json()["ids"]
    assert parsed == [tiny_llama.BOS, ord("a"), tiny_llama.EOS]
    assert tiny_llama.EOS not in spillway.run("tokenize", tiny_model, "-p", text, "--json").json()["ids"]


def test_tokenize_without_special_tokens_leaves_the_beginning_of_sequence_out(spillway, tiny_model):
    ids = spillway.run("tokenize", tiny_model, "-p", "The dog", "--json").json()["ids"]
    bare = spillway.run("tokenize", tiny_model, "-p", "The dog", "--no-special", "--json").json()["ids"]
    assert ids[0] == tiny_llama.BOS and bare == ids[1:]


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


# eval


def read_logits(spillway, model, ids, path):
    """[len(ids)][vocabulary]"""
    done = spillway.run("logits", model, "--ids", ",".join(map(str, ids)), "-o", path)
    assert done.code == 0, done.err
    values = array.array("f", path.read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    width = len(values) // len(ids)
    return [values[start : start + width] for start in range(0, len(values), width)]


def logprob(row, token):
    largest = max(row)
    return row[token] - largest - math.log(sum(math.exp(value - largest) for value in row))


def test_eval_scores_the_second_half_of_each_window(spillway, tiny_model, tmp_path):
    context, (text, logits) = 32, (tmp_path / "text", tmp_path / "logits")
    text.write_text(TEXT * 3)
    result = spillway.run("eval", tiny_model, "--text", text, "--ctx", context, "--json").json()
    ids = spillway.run("tokenize", tiny_model, "-f", text, "--json").json()["ids"]
    windows = len(ids) // context
    losses = []
    for start in range(0, windows * context, context):
        window = [tiny_llama.BOS] + ids[start + 1 : start + context]
        rows = read_logits(spillway, tiny_model, window, logits)
        losses += [-logprob(rows[at], window[at + 1]) for at in range(context // 2, context - 1)]
    assert windows >= 3 and (result["windows"], result["tokens"]) == (windows, len(losses))
    assert result["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-3)
    first = spillway.run("eval", tiny_model, "--text", text, "--ctx", context, "--max-windows", "1", "--json").json()
    assert first["windows"] == 1


def test_eval_reads_standard_input(spillway, tiny_model, tmp_path):
    (tmp_path / "text").write_text(TEXT * 3)
    arguments = ["eval", tiny_model, "--ctx", "32", "--json", "--text"]
    piped = spillway.run(*arguments, "-", stdin=TEXT * 3).json()
    assert piped["perplexity"] == spillway.run(*arguments, tmp_path / "text").json()["perplexity"]


def test_eval_prefers_the_model_s_own_text_to_noise(spillway, tiny_model, tmp_path):
    own = spillway.run("run", tiny_model, "-p", "", "-n", "400", "--ignore-end", "--json").json()["text"]
    (tmp_path / "own").write_text(own)
    (tmp_path / "noise").write_text(own[::-1])
    results = [
        spillway.run("eval", tiny_model, "--text", tmp_path / name, "--ctx", "64", "--json").json()["perplexity"]
        for name in ("own", "noise")
    ]
    assert 1 < results[0] < results[1]


def test_eval_prefers_a_story_to_noise(spillway, stories, tmp_path):
    story = " ".join(e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"])
    (tmp_path / "story").write_text(story)
    (tmp_path / "noise").write_text(story[::-1])
    results = [
        spillway.run("eval", stories / "stories260K-f32.gguf", "--text", tmp_path / name, "--ctx", "128", "--json").json()
        for name in ("story", "noise")
    ]
    assert results[0]["perplexity"] * 5 < results[1]["perplexity"]
    assert 1 < results[0]["perplexity"] < 4, "this text is the model's own greedy output"


def test_eval_refuses_what_it_cannot_score(spillway, tiny_model, tmp_path):
    spillway.run("eval", tiny_model).assert_one_line_error(WRONG_USAGE)
    spillway.run("eval", tiny_model, "--text", tmp_path / "gone").assert_one_line_error(WRONG_USAGE)
    (tmp_path / "short").write_text("Once")
    assert_bad_value(spillway.run("eval", tiny_model, "--text", tmp_path / "short", "--ctx", "128"))
    (tmp_path / "bytes").write_bytes(b"\xff" * 1000)
    assert_bad_value(spillway.run("eval", tiny_model, "--text", tmp_path / "bytes", "--ctx", "128"))


def test_eval_guesses_last_words(spillway, tiny_model, tmp_path):
    passages = tmp_path / "passages.jsonl"
    passages.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("The cat sat", "A river in the north")))
    result = spillway.run("eval", tiny_model, "--last-word", passages, "--json").json()
    assert result["passages"] == 2 and 0 <= result["last_word_accuracy"] <= 1 and result["last_word_perplexity"] > 1
    for bad in ("no JSON\n", "{}\n", '{"text": "word"}\n', ""):
        passages.write_text(bad)
        assert_bad_value(spillway.run("eval", tiny_model, "--last-word", passages))
    passages.write_text('{"text": "A river"}\n\nno JSON\n')
    assert "passages.jsonl:3: " in spillway.run("eval", tiny_model, "--last-word", passages).err


def test_eval_knows_the_last_words_of_its_own_text(spillway, stories, tmp_path):
    """What a model has written greedily is what it guesses; the same words in another order are not."""
    texts = [e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"]]
    own, mixed = [], []
    for text in texts:
        words = text.split(" ")
        for end in range(20, len(words), 7):
            own.append(" ".join(words[:end]))
            mixed.append(" ".join(words[: end - 1] + words[3:4]))
    model = stories / "stories260K-f32.gguf"
    accuracy = {}
    for name, passages in (("own", own), ("mixed", mixed)):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))
        result = spillway.run("eval", model, "--last-word", tmp_path / name, "--json").json()
        assert result["passages"] == len(passages)
        accuracy[name] = result["last_word_accuracy"]
    assert accuracy["own"] > 0.9 and accuracy["mixed"] < 0.5
    # With a text as well, both are reported.
    (tmp_path / "text").write_text(" ".join(texts))
    both = spillway.run("eval", model, "--last-word", tmp_path / "own", "--text", tmp_path / "text", "--ctx", "64", "--json").json()
    assert both["last_word_accuracy"] == accuracy["own"] and both["perplexity"] > 1


def test_eval_with_sparse_attention_reads_fewer_values(spillway, stories, tmp_path):
    texts = [e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"]]
    (tmp_path / "text").write_text(" ".join(texts))
    arguments = ["eval", stories / "stories260K-f32.gguf", "--text", tmp_path / "text", "--ctx", "128", "--json"]
    dense = spillway.run(*arguments).json()
    everything = spillway.run(*arguments, "--attention-topk", "1").json()
    assert everything["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-4)
    # The query heads of a group choose for themselves: all of them read everything.
    group = everything["attention_v_bytes"] / everything["attention_v_bytes_dense"]
    assert group == int(group) and group >= 1
    sparse = spillway.run(*arguments, "--attention-topk", "0.25").json()
    assert sparse["attention_topk"] == 0.25 and sparse["attention_v_bytes_dense"] == everything["attention_v_bytes_dense"]
    assert 0.25 <= sparse["attention_v_bytes"] / everything["attention_v_bytes"] < 0.26
    assert sparse["perplexity"] != dense["perplexity"]
    assert sparse["perplexity"] < 1.5 * dense["perplexity"]
    for bad in ("1.5", "-0.1", "nan", "some"):
        assert spillway.run(*arguments, "--attention-topk", bad).code == WRONG_USAGE


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


def test_bench_reports_what_sparse_attention_reads(spillway, tiny_model):
    arguments = ["bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--batch", "2", "--json"]
    dense = spillway.run(*arguments).json()
    assert dense["attention_topk"] == 0 and dense["attention_v_bytes"] == dense["attention_v_bytes_dense"] > 0
    sparse = spillway.run(*arguments, "--attention-topk", "0.1", "--repeat", "2").json()
    assert sparse["attention_v_bytes_dense"] == dense["attention_v_bytes_dense"]
    # 33 to 39 positions in decode: 4 take part, of each query head.
    group = spillway.run(*arguments, "--attention-topk", "1").json()["attention_v_bytes"] / dense["attention_v_bytes"]
    assert sparse["attention_v_bytes"] == pytest.approx(dense["attention_v_bytes"] * group * 7 * 4 / sum(range(33, 40)))
    people = spillway.run("bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--attention-topk", "0.1")
    assert "of values read" in people.out


def test_bench_for_people_has_no_terminal_codes_when_piped(spillway, tiny_model):
    done = spillway.run("bench", tiny_model, "--prompt-len", "16", "--gen-len", "4")
    assert done.code == 0, done.err
    assert done.out.strip()
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


def test_bench_takes_a_batch_larger_than_a_chunk(spillway, tiny_model):
    work = ["--prompt-len", "4", "--gen-len", "3", "--repeat", "1", "--json"]
    assert spillway.run("bench", tiny_model, "--batch", "600", *work).json()["batch"] == 600
    assert spillway.run("bench", tiny_model, "--batch", "5", "--chunk", "2", *work).json()["batch"] == 5


def test_bench_takes_requests_of_mixed_lengths(spillway, tiny_model, tmp_path):
    lengths = [(20, 5), (7, 9), (30, 3), (4, 14), (3, 3)]
    (tmp_path / "lengths").write_text("".join(f"{prompt} {answer}\n" for prompt, answer in lengths))
    options = ["--lengths", tmp_path / "lengths", "--batch", "3", "--micro-batch", "2", "--repeat", "1", "--json"]
    reports = {s: spillway.run("bench", tiny_model, *options, "--schedule", s).json() for s in ("zigzag", "diagonal", "row")}
    for schedule, result in reports.items():
        assert result["plan"]["schedule"] == schedule
        assert (result["requests"], result["left_out"], result["batch"]) == (5, 0, 3)
        assert result["prompt_tokens"] == 64 and result["generated_tokens"] == 34
        assert result["longest_prompt"] == 30 and result["longest_answer"] == 14
        assert result["preemptions"] == 0
        seconds = result["seconds"]
        assert result["generated_tokens_per_s"] * seconds == pytest.approx(34)
        assert result["total_tokens_per_s"] * seconds == pytest.approx(34 + 64)
        assert 0 < result["first_token_s"]["mean"] <= result["latency_s"]["mean"] < result["latency_s"]["max"] <= seconds
        # Every sequence is at work in one step for each token of its answer.
        assert result["mean_sequences"] * result["steps"] == pytest.approx(34)
        assert result["occupancy"] == pytest.approx(result["mean_sequences"] / 3)
        assert result["run"]["seconds"] == seconds
    zigzag, diagonal, row = reports.values()
    # Blocks last as long as their longest answer; row by row they are of two.
    assert zigzag["steps"] == 9 + 14 and row["steps"] == 9 + 14 + 3
    assert (zigzag["padded_prompt_tokens"], zigzag["padded_generated_tokens"]) == (3 * 30 + 2 * 4, 3 * 9 + 2 * 14)
    assert (row["padded_prompt_tokens"], row["padded_generated_tokens"]) == (2 * 20 + 2 * 30 + 3, 2 * 9 + 2 * 14 + 3)
    assert zigzag["padded_total_tokens_per_s"] * zigzag["seconds"] == pytest.approx(98 + 55)
    assert zigzag["padding_efficiency"] == pytest.approx(98 / 153)
    # One begins in each step: the fourth in the sixth, when the first has ended.
    assert diagonal["max_admissions"] == 1 and diagonal["steps"] == 5 + 14


def test_bench_takes_the_lengths_of_a_trace(spillway, tiny_model, tmp_path):
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,37,4", "2023-11-16 18:15:47.01,99999,10"]
    trace = tmp_path / "trace.csv"
    trace.write_text("\r\n".join([*rows, "2023-11-16 18:15:48.22,9,1", "not looked at"]) + "\r\n")
    done = spillway.run("bench", tiny_model, "--lengths", trace, "--requests", "3", "--batch", "2", "--repeat", "1")
    assert done.code == 0, done.err
    assert "2 requests, 2 at once, zigzag" in done.out and "left out  1 " in done.out
    assert not has_terminal_codes(done.out)


def test_bench_lengths_that_make_no_sense(spillway, tiny_model, tmp_path):
    file = tmp_path / "lengths"
    for text, told in (("1 2\n3\n", "line 2"), ("", "no requests"), ("0 4\n", "line 1"), ("99999 1\n", "context")):
        file.write_text(text)
        done = spillway.run("bench", tiny_model, "--lengths", file)
        assert_bad_value(done)
        assert told in done.err
    assert_bad_value(spillway.run("bench", tiny_model, "--lengths", tmp_path / "absent"))
    assert_bad_value(spillway.run("bench", tiny_model, "--lengths", ""))
    file.write_text("4 2\n")
    for options in (["--prompt-len", "4"], ["--gen-len", "4"], ["--steps", "1"], ["--requests", "0"]):
        assert_bad_value(spillway.run("bench", tiny_model, "--lengths", file, *options))
    assert_bad_value(spillway.run("bench", tiny_model, "--requests", "4"))


# --compress-weights


@pytest.mark.parametrize("access", [[], ["--no-mmap"]])
def test_compressed_weights_are_smaller_and_nearly_as_good(spillway, stories, tmp_path, access):
    model = stories / "stories260K-f32.gguf"
    story = " ".join(e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"])
    (tmp_path / "story").write_text(story)

    def perplexity(*options):
        return spillway.run("eval", model, "--text", tmp_path / "story", "--ctx", "128", "--json", *options).json()["perplexity"]

    plain, compressed = perplexity(), perplexity("--compress-weights", *access)
    assert plain != compressed
    assert compressed == pytest.approx(plain, rel=0.35), "a model of 260K parameters has little to spare"

    def bench(*options):
        return spillway.run("bench", model, "--prompt-len", "8", "--gen-len", "4", "--repeat", "1", "--json", *options).json()

    plain, compressed = bench(), bench("--compress-weights", *access)
    # Rows of 172 columns (down) are no whole groups and stay F32.
    assert compressed["tiers"]["host"]["peak_bytes_by_tag"]["weights"] < 0.4 * plain["weight_bytes"]  # mapped ones are charged to nobody
    text = spillway.run("run", model, "-p", "Once upon a time", "-n", "20", "--compress-weights", *access)
    assert text.code == 0 and text.out.strip()


def test_dummy_weights_may_be_compressed(spillway):
    work = ["--prompt-len", "4", "--gen-len", "2", "--repeat", "1", "--json"]
    compressed = spillway.run("bench", "dummy:smollm2-135m", "--compress-weights", *work).json()
    named = spillway.run("bench", "dummy:smollm2-135m:g4", *work).json()
    for result in (compressed, named):
        assert result["weight_type"] == "G4"
        # 36 bytes for 64 weights, and the norms.
        assert result["tiers"]["host"]["peak_bytes_by_tag"]["weights"] == pytest.approx(134.5e6 * 36 / 64, rel=0.01)
