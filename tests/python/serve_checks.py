# SPDX-License-Identifier: Apache-2.0
"""A running `spillway serve`, and functions to send it proper and improper requests."""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import end_process

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
NAME = "tiny"
AT_WORK, WAITING = "spillway_requests_running", "spillway_requests_waiting"
GENEROUS_S = 60  # a time limit for anything that takes milliseconds on an idle machine
READY = re.compile(r"serving (.*) at http://127\.0\.0\.1:(\d+)\n")
METRIC = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+0-9.eE]+|NaN|[-+]Inf)(?: \d+)?')


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict  # names in lower case
    raw: bytes

    def json(self):
        return json.loads(self.raw)

    def ok(self):
        assert self.status == 200, f"{self.status}: {self.raw[:2000]!r}"
        return self.json()

    def error(self, status, code=None, param=...):
        """Checks that the request failed in this way; returns the error."""
        assert self.status == status, f"{self.status}, expected {status}: {self.raw[:2000]!r}"
        assert self.headers["content-type"].startswith("application/json")
        error = self.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and len(error["message"]) > 5
        if code is not None:
            assert error["code"] == code, error
        if param is not ...:
            assert error["param"] == param, error
        return error


class Server:
    """A server of the test's own, on a port that was free. Use as a block; leaving it kills what still runs.

    Unless a test says otherwise, evicted KV is kept on disk in a folder of its own, and requests are admitted by their predicted lengths."""

    def __init__(self, spillway, model, folder, *options, port=0, wait=True, env=None, verbose=False, keeps_kv=True):
        if keeps_kv and "--kv-dir" not in options:
            options += ("--kv-dir", pathlib.Path(folder) / f"kv-{time.monotonic_ns()}", "--kv-dir-size", "64MiB")
        self.log_path = pathlib.Path(folder) / f"serve-{time.monotonic_ns()}.log"
        words = [*(["-v"] if verbose else []), "serve", model, "--port", port, "--deterministic", "--no-tuning"]
        for name, value in (("--device", "cpu"), ("--name", NAME), ("--threads", "1")):
            words += [] if name in options else [name, value]
        with open(self.log_path, "wb") as log:
            self.process = spillway.start(*words, *options, stderr=log, env=env)
        self.port = port
        self.name = ""
        self.headers = {}  # sent with all requests that name no other headers, for example a key
        if wait:
            self.wait_until_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end_process(self.process)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self):
        line = b""
        deadline = time.monotonic() + GENEROUS_S
        while not line.endswith(b"\n"):
            assert select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0], "not ready in time"
            byte = self.process.stdout.read(1)
            assert byte, f"it ended with {self.process.wait(GENEROUS_S)}: {self.log()}"
            line += byte
        found = READY.fullmatch(line.decode())
        assert found, f"not the line that says where it serves: {line!r}"
        self.name, self.port = found[1], int(found[2])

    def end(self, number=signal.SIGTERM):
        """The exit code after this signal."""
        self.process.send_signal(number)
        return self.process.wait(GENEROUS_S)

    # Proper requests.

    def connect(self, timeout=GENEROUS_S, source=None):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=(source, 0) if source else None)

    def ask(self, method, path, body=None, headers=None, timeout=GENEROUS_S, source=None):
        """Sends a request. `body`: bytes are sent unchanged, anything else as JSON. `source`: the address to send from, to be another client."""
        with contextlib.closing(self.connect(timeout, source)) as connection:
            return ask_on(connection, method, path, body, self.headers | (headers or {}))

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def complete(self, **fields):
        """The answer of /v1/completions; temperature 0 unless told otherwise."""
        return self.post(COMPLETIONS, {"model": self.name, "temperature": 0} | fields).ok()

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def chat(self, content="Hello there", **fields):
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return self.post(CHAT, {"model": self.name, "temperature": 0, "messages": messages} | fields).ok()

    def stream(self, path, **fields):
        """The events of a stream, which must end with [DONE]."""
        body = {"model": self.name, "temperature": 0, "stream": True} | fields
        answer = self.post(path, body)
        assert answer.status == 200, answer.raw
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events_of(answer.raw)

    def metrics(self):
        """{'name{labels}': value}; labels as they are written."""
        answer = self.get("/metrics")
        assert answer.status == 200
        return parse_metrics(answer.raw.decode())

    def blocks_in_use(self):
        """KV blocks that requests hold, in all memories."""
        values = self.metrics()
        return sum(value for name, value in values.items() if name.startswith("spillway_kv_blocks{") and 'state="used"' in name)

    def wait_until_idle(self, timeout_s=GENEROUS_S):
        """Returns when no KV block is in use."""
        wait_for(lambda: self.blocks_in_use() == 0, timeout_s)

    # Improper requests.

    def socket(self, timeout=GENEROUS_S, receive_buffer=0):
        connection = socket.socket()
        connection.settimeout(timeout)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def raw(self, data, half_close=False, timeout=GENEROUS_S):
        """(status or 0, all bytes) of the answer, up to the server's close or the end of one answer."""
        with self.socket(timeout) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            return read_raw_answer(connection)

    def message(self, path, body, headers=(), method="POST"):
        """The bytes of a request."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [*headers, *(f"{name}: {value}" for name, value in self.headers.items() if not any(name in line for line in headers))]
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(content)}", *headers]
        return "\r\n".join([*lines, "", ""]).encode() + content

    def stream_message(self, **fields):
        return self.message(COMPLETIONS, {"model": self.name, "temperature": 0, "stream": True} | fields)

    def closing_message(self, headers=(), **fields):
        """A request whose answer has all the tokens it may have and ends with the connection."""
        body = {"model": self.name, "temperature": 0, "ignore_eos": True} | fields
        return self.message(COMPLETIONS, body, ["Connection: close", *headers])


def status_of(raw):
    assert raw.startswith(b"HTTP/1.1 "), raw[:100]
    return int(raw[9:12])


def header_of(raw, name):
    for line in raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.lower() == name:
            return value.strip()
    return None


def stream_events(raw):
    """The events of a raw answer in chunks."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"chunked" in head.lower()
    pieces, at = [], 0
    while True:
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end], 16)
        if size == 0:
            return events_of(b"".join(pieces))
        pieces.append(rest[end + 2 : end + 2 + size])
        at = end + size + 4


