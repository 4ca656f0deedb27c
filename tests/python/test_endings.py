# SPDX-License-Identifier: Apache-2.0
"""How commands end when they are interrupted: signals, kills, files that may not grow, models truncated while in use.

The rule is always the same: an exit code that says why, at most one line on stderr, and no new files.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import time

import pytest
import tiny_llama

from conftest import end_process

FAILED = 1
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
DEADLINE_S = 60
TEXT = "The river was wide, and in the morning he said: there is a way. "
MIB = 1 << 20
LARGE_ALONE = pytest.mark.xdist_group("large")  # these tests run one after the other, also with test_tiers.py's, since they fill the disk


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_tensor(name, columns, rows, kind, offset):
    return gguf_string(name) + struct.pack("<IQQIQ", 2, columns, rows, kind, offset)


@pytest.fixture(scope="session")
def large_gguf(models):
    """A model with one F16 matrix of 512 MiB, all zeros: the file is sparse, but converting it takes time."""
    path = models / "large.gguf"
    with open(path, "wb") as file:
        key = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
        tensors = gguf_tensor("matrix", 4096, 65536, 1, 0)
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + key + tensors)
        file.truncate((file.tell() + 31) // 32 * 32 + 4096 * 65536 * 2)
    return path


@pytest.fixture(scope="session")
def many_tensors(models):
    """A vocabulary with 50,000 tensors: more than a pipe holds when they are listed."""
    path = models / "many.gguf"
    count = 50000
    tiny = tiny_llama.write_gguf(models / "for-many.gguf").read_bytes()
    _, tensors, keys = struct.unpack_from("<IQQ", tiny, 4)
    del tensors
    with open(path, "wb") as file:
        # The keys of the tiny model, behind a header that announces other tensors.
        file.write(b"GGUF" + struct.pack("<IQQ", 3, count, keys) + tiny[24 : tiny.index(gguf_string("token_embd.weight"))])
        for number in range(count):
            file.write(gguf_tensor(f"tensor.{number}", 32, 1, 0, 128 * number))
        file.truncate((file.tell() + 31) // 32 * 32 + 128 * count)
    return path


def batch_lines(count, **body):
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": TEXT, "ignore_eos": True} | body}
    return "".join(json.dumps({"custom_id": str(n)} | line) + "\n" for n in range(count))


def is_writing(process, folder, least):
    """Whether the process has a file without a name in the folder, with at least this many bytes."""
    descriptors = pathlib.Path(f"/proc/{process.pid}/fd")
    try:
        for link in descriptors.iterdir():
            target = os.readlink(link)
            if target.startswith(str(folder)) and "(deleted)" in target and link.stat().st_size >= least:
                return True
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return False


class Place:
    """A folder for a command to work in; `inputs` are there from the beginning."""

    def __init__(self, folder, inputs):
        self.folder, self.inputs = folder, inputs
        (folder / "disk").mkdir()
        (folder / "cache").mkdir()
        for name, text in inputs.items():
            (folder / name).write_text(text)

    def files(self):
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.suffix != ".partial" else b""
            for path in self.folder.rglob("*")
            if path.is_file()
        }


# Commands that take longer than any test waits: their arguments, the files that they read, their input, and the
# files that may stay. LONG, TINY and so on stand for models; everything else is relative to the command's folder.
COMMANDS = {
    "run": (["run", "LONG", "-p", TEXT, "-n", "1000000", "--ignore-end"], {}, None, []),
    "run waits for a prompt": (["run", "LONG", "-f", "-"], {}, b"The riv", []),
    "run from disk": (
        ["run", "LONG", "-p", TEXT, "-n", "20000", "--ignore-end", "--weights", "0,0,100", "--compress-weights"]
        + ["--disk-memory", "1GiB", "--disk-dir", "disk", "--kv", "0,0,100"], {}, None, [],
    ),
    "chat": (["chat", "LONG", "--ctx", "100000", "-n", "90000"], {}, b"Tell me a story.\n", []),
    "chat waits for a message": (["chat", "LONG"], {}, b"", []),
    "batch": (
        ["batch", "LONG", "in.jsonl", "-o", "out.jsonl", "--ctx", "100000"],
        {"in.jsonl": batch_lines(3, max_tokens=90000)}, None, ["out.jsonl.partial"],
    ),
    "eval": (["eval", "TINY", "--text", "text", "--ctx", "4"], {"text": TEXT * 20000}, None, []),
    "eval last words": (
        ["eval", "TINY", "--last-word", "words"], {"words": (json.dumps({"text": TEXT + "He said"}) + "\n") * 50000}, None, [],
    ),
    "bench": (["bench", "TINY", "--prompt-len", "64", "--repeat", "1000000"], {}, None, []),
    "bench of lengths": (["bench", "TINY", "--lengths", "lengths"], {"lengths": "8 300\n" * 100000}, None, []),
    "bench loads": (["bench", "dummy:opt-350m", "--prompt-len", "8", "--repeat", "1000000"], {}, None, []),
    "profile": (
        ["profile", *(f"dummy:opt-1.3b:{kind}" for kind in ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k"))]
        + ["dummy:opt-1.3b", "-o", "tuning.json"], {}, None, [],
    ),
    "inspect": (["inspect", "MANY", "--tensors"], {}, None, []),
    "convert": (["convert", "LARGE", "out.gguf"], {}, None, []),
    "convert over a file": (["convert", "LARGE", "out.gguf"], {"out.gguf": "what was there"}, None, []),
    "tokenize waits for a text": (["tokenize", "TINY", "-f", "-"], {}, b"The riv", []),
    "tokenize": (["tokenize", "TINY", "-f", "text"], {"text": TEXT * 500000}, None, []),
    "logits": (
        ["logits", "LONG", "--ids", ",".join(["5", "7"] * 20000), "-o", "logits", "--chunk", "16"], {}, None, [],
    ),
}  # fmt: skip
SECONDS = [0, 0.1, 0.7]  # after the program can be interrupted
LAST_MOMENT_S = 0.1
# On a fast machine the signal may come when the work of these is done.
HAS_AN_END = {"profile", "inspect", "convert", "convert over a file"}


@pytest.fixture(scope="session")
def references(tiny_model, long_model, large_gguf, many_tensors):
    return {"TINY": tiny_model, "LONG": long_model, "LARGE": large_gguf, "MANY": many_tensors}


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LARGE_ALONE) if name.startswith("convert") else name for name in COMMANDS]
)
def test_a_signal_ends_every_command_and_nothing_is_left(spillway, references, tmp_path, name, number, seconds):
    arguments, inputs, stdin, may_stay = COMMANDS[name]
    place = Place(tmp_path, inputs)
    before = place.files()
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "disk")}
    process = spillway.start(
        *(references.get(argument, argument) for argument in arguments),
        cwd=tmp_path, env=environment, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
    )  # fmt: skip
    try:
        if stdin:
            process.stdin.write(stdin)
        time.sleep(seconds)
        over = process.poll() is not None
        process.send_signal(number)
        sent = time.monotonic()
        # Reading starts only now, since some commands wait for their reader; input that never ends must not keep them.
        output, error = read_to_the_end(process)
        # A command whose work is done when the signal comes ends as if there had been none.
        over = over or (name in HAS_AN_END and process.returncode == 0 and time.monotonic() - sent < LAST_MOMENT_S)
    finally:
        end_process(process)
    if over:
        pytest.skip(f"over within {seconds} s on this machine")
    assert process.returncode == CODES[number], (output[-300:], error)
    assert len(error.splitlines()) <= 1, error
    after = place.files()
    for path in may_stay:
        after.pop(path, None)
    assert after == before


def read_to_the_end(process):
    """Reads the rest of both pipes while standard input stays open."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            process.wait(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            assert time.monotonic() < deadline, "it does not end"
    return process.stdout.read(), process.stderr.read()


