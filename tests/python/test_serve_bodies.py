# SPDX-License-Identifier: Apache-2.0
"""Large and hostile bodies are refused before they are processed, are read beside small ones, and their memory is freed."""

import concurrent.futures
import json
import threading

import pytest

from serve_checks import CHAT, COMPLETIONS, NAME, Beside, Server, resident_kib, server_fixture, wait_for

pytestmark = pytest.mark.xdist_group("serve_bodies")
server = server_fixture("--ctx", "512", "--max-sequences", "2", "--max-queue", "8")

MIB = 1 << 20


def with_field(name, value, **fields):
    """A body with this text as the value of a field, without going through Python's JSON."""
    head = json.dumps({"model": NAME} | fields).encode()
    return head[:-1] + b', "' + name.encode() + b'": ' + value + b"}"


def hostile_bodies(size):
    """(path, body, codes): bodies of about `size` bytes, and the error codes for each."""
    long_text = b'"' + b"a b " * (size // 4) + b'"'
    ids = b"[" + b"7," * (size // 2) + b"7]"
    message = b'{"role":"user","content":"x"},'
    messages = b"[" + message * (size // len(message)) + message[:-1] + b"]"
    empty = b"[" + b"[]," * (size // 3) + b"[]]"
    strings = b"[" + b'"",' * (size // 3) + b'""]'
    too_long, too_many = ("context_length_exceeded",), ("request_too_large",)
    return [
        ("/tokenize", with_field("content", long_text), too_long),
        ("/tokenize", with_field("messages", messages), too_many),
        ("/detokenize", with_field("tokens", ids), too_many),
        (COMPLETIONS, with_field("prompt", ids), too_many),
        (COMPLETIONS, with_field("prompt", empty), too_many),
        (CHAT, with_field("messages", messages), too_many),
        (CHAT, with_field("metadata", strings, messages=[{"role": "user", "content": "x"}]), too_many),
        (CHAT, with_field("metadata", b'{"a":' * 60 + strings + b"}" * 60, messages=[{"role": "user", "content": "x"}]), too_many),
    ]


def test_what_no_context_holds_is_refused_before_it_is_read(server):
    for path, body, codes in hostile_bodies(4 * MIB):
        answer = server.post(path, body)
        assert answer.status in (400, 413), (path, body[:80], answer)
        error = answer.error(answer.status)
        assert error["code"] in codes, (path, body[:80], error)
        assert error["param"] in ("content", "messages", "tokens", "prompt", "metadata"), error


def test_limits_of_a_context_hold_for_shorter_ones_too(server):
    text = "a" * 200_000
    for path, field, body in (
        ("/tokenize", "messages", {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", "messages", {"messages": [{"role": "user", "content": "x"}] * 513}),
        (COMPLETIONS, "prompt", {"model": NAME, "prompt": text}),
        (COMPLETIONS, "prompt", {"model": NAME, "prompt": [7] * 513}),
        (CHAT, "messages", {"model": NAME, "messages": [{"role": "user", "content": "x"}] * 513}),
    ):
        error = server.post(path, body).error(400, "context_length_exceeded", field)
        assert "512" in error["message"], error
    # Clients count tokens to see how much they must cut, so texts longer than a context have a count, too.
    assert server.post("/tokenize", {"content": text}).ok()["count"] > 512
    assert len(server.post("/detokenize", {"tokens": [7] * 5000}).ok()["content"]) > 0


def test_large_bodies_hold_up_no_small_ones(server):
    """One reader thread parses large bodies; the others answer, however many large ones wait."""
    # A body within all limits that takes long to read: many short texts.
    large = with_field("prompt", json.dumps(["a b c d e f g h " * 12] * 1024).encode(), max_tokens=0)
    stopping = threading.Event()

    def loop():
        while not stopping.is_set():
            assert server.post(COMPLETIONS, large, timeout=120).status in (200, 400)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        loops = [pool.submit(loop) for _ in range(6)]
        try:
            for _ in range(10):
                assert server.chat("Hello", max_tokens=2)["usage"]["completion_tokens"] <= 2
        finally:
            stopping.set()
        for one in loops:
            one.result()


def test_memory_of_hostile_bodies_comes_back(spillway, tiny_model, tmp_path, report):
    with Server(spillway, tiny_model, tmp_path, "--ctx", "512", keeps_kv=False) as server:
        server.chat("Hello", max_tokens=2)
        before = resident_kib(server.process)
        peak = Peak(server)
        with peak, concurrent.futures.ThreadPoolExecutor(6) as pool:
            for answer in pool.map(lambda case: server.post(case[0], case[1]), hostile_bodies(16 * MIB)[:6]):
                assert answer.status in (400, 413, 503), answer
        server.chat("Hello", max_tokens=2)
        wait_for(lambda: resident_kib(server.process) - before < 32 * 1024)
        report(f"six hostile bodies of 16 MiB: {before >> 10} MiB before, {peak.kib >> 10} MiB at most, {resident_kib(server.process) >> 10} MiB after")
        # The bodies count twice, since a buffer that grows is copied.
        assert peak.kib - before < 2 * 6 * 16 * 1024 + 64 * 1024


class Peak(Beside):
    """The most memory that a server had during the block."""

    pause_s = 0.005
    kib = 0

    def look(self):
        self.kib = max(self.kib, resident_kib(self.server.process))


def test_bodies_count_within_host_memory(spillway, tiny_model, tmp_path):
    """2 MiB of it and half of what the plan leaves are for requests, a quarter of that for a parsed body."""
    with Server(spillway, tiny_model, tmp_path, "--ctx", "256", "--max-sequences", "1", "--host-memory", "31MiB", keeps_kv=False) as server:

        def ask(strings):
            value = b"[" + b",".join([b'"' + b"x" * 30_000 + b'"'] * strings) + b"]"
            return server.post(CHAT, with_field("metadata", value, messages=[{"role": "user", "content": "x"}], max_tokens=2))

        assert ask(1).status == 200
        error = ask(60).error(413, "request_too_large")
        assert "memory" in error["message"], error
        assert server.chat("Hello", max_tokens=2)
