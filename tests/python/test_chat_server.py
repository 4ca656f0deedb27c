# SPDX-License-Identifier: Apache-2.0
"""chat --server gives the same conversation with our own server as with a local model, and survives servers that are wrong in every way."""

import contextlib
import json
import signal
import socket
import threading

import pytest
from fake_openai_server import FakeServer

from cli_checks import FAILED, WRONG_USAGE, has_terminal_codes
from conftest import end_process
from serve_checks import AT_WORK, GENEROUS_S, NAME, Server, server_fixture, wait_for

pytestmark = pytest.mark.xdist_group("chat_server")

GREEDY = ["--temp", "0", "--repetition-penalty", "1"]
HERE = ["--deterministic", "--no-tuning", "--threads", "1", "--device", "cpu"]
KEYS = ["sk-first-0123456789", "sk-second"]
LONG = 50000

server = server_fixture()


def talk(spillway, url, *options, lines="Hello there\n", **how):
    return spillway.run("chat", "--server", url, *options, stdin=lines, **how)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# The conversation is the same as with a local model.


@pytest.mark.parametrize(
    "lines",
    [
        "Hello there\nWhat is a river?\nAnd the sea?\n",
        "Hello there\n/clear\nHello there\n/system Be brief.\nWhat is a river?\n//help\n/exit\nHello there\n",
        "\n   \n/help\n/system\n/system Be kind. é\n/system\nHello there\n",
        "",
    ],
    ids=["turns", "commands", "system", "nothing"],
)
def test_a_talk_is_the_same_whoever_answers(spillway, tiny_model, server, lines):
    here = spillway.run("chat", tiny_model, "-n", "12", *GREEDY, *HERE, stdin=lines)
    there = talk(spillway, server.url, "-n", "12", *GREEDY, lines=lines)
    assert (there.code, there.out, there.err) == (here.code, here.out, "") == (0, here.out, here.err)
    assert not has_terminal_codes(there.out)


def test_flags_are_sent_and_a_seed_repeats_the_talk(spillway, tiny_model, server):
    flags = "--temp 0.9 --top-k 30 --top-p 0.9 --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.5 --frequency-penalty 0.5 --seed 5".split()
    lines = "Hello there\n/clear\nHello there\n"
    here = spillway.run("chat", tiny_model, "-n", "20", *flags, "--repetition-window", "0", *HERE, stdin=lines)
    there = talk(spillway, server.url, "-n", "20", *flags, lines=lines)
    assert there.code == 0 and there.out == here.out
    told = talk(spillway, server.url, "-n", "8", *GREEDY, "--system", "Be brief.")
    assert told.out == spillway.run("chat", tiny_model, "-n", "8", *GREEDY, *HERE, "--system", "Be brief.", stdin="Hello there\n").out
    assert talk(spillway, server.url, "-n", "8", "--logit-bias", "999999=1").code == WRONG_USAGE


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_may_have_the_apis_path_or_not(spillway, server, suffix):
    assert talk(spillway, server.url + suffix, NAME, "-n", "4", *GREEDY).out == talk(spillway, server.url, "-n", "4", *GREEDY).out


def test_a_talk_is_saved(spillway, server, tmp_path):
    lines = f"/system Be brief.\nHello there\n/save {tmp_path}/talk.json\n"
    done = talk(spillway, server.url, "-n", "8", *GREEDY, lines=lines)
    assert done.code == 0 and done.err == ""
    assert json.loads((tmp_path / "talk.json").read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": done.out.removesuffix("\n")},
    ]


def test_a_full_context_forgets_the_oldest(spillway, server):
    word = "river " * 30
    done = talk(spillway, server.url, "-n", "100", *GREEDY, lines=f"{word}\n" * 6)
    assert done.code == 0 and "forgotten" in done.err
    done = talk(spillway, server.url, "-n", "4", lines="river " * 2000 + "\n")
    done.assert_one_line_error(WRONG_USAGE)
    assert "shorten" in done.err


