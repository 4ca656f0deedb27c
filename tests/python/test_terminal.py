# SPDX-License-Identifier: Apache-2.0
"""On a terminal: streamed text, figures and progress bars, and a chat that Ctrl-C, Ctrl-D and odd bytes do not upset."""

import fcntl
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import termios
import time
import unicodedata

import pytest
import tiny_llama

from conftest import wait_for_handlers

CTRL_C, CTRL_D = b"\x03", b"\x04"
PROMPT = b"\x1b[1m> "
BAR = b"\r\x1b[K"  # how a bar goes away
TIMEOUT_S = 20
MAX_TOKENS = 50000  # of an answer: seconds, and at least as many bytes


class Terminal:
    """A pseudo-terminal without echo; `seen` is what was written to it."""

    def __init__(self):
        self.main, self.device = pty.openpty()
        settings = termios.tcgetattr(self.device)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self.device, termios.TCSANOW, settings)
        self.seen = b""
        self.process = None  # who writes to it

    def resize(self, columns):
        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def lines_drawn(self, after=0):
        """What stood in the line where the bar is, one after the other; the last may not be whole yet."""
        return [text.removesuffix(b"\x1b[K").decode() for text in self.seen[after:].split(b"\r")[1:-1]]

    def type(self, keys):
        os.write(self.main, keys)

    def read(self, wait_s):
        """Takes what comes within wait_s; False when nothing does."""
        if not select.select([self.main], [], [], wait_s)[0]:
            return False
        self.seen += os.read(self.main, 65536)
        return True

    def wait_until(self, reached, what):
        deadline = time.monotonic() + TIMEOUT_S
        while not reached():
            over = self.process.poll() is not None  # before the read, which then takes the last it wrote
            self.read(0.1)
            if not reached():
                assert not over, f"exit code {self.process.returncode} without {what}: {self.seen[-2000:]!r}"
                assert time.monotonic() < deadline, f"no {what}: {self.seen[-2000:]!r}"

    def wait_for(self, text, after=0):
        """Waits until `text` is seen at or after an offset; returns the offset behind it."""
        self.wait_until(lambda: self.seen.find(text, after) >= 0, text)
        return self.seen.find(text, after) + len(text)

    def wait_for_more(self, after):
        """Waits until more than `after` bytes are seen."""
        self.wait_until(lambda: len(self.seen) > after, f"more than {after} bytes")

    def close(self):
        os.close(self.main)
        os.close(self.device)


