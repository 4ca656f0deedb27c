# SPDX-License-Identifier: Apache-2.0
"""Reads many concurrent streams from an OpenAI-compatible server, with the time at which each token came.

One thread and one epoll loop, because the load generator runs beside the server on few cores: while streams are open, bytes
are only read and stamped with the time. They are parsed when a stream has ended.
"""

import dataclasses
import errno
import gc
import json
import selectors
import signal
import socket
import time
import urllib.parse

from event_reader import BadAnswer, EventReader

clock = time.perf_counter
READ_BYTES = 1 << 16


@dataclasses.dataclass
class Outcome:
    """How a request went. Times are of clock()."""

    due_at: float
    sent_at: float
    done_at: float = 0.0
    token_times: list = dataclasses.field(default_factory=list)  # times of the events that carry tokens
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""  # "429", "timeout", "cut" ...; "" for success

    @property
    def ttft_s(self):
        return self.token_times[0] - self.sent_at

    @property
    def gaps_s(self):
        return [after - before for before, after in zip(self.token_times, self.token_times[1:])]

    @property
    def tokens_per_event(self):
        """The mean tokens of an event: servers hold back incomplete characters, and may send several tokens in one event."""
        return self.output_tokens / len(self.token_times)


def text_of(choice):
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""


def read_answer(reader, outcome):
    """Fills the outcome from the bytes of a stream."""
    if reader.status != 200:
        outcome.error = str(reader.status) if reader.status else "closed"
        return
    carrying, others, texts = [], [], []
    finished = False
    for at, data in reader.events:
        if data == b"[DONE]":
            finished = True
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = "error event"
            return
        usage = event.get("usage") or {}
        outcome.prompt_tokens = usage.get("prompt_tokens", outcome.prompt_tokens)
        outcome.output_tokens = usage.get("completion_tokens", outcome.output_tokens)
        choices = event.get("choices") or []
        text = "".join(map(text_of, choices))
        texts.append(text)
        if text or any(choice.get("token_ids") for choice in choices):
            carrying.append(at)
        elif choices:
            others.append(at)
    if not finished or not reader.is_complete:
        outcome.error = "cut"
        return
    outcome.text = "".join(texts)
    outcome.token_times = carrying or others  # models without a tokenizer have no text
    outcome.output_tokens = outcome.output_tokens or len(outcome.token_times)
    if not outcome.token_times:
        outcome.error = "empty"


class Endpoint:
    """The address of a server, and the messages for it."""

    def __init__(self, url, name="", model="", key="", extra=None):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url}: give http://HOST:PORT")
        self.url = url
        self.host, self.port = parts.hostname, parts.port or 80
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        self.name = name or f"{self.host}:{self.port}"
        self.model = model
        self.key = key
        self.extra = extra or {}
        family, kind, _, _, self.address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        self.socket_kind = family, kind

    def message(self, method, path, body=None):
        """A request that asks the server to close the connection after its answer."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Connection: close"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join(lines + ["", ""]).encode() + content

    def _answer(self, method, path, body, timeout_s):
        reader = EventReader()
        with socket.create_connection((self.host, self.port), timeout=timeout_s) as connection:
            connection.sendall(self.message(method, path, body))
            while not reader.is_complete:
                data = connection.recv(READ_BYTES)
                if not data:
                    reader.end(clock())
                    break
                reader.feed(data, clock())
        return reader

    def ask(self, method, path, body=None, timeout_s=60):
        """(status, JSON) of a small request on a connection of its own."""
        reader = self._answer(method, path, body, timeout_s)
        try:
            return reader.status, json.loads(reader.body or b"null")
        except ValueError:
            return reader.status, None

    def read(self, path, timeout_s=60):
        """The answer's bytes."""
        return self._answer("GET", path, None, timeout_s).body

    def find_model(self):
        """The model's name for requests: the first one that the server lists."""
        if not self.model:
            status, answer = self.ask("GET", "/v1/models")
            if status != 200:
                raise RuntimeError(f"{self.name}: /v1/models is answered {status}")
            self.model = answer["data"][0]["id"]

    def try_tokenize(self, text):
        """The token ids of a text, without special ones; None if the server has no tokenizer endpoint."""
        status, answer = self.ask("POST", "/tokenize", {"content": text, "add_special": False})
        return answer["tokens"] if status == 200 and isinstance(answer, dict) and "tokens" in answer else None

    def stream_message(self, route, fields):
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}} | fields | self.extra
        return self.message("POST", route, body)


