# SPDX-License-Identifier: Apache-2.0
"""On a terminal: streamed text, figures and progress bars, and a chat that Ctrl-C, Ctrl-D and odd bytes do not upset."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
import unicodedata

import pytest
import tiny_llama
from fake_openai_server import FakeServer

from conftest import wait_for_handlers
from serve_checks import Server

CTRL_C, CTRL_D = b"\x03", b"\x04"
PROMPT = b"\x1b[1m>\x1b[0m "
BAR = b"\r\x1b[K"  # erases a bar
TIMEOUT_S = 20
MARK_PASTES, LEAVE_PASTES = b"\x1b[?2004h", b"\x1b[?2004l"
PASTE, PASTE_END = b"\x1b[200~", b"\x1b[201~"
UP, LEFT, HOME, ALT_ENTER = b"\x1b[A", b"\x1b[D", b"\x01", b"\x1b\r"
MAX_TOKENS = 50000  # of an answer that takes seconds, and has at least as many bytes
GREEDY = ["--temp", "0", "--repetition-penalty", "1"]


class Terminal:
    """A pseudo-terminal without echo; `seen` is what was written to it."""

    def __init__(self):
        self.main, self.device = pty.openpty()
        settings = termios.tcgetattr(self.device)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self.device, termios.TCSANOW, settings)
        self.resize(80)
        self.seen = b""
        self.process = None  # the process that writes to it

    def resize(self, columns):
        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def lines_drawn(self, after=0):
        """The successive contents of the bar's line; the last may be incomplete."""
        return [text.removesuffix(b"\x1b[K").decode() for text in self.seen[after:].split(b"\r")[1:-1]]

    def type(self, keys):
        os.write(self.main, keys)

    def read(self, wait_s):
        """Reads what comes within wait_s; returns False if nothing does."""
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

    def wait_for_prompt(self, after=0):
        """Like wait_for(), but until a chat takes keys. Editing redraws the prompt, but does not enable bracketed paste again."""
        return self.wait_for(PROMPT, self.wait_for(MARK_PASTES, after))

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
            fcntl.ioctl(screen.device, termios.TIOCSCTTY, 0)  # Ctrl-C becomes a signal for the process that has this terminal

        streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen) | streams
        self.terminals = {id(s): s for s in streams.values() if isinstance(s, Terminal)}.values()
        self.process = subprocess.Popen(
            spillway.command(*arguments), start_new_session=True, preexec_fn=take_terminal,
            env=os.environ | {"TERM": "xterm", "LC_ALL": "C"},
            **{name: s.device if isinstance(s, Terminal) else s for name, s in streams.items()},
        )  # fmt: skip
        for terminal in self.terminals:
            terminal.process = self.process
        wait_for_handlers(self.process)

    def wait(self):
        """Waits for the exit code while reading the terminals, so that the program never waits for room on them."""
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


def rendered(output):
    """The lines on a terminal that knows newlines, moving left, and erasing to the end of a line."""
    lines, column = [""], 0
    for code, count, kind, text in re.findall(r"(\x1b\[(\d*)([A-Za-z]))|([^\x1b])", output.decode().replace("\r\n", "\n")):
        if text == "\n":
            lines.append("")
            column = 0
        elif text:
            lines[-1] = lines[-1][:column] + text + lines[-1][column + 1 :]
            column += 1
        elif kind == "D":
            column -= int(count)
        elif kind == "K":
            lines[-1] = lines[-1][:column]
        else:
            assert kind == "m", code
    return lines


def test_words_are_not_broken_at_the_edge(spillway, terminal, start, chat_model):
    prompt = "Once upon a time, a river met a dam, and"
    command = ["run", chat_model, prompt, "-n", "32", "--temp", "0"]
    screen, errors = terminal(), terminal()
    screen.resize(24)
    assert start(screen, *command, stderr=errors).wait() == 0
    lines = rendered(screen.seen)
    assert max(len(line) for line in lines) < 24 and len(lines) > 4
    assert " ".join(lines).split() == (prompt + spillway.run(*command).out).split()


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


def test_a_search_for_a_plan_shows_how_far_it_has_come(terminal, start, tmp_path):
    screen, errors = terminal(), terminal()
    session = start(screen, "plan", "dummy:opt-175b", "--hardware", "a100", "--disk-memory", "1TiB", "--requests", "3000", "--frontier", tmp_path / "f.svg", stderr=errors)
    errors.wait_for(b"planning [")
    screen.type(CTRL_C)
    assert session.wait() == 130
    assert BAR in errors.seen


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
    """The columns of a text on a terminal: wide characters take two."""
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
    # A bar that was drawn before the change may still come.
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
        if "other programs used" in line:  # a warning below the bar, which comes when tests run beside each other
            continue
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