def read_events(connection, count):
    """Reads until this many events have come."""
    data = b""
    while data.count(b"data: ") < count:
        piece = connection.recv(4096)
        assert piece, f"cut after {data[-200:]!r}"
        data += piece


def read_to_end(connection):
    """All bytes until the server closes."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            data += piece
    return bytes(data)


class Beside:
    """Calls look() again and again from a thread of its own while a block runs, with `pause_s` between."""

    pause_s = 0.01

    def __init__(self, server):
        self.server = server
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(GENEROUS_S)

    def run(self):
        self.look()
        while not self.stopping.wait(self.pause_s):
            self.look()


def wait_for(condition, timeout_s=GENEROUS_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def ask_on(connection, method, path, body=None, headers=None):
    """One request on an open connection."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    headers = ({"Content-Type": "application/json"} if body is not None else {}) | (headers or {})
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def events_of(raw):
    """The events of a whole event stream."""
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == "", "the last event is not whole"
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    assert all(block.startswith((":", "data: ")) for block in blocks), raw[:500]
    assert data and data[-1] == "[DONE]", f"the stream has no end: {data[-3:]}"
    return [json.loads(text) for text in data[:-1]]


def joined(events, index=0):
    """The text of one choice of a stream."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def finish_reasons(events, index=0):
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


def read_raw_answer(connection):
    """(status or 0, bytes): one whole answer if it has a length, else all until the end."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            data += piece
            while data.startswith(b"HTTP/1.1 100 ") and b"\r\n\r\n" in data:
                data = data.partition(b"\r\n\r\n")[2]  # an interim answer: the other one follows
            head, found, body = data.partition(b"\r\n\r\n")
            if not found:
                continue
            length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
            if length and len(body) >= int(length[1]):
                break
            if data.endswith(b"0\r\n\r\n") and b"chunked" in head.lower():
                break
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", data)
    assert found or not data, f"no HTTP: {data[:200]!r}"
    return int(found[1]) if found else 0, data


def kill(connection):
    """Closes the connection with a reset, like a process that dies with bytes unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def parse_metrics(text):
    """{'name{labels}': value} of Prometheus's text, every line of which must be one."""
    values = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = METRIC.fullmatch(line)
        assert found, f"no metric: {line!r}"
        name = found[1] + (f"{{{found[2]}}}" if found[2] else "")
        assert name not in values, f"twice: {name}"
        values[name] = float(found[3])
    return values


def has_gpu():
    """Whether tests may use a GPU: they see none unless CUDA_VISIBLE_DEVICES names it."""
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES")) and pathlib.Path("/proc/driver/nvidia/version").exists()


def everything_of_kv():
    """Options for every form of KV memory beside the servers' own store: compressed KV and, with a GPU, swapped layers."""
    return ["--kv-type", "int8", "--kv-admission", "predicted", "--kv-expansion", "auto"] + (["--device", "cuda"] if has_gpu() else [])


# For tests whose fixture `serve` starts servers: once without a store, and once with everything_of_kv().
with_all_of_kv = pytest.mark.parametrize("serve", ["nothing kept", "all of KV"], indirect=True)


def server_fixture(*options, model="tiny_model"):
    """Makes a fixture for a module: one server for all of its tests."""

    @pytest.fixture(scope="module")
    def server(spillway, request, tmp_path_factory):
        path = request.getfixturevalue(model)
        with Server(spillway, path, tmp_path_factory.mktemp("serve"), *options) as started:
            yield started
            assert started.process.poll() is None, f"it ended with {started.process.returncode}: {started.log()[-3000:]}"
            assert started.end() == 0, f"it does not end as it should: {started.log()[-3000:]}"  # also: a sanitizer found something

    return server


def resident_kib(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def end_with(process, number, timeout_s=GENEROUS_S):
    process.send_signal(number)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it runs on after signal {number}")