class Stream:
    """One running request."""

    def __init__(self, endpoint, message, due_at):
        self.socket = socket.socket(*endpoint.socket_kind)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = clock()
        self.outcome = Outcome(due_at or now, now)
        self.to_send = memoryview(message)
        self.pieces = []  # (time, bytes)
        code = self.socket.connect_ex(endpoint.address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "connect")

    def write(self):
        """Sends what the socket takes; returns whether all is sent."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "connect")
        self.to_send = self.to_send[self.socket.send(self.to_send) :]
        return not self.to_send

    def read(self):
        """Reads what has come; returns whether the answer has ended."""
        data = self.socket.recv(READ_BYTES)
        self.pieces.append((clock(), data))
        # The server keeps the connection open although it was asked to close it.
        return not data or (data.endswith((b"0\r\n\r\n", b"}", b"}\n")) and self.parse().is_complete)

    def parse(self):
        reader = EventReader()
        for at, data in self.pieces:
            if data:
                reader.feed(data, at)
            else:
                reader.end(at)
        return reader

    def finish(self, error=""):
        self.socket.close()
        self.outcome.done_at = self.pieces[-1][0] if self.pieces else clock()
        if error:
            self.outcome.error = error
            return self.outcome
        try:
            read_answer(self.parse(), self.outcome)
        except (BadAnswer, ValueError, TypeError, AttributeError) as problem:
            self.outcome.error = f"not understood: {problem}"[:100]
        return self.outcome


class Interrupts:
    """Records Ctrl-C reliably: Python drops the exception if it comes while an object is destroyed."""

    seen = False

    @classmethod
    def install(cls):
        signal.signal(signal.SIGINT, cls._note)

    @classmethod
    def _note(cls, *_):
        cls.seen = True
        raise KeyboardInterrupt


class Load:
    """Sends messages to one endpoint: each at its time, or as soon as one of `clients` is free.

    `messages` is [(seconds after the start or None, bytes)]. After an interrupt `outcomes` has what was finished.
    """

    def __init__(self, endpoint, messages, clients=0, timeout_s=600.0, progress=lambda load: None):
        self.endpoint = endpoint
        self.waiting = list(reversed(messages))
        self.total = len(messages)
        self.clients = clients or len(messages)
        self.timeout_s = timeout_s
        self.progress = progress
        self.outcomes = []
        self.selector = selectors.DefaultSelector()
        self.open = set()
        self.started_at = self.ended_at = 0.0
        self.cpu_s = 0.0

    def run(self):
        cpu_before = time.process_time()
        self.started_at = clock()
        gc.disable()
        try:
            while self.waiting or self.open:
                pause_s = self._start_those_due()
                for key, mask in self.selector.select(pause_s):
                    self._serve(key.data, mask)
                self._end_those_late()
                self.progress(self)
                if Interrupts.seen:
                    raise KeyboardInterrupt
        finally:
            gc.enable()
            for stream in self.open:
                stream.socket.close()
            self.selector.close()
            self.ended_at = clock()
            self.cpu_s = time.process_time() - cpu_before
        return self.outcomes

    def _start_those_due(self):
        """Starts the requests that are due; returns the seconds until the next one, at most the interval of the checks for timeouts."""
        longest_s = 0.5
        while self.waiting and len(self.open) < self.clients:
            due_s, message = self.waiting[-1]
            due_at = self.started_at + due_s if due_s is not None else None
            if due_at is not None and due_at > clock():
                return min(longest_s, due_at - clock())
            self.waiting.pop()
            try:
                stream = Stream(self.endpoint, message, due_at)
            except OSError as problem:
                now = clock()
                self.outcomes.append(Outcome(due_at or now, now, now, error=error_name(problem)))
                continue
            self.open.add(stream)
            self.selector.register(stream.socket, selectors.EVENT_WRITE, stream)
        return longest_s

    def _serve(self, stream, mask):
        try:
            if mask & selectors.EVENT_WRITE:
                if stream.write():
                    self.selector.modify(stream.socket, selectors.EVENT_READ, stream)
            elif stream.read():
                self._close(stream)
        except BlockingIOError:
            pass
        except BadAnswer as problem:
            self._close(stream, f"not understood: {problem}"[:100])
        except OSError as problem:
            # The answer to a request that is refused may come before all of it was sent.
            if stream.to_send and self._try_last_words(stream):
                self._close(stream)
            else:
                self._close(stream, error_name(problem))

    def _try_last_words(self, stream):
        try:
            stream.read()
        except OSError:
            return False
        return bool(stream.pieces[-1][1])

    def _end_those_late(self):
        deadline = clock() - self.timeout_s
        for stream in [stream for stream in self.open if stream.outcome.sent_at < deadline]:
            self._close(stream, "timeout")

    def _close(self, stream, error=""):
        self.selector.unregister(stream.socket)
        self.open.discard(stream)
        self.outcomes.append(stream.finish(error))


def error_name(problem):
    return errno.errorcode.get(problem.errno, type(problem).__name__)