@LARGE_ALONE
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("old", [None, "what was there"], ids=["a new file", "a file that is there"])
def test_a_signal_while_convert_writes(spillway, large_gguf, tmp_path, number, old):
    out = tmp_path / "out.gguf"
    if old:
        out.write_text(old)
    process = start_writing(spillway, large_gguf, out)
    try:
        process.send_signal(number)
        output, error = process.communicate(timeout=DEADLINE_S)
    finally:
        end_process(process)
    assert process.returncode == CODES[number], (output, error)
    assert error.startswith(b"spillway: stopped") and error.count(b"\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ([out.name] if old else [])
    assert not old or out.read_text() == old


def start_writing(spillway, model, out, **settings):
    """A conversion that has written a few MiB of the 512 that there will be."""
    process = spillway.start("convert", model, out, **settings)
    deadline = time.monotonic() + DEADLINE_S
    named = f"spillway-out-{process.pid}-*"
    while not is_writing(process, out.parent, 8 * MIB) and not list(out.parent.glob(named)):
        assert process.poll() is None and time.monotonic() < deadline, "nothing is written"
        time.sleep(0.001)
    return process


@LARGE_ALONE
@pytest.mark.parametrize("unnamed", [True, False], ids=["with unnamed files", "without them"])
def test_a_killed_convert_leaves_nothing_for_long(spillway, large_gguf, tiny_model, tmp_path, unnamed):
    out = tmp_path / "out.gguf"
    out.write_text("what was there")
    faults = {} if unnamed else faults_without_unnamed_files(spillway, tiny_model, tmp_path)
    process = start_writing(spillway, large_gguf, out, env=os.environ | faults)
    process.kill()
    process.communicate()
    left = sorted(path.name for path in tmp_path.iterdir() if path != out)
    assert len(left) == (0 if unnamed else 1), left
    assert out.read_text() == "what was there"
    living = start_writing(spillway, large_gguf, tmp_path / "other.gguf", env=os.environ | faults)
    try:
        theirs = {path.name for path in tmp_path.glob("spillway-out-*")}
        assert left == [] or left[0] not in theirs, "the next run removes what the killed one left"
        assert spillway.run("convert", tiny_model, tmp_path / "third.gguf").code == 0
        assert {path.name for path in tmp_path.glob("spillway-out-*")} == theirs, "never what another one is writing"
    finally:
        end_process(living)


def faults_without_unnamed_files(spillway, model, folder):
    """Faults that simulate a file system without O_TMPFILE. The open() to refuse is found by trying, since refusing another one fails."""
    for nth in range(1, 20):
        faults = {"SPILLWAY_FAULTS": f"io.open:{nth}:eopnotsupp"}
        if spillway.run("convert", model, folder / "probe", env=os.environ | faults).code == 0:
            (folder / "probe").unlink()
            return faults
    raise AssertionError("no open could be refused")


def test_a_users_file_beside_an_output_is_left_alone(spillway, tiny_model, tmp_path):
    (tmp_path / "in.jsonl").write_text(batch_lines(2, max_tokens=4))
    theirs = {name: name for name in ("out.jsonl.tmp", "out.gguf.tmp", "out.gguf.tmp.1.0", "spillway-out-1.tmp")}
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    assert spillway.run("batch", tiny_model, "in.jsonl", "-o", "out.jsonl", cwd=tmp_path).code == 0
    assert spillway.run("convert", tiny_model, "out.gguf", cwd=tmp_path).code == 0
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs


# Files that may not grow.


def limited(spillway, arguments, limit, **settings):
    return subprocess.run(
        spillway.command(*arguments), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, timeout=DEADLINE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), **settings,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["convert", "logits", "run", "tokenize", "batch", "profile", "run from disk"])