def test_an_interrupt_ends_the_answer_at_the_server_too(spillway, long_model, tmp_path):
    with Server(spillway, long_model, tmp_path, "--ctx", 4 * LONG) as server:
        process = spillway.start("chat", "--server", server.url, "-n", LONG, *GREEDY, stdin=-1)
        try:
            process.stdin.write(b"Hello there\n")
            assert process.stdout.read(1)
            assert server.metrics()[next(name for name in server.metrics() if name.startswith(AT_WORK))] == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(GENEROUS_S) == 128 + signal.SIGINT
        finally:
            end_process(process)
        server.wait_until_idle()


# Failures.


def test_no_server_there(spillway):
    done = talk(spillway, f"http://127.0.0.1:{free_port()}")
    done.assert_one_line_error(FAILED)
    assert "127.0.0.1" in done.err and "running" in done.err


def test_host_and_port_will_do(spillway, server):
    expected = talk(spillway, server.url, "-n", "4", *GREEDY).out
    for url in (f"localhost:{server.port}", f":{server.port}", f"127.0.0.1:{server.port}/v1"):
        assert talk(spillway, url, "-n", "4", *GREEDY).out == expected, url


@pytest.mark.parametrize("url", ["127.0.0.1", ":", ":x", "ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h/?x", ""])
def test_addresses_that_are_none(spillway, url):
    done = talk(spillway, url)
    done.assert_one_line_error(WRONG_USAGE)
    assert "--server" in done.err and "http://HOST:PORT" in done.err


def test_https_is_a_proxys_job(spillway):
    done = talk(spillway, "https://127.0.0.1:8080")
    done.assert_one_line_error(WRONG_USAGE)
    assert "proxy" in done.err and "TLS" in done.err


@pytest.mark.parametrize(
    "words",
    [["--device", "cpu"], ["-t", "2"], ["--ctx", "100"], ["--template", "chatml"], ["--weights", "0,100,0"], ["--no-mmap"], ["--kv-type", "f16"],
     ["--deterministic"], ["--no-tuning"], ["--host-memory", "1GiB"]],
    ids=" ".join,
)  # fmt: skip
def test_options_of_loading_are_refused(spillway, words):
    done = talk(spillway, "http://127.0.0.1:1", *words)
    done.assert_one_line_error(WRONG_USAGE)
    assert words[0].lstrip("-") in done.err or words[0] == "-t" and "--threads" in done.err
    assert "--server" in done.err


def test_a_key_needs_a_server_and_a_model_needs_one_or_the_other(spillway, tiny_model, tmp_path):
    spillway.run("chat", tiny_model, "--api-key-file", tmp_path / "keys").assert_one_line_error(WRONG_USAGE)
    done = spillway.run("chat")
    done.assert_one_line_error(WRONG_USAGE)
    assert "--model is required" in done.err


def test_keys(spillway, tiny_model, tmp_path):
    def key_file(*keys):
        path = tmp_path / f"keys-{len(list(tmp_path.iterdir()))}"
        path.write_text("# mine\n" + "".join(key + "\n" for key in keys))
        path.chmod(0o600)
        return path

    with Server(spillway, tiny_model, tmp_path, "--api-key-file", key_file(*KEYS)) as server:
        for key in KEYS:
            assert talk(spillway, server.url, "-n", "4", "--api-key-file", key_file(key, "other")).code == 0
        for options in ([], ["--api-key-file", key_file("sk-wrong", *KEYS)]):
            done = talk(spillway, server.url, *options)
            done.assert_one_line_error(WRONG_USAGE)
            assert "--api-key-file" in done.err and "401" in done.err
            assert not any(key in done.err for key in ("sk-wrong", *KEYS))
        talk(spillway, server.url, "--api-key-file", tmp_path / "none").assert_one_line_error(WRONG_USAGE)


def test_a_model_that_the_server_has_not(spillway, server):
    done = talk(spillway, server.url, "no-such-model")
    done.assert_one_line_error(WRONG_USAGE)
    assert NAME in done.err