@pytest.fixture
def history(tmp_path, monkeypatch):
    """The file with the typed lines of this test's chats."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "spillway" / "chat_history"


@pytest.fixture
def editing(spillway):
    version = spillway.run("--version").out
    if "libedit" in version:
        pytest.skip(version.strip())


@pytest.fixture
def talk(editing, spillway, terminal, start, tiny_model, history):
    """talk() is a chat at its first prompt."""

    class Talk:
        def __init__(self, *options, model=tiny_model):
            self.screen, self.errors = terminal(), terminal()
            length = [] if "-n" in options else ["-n", "8"]
            self.session = start(self.screen, "chat", model, *length, *GREEDY, *options, stderr=self.errors)
            self.at = self.screen.wait_for_prompt()

        def type(self, *keys):
            """Types these keys, one after the other like a person, and waits for the next prompt."""
            for key in keys:
                self.screen.type(key)
                self.screen.read(0.05)
            before, self.at = self.at, self.screen.wait_for_prompt(self.at)
            return self.screen.seen[before : self.at]

        def saved(self, path):
            """The messages so far, which the chat saves to a file."""
            self.type(f"/save {path}\r".encode())
            return json.loads(path.read_text())

        def questions(self, path):
            return [message["content"] for message in self.saved(path) if message["role"] == "user"]

        def leave(self, keys=CTRL_D):
            self.screen.type(keys)
            assert self.session.wait() == 0

    return Talk


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(editing, terminal, start, long_model):
    screen = terminal()
    session = start(screen, "chat", long_model, "--ctx", 4 * MAX_TOKENS, "-n", MAX_TOKENS, *GREEDY)
    at = screen.wait_for_prompt()
    for message in (b"Tell me about the river.\r", b"And the sea?\r"):
        screen.type(message)
        screen.wait_for_more(at + 120)  # more than the message and the codes around a prompt
        screen.type(CTRL_C)
        before, at = at, screen.wait_for_prompt(at)
        assert at - before < MAX_TOKENS, "the whole answer came"
        assert b"[stopped; " in screen.seen[before:at]
    assert session.process.poll() is None
    screen.type(CTRL_D)
    assert session.wait() == 0


def test_ctrl_d_and_exit_end_the_chat(talk):
    for keys in (CTRL_D, b"/exit\r", b"/quit\r"):
        chat = talk()
        chat.type(b"Hello there\r")
        chat.leave(keys)


def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves(talk, tmp_path):
    chat = talk()
    assert b"Ctrl-C again leaves" in chat.type(b"this is a mistake", CTRL_C)
    chat.type(b"Hello there\r")
    assert chat.questions(tmp_path / "talk.json") == ["Hello there"], "the line is gone"
    chat.type(CTRL_C)  # counts as the first Ctrl-C again, since a message was between
    chat.type(b"another mistake", CTRL_C)  # also only clears, since there was something to clear
    chat.leave(CTRL_C)


def test_a_terminal_is_given_back_as_it_was(talk):
    for keys in (CTRL_D, CTRL_C):
        chat = talk()
        settings = termios.tcgetattr(chat.screen.device)
        if keys == CTRL_C:
            chat.type(CTRL_C)
        chat.leave(keys)
        now = termios.tcgetattr(chat.screen.device)
        for mode, name in ((termios.ICANON, "ICANON"), (termios.ISIG, "ISIG")):
            assert now[3] & mode, name
        assert settings[3] & termios.ICANON == 0, "while it edits it reads key by key"
        seen = chat.screen.seen
        assert seen.rindex(LEAVE_PASTES) > seen.rindex(MARK_PASTES), "pastes are as before"


def test_sigterm_at_the_prompt_ends_the_chat(talk):
    chat = talk()
    chat.session.process.send_signal(signal.SIGTERM)
    assert chat.session.wait() == 128 + signal.SIGTERM
    assert termios.tcgetattr(chat.screen.device)[3] & termios.ICANON


def test_a_line_can_be_edited(talk, tmp_path):
    chat = talk()
    chat.type(b"Helo there", *[LEFT] * 7, b"l", HOME, b"Oh! ", b"\r")
    chat.type("grüße 世x".encode(), b"\x7f", LEFT, b"\x7f", "! \r".encode())
    assert chat.questions(tmp_path / "talk.json") == ["Oh! Hello there", "grüße! 世"]


def test_what_was_typed_comes_back_also_in_the_next_chat(talk, history, tmp_path):
    chat = talk()
    chat.type(b"Hello there\r")
    chat.type(b"And the sea?\r")
    chat.type(UP, UP, b"!\r")
    chat.leave()
    assert history.stat().st_mode & 0o777 == 0o600
    chat = talk()
    chat.type(UP, UP, b"\r")
    chat.type(b"\x12", b"there!", b"\r")  # Ctrl-R searches
    assert chat.questions(tmp_path / "talk.json") == ["And the sea?", "Hello there!"]


def test_pasted_lines_are_one_message(talk, tmp_path):
    chat = talk()
    chat.type(PASTE + "first\r\nsecond\tline\nthird 世界".encode() + PASTE_END, b" and more", b"\r")
    chat.type(b"one", ALT_ENTER, b"two\r")
    assert chat.questions(tmp_path / "talk.json") == ["first\nsecond\tline\nthird 世界 and more", "one\ntwo"]
    chat.type(UP, UP, UP, b"\r")  # over the save and "one\ntwo"
    assert chat.questions(tmp_path / "again.json")[-1] == "first\nsecond\tline\nthird 世界 and more"


def test_a_pasted_control_character_does_nothing(talk, tmp_path):
    chat = talk()
    chat.type(PASTE + b"a\x03b\x04c\x1b[Ad" + PASTE_END, b"\r")
    assert chat.questions(tmp_path / "talk.json") == ["abc[Ad"]


@pytest.mark.parametrize("pasted", [True, False])
def test_a_line_may_be_longer_than_a_terminal_takes(talk, long_model, tmp_path, pasted):
    chat = talk("--ctx", "40000", model=long_model)
    text = "word " * 2000 + "end"
    chat.screen.type(PASTE if pasted else b"")
    for start in range(0, len(text), 1000):
        chat.screen.type(text[start : start + 1000].encode())
        chat.screen.read(0.1)
    chat.screen.type((PASTE_END if pasted else b"") + b"\r")
    chat.at = chat.screen.wait_for_prompt(chat.at)
    assert chat.questions(tmp_path / "talk.json") == [text]


def test_commands_say_what_they_did(talk, tmp_path):
    chat = talk()
    assert b"/save FILE" in chat.type(b"/help\r")
    chat.type(b"Hello there\r")
    chat.type(b"/clear\r")
    chat.type(b"/system Be brief.\r")
    assert b"Be brief." in chat.type(b"/system\r").split(b"\n", 1)[1]
    chat.type(b"/cler\r")
    chat.errors.wait_for(b"no command /cler")
    assert b"//cler" in chat.errors.seen
    chat.type(b"//cler\r")
    (tmp_path / "mine").write_text("precious")
    chat.type(f"/save {tmp_path}/mine\r".encode())
    chat.errors.wait_for(b"is there already")
    messages = chat.saved(tmp_path / "talk.json")
    assert [message["content"] for message in messages[:2]] == ["Be brief.", "/cler"]
    chat.leave()


def test_an_answer_is_followed_by_its_speed_its_end_and_the_context(talk):
    chat = talk()
    chat.type(b"Hello there\r")
    chat.errors.wait_for(b"of 512]")
    assert b"[cut at -n 8; 8 tokens, " in chat.errors.seen and b" tokens/s, the first after " in chat.errors.seen
    chat.leave()
    chat = talk("-n", "500", "--ctx", "40")
    chat.type(b"Hello there\r")
    chat.errors.wait_for(b"context 40 of 40]")
    assert b"the context of 40 tokens is full" in chat.errors.seen
    chat.leave()
    chat = talk(f"--logit-bias={tiny_llama.EOS}=1000")
    chat.type(b"Hello there\r")
    chat.errors.wait_for(b"of 512]")
    assert b"[the answer is empty; 1 token; context " in chat.errors.seen and b"cut" not in chat.errors.seen
    chat.leave()


def test_the_figures_are_the_same_whoever_answers(editing, spillway, terminal, start, history, tiny_model, tmp_path):
    """The figures include how much of the conversation was not computed again."""
    figures = []
    with Server(spillway, tiny_model, tmp_path) as server:
        for words in (["--server", server.url], [tiny_model, "--device", "cpu", "--deterministic", "--no-tuning", "--threads", "1"]):
            screen, errors = terminal(), terminal()
            session = start(screen, "chat", *words, "-n", "8", *GREEDY, stderr=errors)
            at = screen.wait_for_prompt()
            for message in (b"Hello there\r", b"And then?\r"):
                screen.type(message)
                at = screen.wait_for_prompt(at)
            errors.wait_for(b"not computed again]")
            screen.type(CTRL_D)
            assert session.wait() == 0
            timed = re.findall(rb"\[([^\[\]]*context [^\[\]]*)\]", errors.seen)
            figures.append([re.sub(rb"\d+\.\d+", b"T", text) for text in timed])
    assert len(figures[0]) == 2 and b"T tokens/s, the first after T s; context " in figures[0][0]
    assert figures[0] == figures[1]


def test_a_server_answers_with_the_same_figures_and_what_goes_wrong_there_ends_no_chat(editing, terminal, start, history):
    with FakeServer(refuse_after=2, token_s=0.02) as fake:
        screen, errors = terminal(), terminal()
        session = start(screen, "chat", "--server", fake.url, "-n", "5", stderr=errors)
        at = screen.wait_for_prompt()
        assert f"Talking to fake at {fake.url}.".encode() in screen.seen
        screen.type(b"Hello there\r")
        at = screen.wait_for_prompt(at)
        errors.wait_for(b" s; context 12]")
        assert b"[5 tokens, " in errors.seen and b" tokens/s, the first after " in errors.seen
        screen.type(b"And?\r")
        at = screen.wait_for_prompt(at)
        screen.type(b"And then?\r")
        at = screen.wait_for_prompt(at)
        errors.wait_for(b"too many (HTTP 429)")
        fake.refuse_after, fake.cut_after = None, 2
        screen.type(b"And now?\r")
        at = screen.wait_for_prompt(at)
        errors.wait_for(b"in the middle of its answer")
        fake.cut_after = None
        screen.type(b"Better?\r")
        screen.wait_for_prompt(at)
        asked = [message["content"] for message in fake.asked[-1]["messages"] if message["role"] == "user"]
        assert asked == ["Hello there", "And?", "Better?"], "what was not answered was not said"
        screen.type(CTRL_D)
        assert session.wait() == 0


def test_ctrl_c_stops_an_answer_of_a_server_and_the_chat_goes_on(editing, terminal, start, history):
    with FakeServer(token_s=0.005) as fake:
        screen = terminal()
        session = start(screen, "chat", "--server", fake.url, "-n", MAX_TOKENS)
        at = screen.wait_for_prompt()
        for message in (b"Tell me about the river.\r", b"And the sea?\r"):
            screen.type(message)
            screen.wait_for_more(at + 120)
            screen.type(CTRL_C)
            before, at = at, screen.wait_for_prompt(at)
            assert b"[stopped; about " in screen.seen[before:at]
        fake.first_s = 3600  # the answer is stopped before the first token, too
        screen.type(b"Are you there?\r")
        # Keys are typed only now, since the line editor drops those that come while it hands the terminal over.
        screen.wait_until(lambda: len(fake.asked) == 3, b"a third request")
        screen.type(CTRL_C)
        before, at = at, screen.wait_for_prompt(at)
        assert b"[stopped; " in screen.seen[before:at]
        screen.type(CTRL_D)
        assert session.wait() == 0


def test_a_message_that_is_not_utf8_is_reported_and_the_chat_goes_on(spillway, talk, tiny_model):
    chat = talk()
    chat.type(b"caf\xff\r")
    chat.errors.wait_for(b"UTF-8")
    chat.type(b"Hello there\r")
    chat.leave()
    # The refused message left no trace in the conversation.
    expected = spillway.run("chat", tiny_model, "-n", "8", *GREEDY, stdin="Hello there\n").out.strip()
    assert expected.encode() in chat.screen.seen
    assert len(chat.errors.seen.splitlines()) == 2, "the error, and how fast the answer came"


@pytest.mark.parametrize("piped", ["stdin", "stdout"])
def test_nothing_but_answers_is_written_where_one_side_is_a_pipe(spillway, terminal, start, tiny_model, piped, tmp_path):
    expected = spillway.run("chat", tiny_model, "-n", "8", *GREEDY, stdin="Hello there\n").raw_out
    (tmp_path / "in").write_text("Hello there\n")
    screen = terminal()
    with open(tmp_path / "in", "rb") as lines, open(tmp_path / "out", "wb") as answers:
        streams = {"stdin": {"stdin": lines}, "stdout": {"stdout": answers}}[piped]
        session = start(screen, "chat", tiny_model, "-n", "8", *GREEDY, **streams)
        if piped == "stdout":
            screen.type(b"Hello there\n" + CTRL_D)
        assert session.wait() == 0
    written = (tmp_path / "out").read_bytes() if piped == "stdout" else screen.seen.replace(b"\r\n", b"\n")
    assert written == expected
    assert piped == "stdin" or screen.seen == b""


def test_a_chat_calls_the_model_what_it_was_called(talk, tmp_path):
    """The name is the one given on the command line, not the file's own, which may be "Smollm2 135M 8k Lc100K Mix1 Ep2"."""
    model = tiny_llama.write_gguf(tmp_path / "river.gguf", name="Tiny 8k Mix1 Ep2")
    assert b"Talking to river." in talk(model=model).screen.seen


def test_the_name_of_a_model_sends_no_codes_to_the_terminal(editing, terminal, start, tmp_path):
    model = tiny_llama.write_gguf(tmp_path / "evil\x1b[31m\x07name.gguf", name="evil\x1b[31m\x07name")
    screen = terminal()
    session = start(screen, "chat", model)
    screen.wait_for_prompt()
    screen.type(CTRL_D)
    assert session.wait() == 0
    assert b"\x1b[31m" not in screen.seen and b"\x07" not in screen.seen