class Session:
    """The program with its streams on `screen`, except those given: another Terminal, or a file."""

    def __init__(self, spillway, screen, *arguments, **streams):
        def take_terminal():
            fcntl.ioctl(screen.device, termios.TIOCSCTTY, 0)  # Ctrl-C becomes a signal for whoever has it

        streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen) | streams
        self.terminals = {id(s): s for s in streams.values() if isinstance(s, Terminal)}.values()
        self.process = subprocess.Popen(
            spillway.command(*arguments), start_new_session=True, preexec_fn=take_terminal,
            **{name: s.device if isinstance(s, Terminal) else s for name, s in streams.items()},
        )  # fmt: skip
        for terminal in self.terminals:
            terminal.process = self.process
        wait_for_handlers(self.process)

    def wait(self):
        """The exit code; meanwhile the terminals are read, so that the program never waits for room on them."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, [terminal.seen[-1000:] for terminal in self.terminals]
            for terminal in self.terminals:
                terminal.read(0.02)
        for terminal in self.terminals:
            while terminal.read(0):
                pass
        return self.process.returncode


@pytest.fixture
def terminal():
    """terminal() makes one."""
    made = []

    def make():
        made.append(Terminal())
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def start(spillway):
    """start(screen, arguments...) runs the program there."""
    sessions = []

    def make(screen, *arguments, **streams):
        sessions.append(Session(spillway, screen, *arguments, **streams))
        return sessions[-1]

    yield make
    for session in sessions:
        session.process.kill()
        session.process.communicate()


# run


def test_run_shows_the_text_on_stdout_and_its_speed_on_stderr(spillway, terminal, start, tiny_model):
    screen, errors = terminal(), terminal()
    session = start(screen, "run", tiny_model, "-p", "The river", "-n", "20", stderr=errors)
    assert session.wait() == 0
    text = spillway.run("run", tiny_model, "-p", "The river", "-n", "20").out.strip()
    assert text.encode() in screen.seen
    assert screen.seen.index(b"The river") < screen.seen.index(text.encode()), "the prompt comes first"
    assert b"tokens" not in screen.seen
    assert b"20 tokens" in errors.seen and b"tokens/s" in errors.seen


def test_run_streams_to_a_terminal_and_ctrl_c_ends_it(terminal, start, long_model):
    screen = terminal()
    session = start(screen, "run", long_model, "-p", "The river", "-n", "100000", "--ignore-end")
    screen.wait_for_more(screen.wait_for(b"The river") + 20)
    assert session.process.poll() is None, "text came only at the end"
    screen.type(CTRL_C)
    assert session.wait() == 130


# Progress bars.


def test_a_bar_shows_progress_on_a_terminal_and_goes_away(terminal, start, tiny_model):
    screen, errors = terminal(), terminal()
    session = start(screen, "bench", tiny_model, "--prompt-len", "32", "--repeat", "1000000", stderr=errors)
    errors.wait_for(b"] ")
    assert b"bench [" in errors.seen and b"%" in errors.seen
    screen.type(CTRL_C)
    assert session.wait() == 130
    assert BAR in errors.seen
    assert b"\x1b" not in errors.seen[errors.seen.rindex(BAR) + len(BAR) :]


def test_a_batch_job_shows_requests_speed_and_time_left(terminal, start, long_model, tmp_path):
    body = {"prompt": "The river", "max_tokens": 20}
    lines = [{"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": body} for n in range(8)]
    lines[-1]["body"] = body | {"max_tokens": 100000, "ignore_eos": True}
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    screen, errors = terminal(), terminal()
    session = start(screen, "batch", long_model, tmp_path / "in", "-o", tmp_path / "out", "--ctx", "200000", stderr=errors)
    errors.wait_for(b" left")
    assert b"batch [" in errors.seen and b"7 of 8 requests" in errors.seen and b"tokens/s" in errors.seen
    screen.type(CTRL_C)
    assert session.wait() == 130
    assert BAR in errors.seen
    assert b"run the same command again" in errors.seen[errors.seen.rindex(BAR) :]


def test_a_bar_shows_that_a_model_is_loading(terminal, start):
    screen, errors = terminal(), terminal()
    work = ["--prompt-len", "2", "--gen-len", "1", "--repeat", "1", "--json"]
    session = start(screen, "bench", "dummy:opt-350m", *work, stderr=errors)
    assert session.wait() == 0, errors.seen
    load_s = json.loads(screen.seen)["load_s"]
    if b"loading" not in errors.seen and load_s < 0.4:
        pytest.skip(f"this machine loads it in {load_s:.2f} s, too fast for a bar")
    assert b"loading dummy:opt-350m [" in errors.seen
    assert BAR in errors.seen


def columns_of(text):
    """As terminals count: wide characters are two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


@pytest.mark.parametrize("columns", [1, 4, 5, 10, 20, 40, 79])
def test_a_bar_fits_a_narrow_terminal_and_follows_its_width(terminal, start, tiny_model, columns):
    screen, errors = terminal(), terminal()
    errors.resize(columns)
    session = start(screen, "bench", tiny_model, "--prompt-len", "32", "--repeat", "1000000", stderr=errors)
    errors.wait_until(lambda: len(errors.lines_drawn()) > 3, "bar")
    for line in errors.lines_drawn():
        assert columns_of(line) < max(columns, 2), line
        assert "%" in line or columns < 5
    errors.resize(33)
    at = len(errors.seen)
    # One that was drawn before the change may still come.
    errors.wait_until(lambda: len(errors.lines_drawn(at)) > 4, "bar after the change")
    for line in errors.lines_drawn(at)[2:]:
        assert 0 < columns_of(line) < 33 and "%" in line
    screen.type(CTRL_C)
    assert session.wait() == 130