def test_a_window_of_repetitions_is_sent(spillway, tiny_model, server):
    flags = ["-n", "20", "--temp", "0", "--repetition-penalty", "1.3", "--repetition-window", "3"]
    here = spillway.run("chat", tiny_model, *flags, *HERE, stdin="Hello there\n")
    assert talk(spillway, server.url, *flags).out == here.out


def refuses_newcomers(server):
    try:
        return server.get("/v1/models").status == 503
    except OSError:
        return True  # it is gone


def test_a_server_that_drains(spillway, long_model, tmp_path):
    """It ends the answer that is under way, and refuses the next."""
    with Server(spillway, long_model, tmp_path, "--ctx", "8192") as server:
        process = spillway.start("chat", "--server", server.url, "-n", "1000", *GREEDY, stdin=-1)
        try:
            process.stdin.write(b"Hello there\n")
            first = process.stdout.read(1)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: refuses_newcomers(server))  # otherwise it may answer the next question before it has noticed the signal
            process.stdin.write(b"Hello there\n")
            out = first + process.stdout.read()
            error = process.stderr.read().decode()
            assert process.wait(GENEROUS_S) == FAILED
        finally:
            end_process(process)
        assert len(out) > 1000 and out.endswith(b"\n")
        # The server may still refuse, or be gone with the question unread, or have ended before.
        assert len(error.splitlines()) == 1 and any(said in error for said in ("refuses", "without an answer", "no server"))
        assert server.process.wait(GENEROUS_S) == 0


# Another server.


@pytest.mark.parametrize("how", [{}, {"piece_bytes": 1}, {"piece_bytes": 7}, {"keeps_open": True}], ids=str)
def test_another_server_is_asked_as_openai_wants_it(spillway, how):
    with FakeServer(**how) as fake:
        done = talk(spillway, fake.url, "-n", "5", "--temp", "0.8", "--seed", "7", "--stop", "x", lines="Hi é\nAnd?\n")
        answer = "".join(f" {number}é" for number in range(5))
        assert (done.code, done.out, done.err) == (0, f"{answer}\n{answer}\n", "")
        common = {"model": "fake", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5, "temperature": 0.8, "stop": ["x"]}
        first = {"role": "user", "content": "Hi é"}
        assert fake.asked == [
            common | {"messages": [first], "seed": 7},
            common | {"messages": [first, {"role": "assistant", "content": answer}, {"role": "user", "content": "And?"}], "seed": 8},
        ]
        assert talk(spillway, fake.url, "another", "-n", "1").code == 0
        assert fake.asked[-1] == {"model": "another", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 1} | {
            "stream": True, "stream_options": {"include_usage": True}
        }  # fmt: skip


def test_another_server_may_have_no_field_for_a_flag(spillway):
    with FakeServer() as fake:
        done = talk(spillway, fake.url, "--repetition-window", "7")
        done.assert_one_line_error(WRONG_USAGE)
        assert "--repetition-window" in done.err and fake.asked == []


def test_an_answer_that_breaks_off(spillway):
    with FakeServer(cut_after=3) as fake:
        done = talk(spillway, fake.url, "-n", "9")
        assert (done.code, done.out) == (FAILED, " 0é 1é 2é\n")
        assert "in the middle" in done.err and len(done.err.splitlines()) == 1


def test_a_server_that_has_no_room(spillway):
    with FakeServer(refuse_after=1) as fake:
        done = talk(spillway, fake.url, "-n", "1", lines="Hi\nHi\n")
        assert (done.code, done.out) == (FAILED, " 0é\n")
        assert "too many (HTTP 429)" in done.err and len(done.err.splitlines()) == 1


# A server that sends arbitrary bytes.