def test_a_file_that_may_not_grow_is_an_ordinary_error(spillway, references, tmp_path, command):
    out, model = tmp_path / "out", references["TINY"]
    (tmp_path / "in").write_text(batch_lines(3, max_tokens=20))
    (tmp_path / "disk").mkdir()
    arguments = {
        "convert": ["convert", references["LARGE"], out],
        "logits": ["logits", model, "--ids", "1,2,3", "-o", out],
        "run": ["run", model, "-p", TEXT, "-n", "300", "--ignore-end"],
        "tokenize": ["tokenize", model, "-p", TEXT * 40],
        "batch": ["batch", model, tmp_path / "in", "-o", out],
        "profile": ["profile", model, "-o", out],
        "run from disk": ["run", model, "-p", TEXT, "--kv", "0,0,100", "--disk-memory", "1GiB", "--disk-dir", tmp_path / "disk"],
    }[command]
    with open(tmp_path / "stdout", "wb") as stdout:
        limit = {"convert": 3 * MIB, "run from disk": 4096, "profile": 0}.get(command, 100)
        done = limited(spillway, arguments, limit, stdout=stdout)
    assert done.returncode == FAILED, done.stderr
    assert done.stderr.startswith(b"spillway: ") and done.stderr.count(b"\n") == 1, done.stderr
    assert b"File too large" in done.stderr, done.stderr
    left = {path.name for path in tmp_path.iterdir()} - {"in", "disk", "stdout", "out.partial"}
    assert left == set() and os.listdir(tmp_path / "disk") == []


# A model that is truncated.


def wait_until_mapped(process, path):
    deadline = time.monotonic() + 20
    while str(path) not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, process.stderr.read()
        if time.monotonic() > deadline:
            pytest.skip("nothing is mapped: this processor wants weights in another layout than the file's")
        time.sleep(0.01)


def test_a_model_that_lost_its_last_bytes_is_said_at_the_end(spillway, long_model, tmp_path):
    """The truncated part of a file's last page reads as zeros."""
    model = tmp_path / "model.gguf"
    shutil.copyfile(long_model, model)
    process = spillway.start("chat", model, stdin=subprocess.PIPE)
    try:
        wait_until_mapped(process, model)
        process.stdin.write(b"Hello\n")
        process.stdout.read(1)  # it answers, so the checks at loading are over
        os.truncate(model, model.stat().st_size - 1)
        output, error = process.communicate(b"Hello\n", timeout=DEADLINE_S)
    finally:
        end_process(process)
    assert process.returncode == FAILED, (output, error)
    assert error.count(b"\n") == 1 and str(model).encode() in error and b"cut" in error, error


@pytest.mark.parametrize("size", ["nothing", "a half"])
@pytest.mark.parametrize("command", ["run", "eval", "bench"])
def test_a_model_that_is_cut_while_in_use_ends_with_one_line(spillway, long_model, tmp_path, command, size):
    model = tmp_path / "model.gguf"
    shutil.copyfile(long_model, model)
    (tmp_path / "text").write_text(TEXT * 20000)
    work = {
        "run": ["-p", TEXT, "-n", "1000000", "--ignore-end"],
        "eval": ["--text", tmp_path / "text", "--ctx", "4"],
        "bench": ["--prompt-len", "64", "--repeat", "1000000"],
    }[command]
    process = spillway.start(command, model, *work, stdout=subprocess.DEVNULL)
    try:
        wait_until_mapped(process, model)
        time.sleep(0.3)
        os.truncate(model, 0 if size == "nothing" else model.stat().st_size // 2)
        _, error = process.communicate(timeout=DEADLINE_S)
    finally:
        end_process(process)
    assert process.returncode == FAILED, error
    assert error.count(b"\n") == 1 and str(model).encode() in error and b"cut" in error, error