@pytest.mark.parametrize("name", ["模型文件夹里的一个很长的名字.gguf", "a" * 120 + ".gguf", "e\u0301" * 40, "tab\tand\x1b[31mcodes.gguf"])
def test_a_bar_with_a_long_or_wide_name_stays_in_its_line(terminal, start, tmp_path, tiny_model, name):
    model = tmp_path / name
    shutil.copyfile(tiny_model, model)
    screen, errors = terminal(), terminal()
    errors.resize(60)
    # All measurements together take seconds; the bar has the model's name.
    session = start(screen, "profile", model, *["dummy:opt-125m"], "-o", tmp_path / "tuning", stderr=errors)
    assert session.wait() == 0, errors.seen
    for line in errors.lines_drawn():
        assert columns_of(line) < 60, line
        assert "\x1b" not in line and "\t" not in line


def test_a_bar_is_drawn_ten_times_a_second_at_most(terminal, start, tiny_model):
    screen, errors = terminal(), terminal()
    started = time.monotonic()
    session = start(screen, "bench", tiny_model, "--prompt-len", "8", "--gen-len", "2", "--repeat", "1000000", stderr=errors)
    errors.wait_until(lambda: len(errors.lines_drawn()) >= 8, "bar")
    lasted = time.monotonic() - started  # at least as long as the program took for them
    drawn = len(errors.lines_drawn())
    screen.type(CTRL_C)
    assert session.wait() == 130
    assert drawn <= 10 * lasted + 1


def test_there_are_no_bars_and_codes_in_a_pipe(terminal, start, tiny_model, tmp_path):
    screen = terminal()
    with open(tmp_path / "errors", "wb") as errors:
        session = start(screen, "bench", tiny_model, "--prompt-len", "32", "--repeat", "1000000", stderr=errors)
        screen.read(0.6)  # a bar would have come by now
        screen.type(CTRL_C)
        assert session.wait() == 130
    error = (tmp_path / "errors").read_bytes()
    assert b"\x1b" not in error and b"\r" not in error and len(error.splitlines()) <= 1


# chat


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(terminal, start, long_model):
    screen = terminal()
    session = start(screen, "chat", long_model, "--ctx", 4 * MAX_TOKENS, "-n", MAX_TOKENS)
    at = screen.wait_for(PROMPT)
    for message in (b"Tell me about the river.\n", b"And the sea?\n"):
        screen.type(message)
        screen.wait_for_more(at + 40)  # more than the codes around a prompt
        screen.type(CTRL_C)
        before, at = at, screen.wait_for(PROMPT, at)
        assert at - before < MAX_TOKENS, "the whole answer came"
    assert session.process.poll() is None
    screen.type(CTRL_D)
    assert session.wait() == 0


def test_ctrl_d_ends_the_chat(terminal, start, tiny_model):
    screen = terminal()
    session = start(screen, "chat", tiny_model, "-n", "8")
    at = screen.wait_for(PROMPT)
    screen.type(b"Hello there\n")
    screen.wait_for(PROMPT, at)
    screen.type(CTRL_D)
    assert session.wait() == 0


def test_a_message_that_is_not_utf8_is_reported_and_the_chat_goes_on(spillway, terminal, start, tiny_model):
    screen, errors = terminal(), terminal()
    session = start(screen, "chat", tiny_model, "-n", "8", stderr=errors)
    at = screen.wait_for(PROMPT)
    screen.type(b"caf\xff\n")
    errors.wait_for(b"UTF-8")
    at = screen.wait_for(PROMPT, at)
    screen.type(b"Hello there\n")
    screen.wait_for(PROMPT, at)
    screen.type(CTRL_D)
    assert session.wait() == 0
    # The refused message left no trace in the conversation.
    assert spillway.run("chat", tiny_model, "-n", "8", stdin="Hello there\n").out.strip().encode() in screen.seen
    assert len(errors.seen.splitlines()) == 1


def test_the_name_of_a_model_sends_no_codes_to_the_terminal(terminal, start, tmp_path):
    model = tiny_llama.write_gguf(tmp_path / "m.gguf", name="evil\x1b[31m\x07name")
    screen = terminal()
    session = start(screen, "chat", model)
    screen.wait_for(PROMPT)
    screen.type(CTRL_D)
    assert session.wait() == 0
    assert b"\x1b[31m" not in screen.seen and b"\x07" not in screen.seen