@contextlib.contextmanager
def saying(*answers):
    """A server that sends the first of these byte strings on its first connection, the second on the next, and the last on all others; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve():
        number = 0
        while not stopping.is_set():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                connection.recv(1 << 20)
                connection.sendall(answers[min(number, len(answers) - 1)])
            number += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopping.set()
        with contextlib.suppress(OSError):
            socket.create_connection(listener.getsockname()).close()
        thread.join(10)
        listener.close()


def whole(body, status=200, kind="application/json"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind.encode(), len(content)) + content


MODELS = whole({"data": [{"id": "m", "max_model_len": 100}]})
EVENTS = "text/event-stream; charset=utf-8"
SAID = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage\r\n\r\n", whole(b"{"), whole({}), whole({"data": 7}), whole(b"\xff" * 100), whole(b"[" * 100_000), whole(b"x" * 1000, 500),
     b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    ids=range(10),
)  # fmt: skip
def test_a_list_of_models_that_is_none(spillway, answer):
    with saying(answer) as url:
        talk(spillway, url).assert_one_line_error(FAILED)


@pytest.mark.parametrize(
    "answer, out",
    [
        (b"", ""), (b"garbage\r\n\r\n", ""), (whole(b"{}"), ""), (whole(SAID, kind=EVENTS), "yes\n"), (whole(b"", kind=EVENTS), ""),
        (whole(SAID + b"data: {\n\n", kind=EVENTS), "yes\n"), (whole(SAID + b"data: 7\n\n", kind=EVENTS), "yes\n"),
        (whole(SAID + b'data: {"error": {"message": "out of\\nmemory"}}\n\n', kind=EVENTS), "yes\n"),
        (whole(b"data: " + b"x" * (5 << 20), kind=EVENTS), ""), (whole({"error": {"message": "busy"}}, 503), ""), (whole(b"<html>", 502), ""),
    ],
    ids=range(11),
)  # fmt: skip
def test_an_answer_that_is_none(spillway, answer, out):
    with saying(MODELS, answer) as url:
        done = talk(spillway, url)
        assert (done.code, done.out) == (FAILED, out), done.err
        assert len(done.err.splitlines()) == 1 and len(done.err) < 2000


def test_odd_events_do_no_harm(spillway):
    odd = b": ping\n\n" + b"".join(b"data: " + event + b"\n\n" for event in (b"{}", b'{"choices": [7]}', b'{"usage": {"prompt_tokens": -1}}'))
    with saying(MODELS, whole(odd + SAID + odd + DONE + b"data: {", kind=EVENTS)) as url:
        done = talk(spillway, url)
        assert (done.code, done.out, done.err) == (0, "yes\n", "")


def test_a_server_without_a_list_needs_the_models_name(spillway):
    with saying(whole({"detail": "Not Found"}, 404), whole(SAID + DONE, kind=EVENTS)) as url:
        assert talk(spillway, url, "m").out == "yes\n"
    with saying(whole({"detail": "Not Found"}, 404)) as url:
        talk(spillway, url).assert_one_line_error(WRONG_USAGE)
    with saying(whole({"data": []})) as url:
        talk(spillway, url).assert_one_line_error(WRONG_USAGE)


def test_who_refuses_a_field_is_quoted_with_the_flags_that_may_be_meant(spillway):
    with saying(MODELS, whole({"error": {"message": "Unknown parameter: top_k"}}, 400)) as url:
        done = talk(spillway, url, "--top-k", "7", "--temp", "1")
        done.assert_one_line_error(WRONG_USAGE)
        assert "Unknown parameter: top_k" in done.err and done.err.rstrip().endswith("--top-k")


def test_a_full_context_is_tried_again_with_less(spillway):
    full = whole({"error": {"message": "x", "code": "context_length_exceeded"}}, 400)
    yes = whole(SAID + DONE, kind=EVENTS)
    with saying(MODELS, yes, full, yes) as url:
        done = talk(spillway, url, lines="a\nb\n")
        assert (done.code, done.out) == (0, "yes\nyes\n") and "forgotten" in done.err


def test_escape_codes_in_an_error_stay_on_the_line(spillway):
    with saying(whole({"error": {"message": "\x1b[2J\nboo"}}, 400)) as url:
        done = talk(spillway, url)
        done.assert_one_line_error(WRONG_USAGE)
        assert not has_terminal_codes(done.err)
