# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the Python tests share: the program under test, a way to run it, and the public data beside the repository."""

import dataclasses
import fnmatch
import json
import os
import pathlib
import signal
import subprocess
import time

import openai_schema
import pytest
import tiny_llama

# No test may use the network, and the reference needs no more threads than the program.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclasses.dataclass
class Outcome:
    """How a command ended. Output is decoded with replacement characters; raw bytes are in `raw_out`."""

    code: int
    out: str
    err: str
    raw_out: bytes

    def json(self):
        assert self.code == 0, f"exit code {self.code}: {self.err}"
        return json.loads(self.raw_out)

    def assert_one_line_error(self, code):
        """The contract of every failure: this exit code, nothing on stdout, one line on stderr that says something."""
        assert self.code == code, f"exit code {self.code}, expected {code}\nstdout: {self.out}\nstderr: {self.err}"
        lines = self.err.splitlines()
        assert len(lines) == 1, f"expected one line on stderr:\n{self.err}"
        assert len(lines[0]) > 10
        assert self.out == "", f"expected nothing on stdout:\n{self.out}"


def wait_for_handlers(process, timeout_s=10):
    """Returns when the program catches SIGINT and SIGTERM: before, they would end it as they end any process."""
    wanted = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)
    deadline = time.monotonic() + timeout_s
    caught = 0
    while caught & wanted != wanted and process.poll() is None:
        assert time.monotonic() < deadline, "no handlers for SIGINT and SIGTERM"
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        time.sleep(0.001)  # the program wants the processor


def end_process(process):
    """Ends the process whatever its state, and closes its pipes. For use in `finally`."""
    process.kill()
    process.communicate()


class Program:
    """The spillway executable."""

    def __init__(self, path, left_out=""):
        self.path = path
        self.options = [b"--without-cpu-features", left_out.encode()] if left_out else []

    def command(self, *arguments):
        return [os.fsencode(str(self.path)), *self.options] + [a if isinstance(a, bytes) else os.fsencode(str(a)) for a in arguments]

    def run(self, *arguments, stdin=b"", timeout=120, env=None, cwd=None):
        """Runs the program to its end. A hang or a death by signal fails the calling test."""
        if isinstance(stdin, str):
            stdin = stdin.encode()
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, check=False, timeout=timeout, env=env, cwd=cwd
        )
        error = done.stderr.decode(errors="replace")
        assert done.returncode >= 0, f"died of signal {-done.returncode}\nstderr: {error}"
        return Outcome(done.returncode, done.stdout.decode(errors="replace"), error, done.stdout)

    def start(self, *arguments, **streams):
        """A process whose signal handlers are in place; end_process() must end it."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0} | streams
        process = subprocess.Popen(self.command(*arguments), **streams)
        wait_for_handlers(process)
        return process

    def logits(self, model, ids, out_path, *options):
        """float32 [len(ids), vocab]: the logits after each position."""
        numpy = pytest.importorskip("numpy")
        done = self.run("logits", model, "--ids", ",".join(map(str, ids)), "-o", out_path, *options)
        assert done.code == 0, f"exit code {done.code}: {done.err}"
        values = numpy.fromfile(out_path, dtype="<f4")
        assert values.size > 0 and values.size % len(ids) == 0, f"{values.size} values for {len(ids)} positions"
        assert numpy.isfinite(values).all(), "logits are not finite"
        return values.reshape(len(ids), -1)

    def greedy(self, model, ids, count, *options):
        """The ids of `count` greedy tokens after `ids`."""
        prompt = ",".join(map(str, ids))
        answer = self.run("run", model, "--ids", prompt, "-n", count, "--temp", "0", "--json", *options).json()
        assert answer["prompt_ids"] == list(ids)
        return answer["ids"]


@pytest.fixture
def report(request):
    """report(text) shows a measured value at the end of the run, also when the test passes.

    The text is stored as a property of the test, so it arrives with the result from whichever process ran it.
    """
    return lambda text: request.node.user_properties.append(("measured", text))


def pytest_terminal_summary(terminalreporter):
    results = [result for results in terminalreporter.stats.values() for result in results if getattr(result, "when", "") == "call"]
    lines = [text for result in results for name, text in result.user_properties if name == "measured"]
    if lines:
        terminalreporter.section("measured")
        for text in lines:
            terminalreporter.write_line(text)


def pytest_configure(config):
    # Registers the marker even if pytest-xdist, which defines it, is not installed.
    config.addinivalue_line("markers", "xdist_group(name): tests that one process runs one after the other")
    config.addinivalue_line("markers", "long: listed in long_tests.txt; scripts/test.sh leaves them to --full")


def pytest_collection_modifyitems(items):
    """Marks the tests of long_tests.txt, so that -m long and -m 'not long' choose."""
    lines = (pathlib.Path(__file__).parent / "long_tests.txt").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for item in items:
        name = item.nodeid.rpartition("/")[2].partition("@")[0]  # xdist appends @group
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            item.add_marker(pytest.mark.long)


def pytest_addoption(parser):
    parser.addoption("--without-cpu-features", default="", help="instructions that the program does not use: amx,avx512")


@pytest.fixture(scope="session")
def spillway(request):
    """The program under test: $SPILLWAY_BIN, or that of build/release."""
    named = os.environ.get("SPILLWAY_BIN")
    path = pathlib.Path(named) if named else ROOT / "build" / "release" / "bin" / "spillway"
    if not os.access(path, os.X_OK):
        if named:
            pytest.fail(f"SPILLWAY_BIN is not an executable: {path}")
        pytest.skip(f"{path} is not built")
    return Program(path, request.config.getoption("--without-cpu-features"))


@pytest.fixture(scope="session")
def engine_sweep(spillway):
    """bench/engine_sweep.cc's program, which is built where spillway is."""
    path = spillway.path.with_name("engine_sweep")
    if not os.access(path, os.X_OK):
        pytest.skip(f"{path} is not built")
    return path


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """The results of tests do not depend on what was measured on this machine, or typed into chats, before."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def stories():
    """The folder of the stories models."""
    folder = SHARED_DATA / "models"
    if not (folder / "reference_greedy.json").is_file():
        pytest.skip("../shared/data/models is not here")
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder for the models that the tests write."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_model(models):
    """A generated model with a tokenizer and a chat template (tiny_llama.py), as a GGUF file."""
    return tiny_llama.write_gguf(models / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(models):
    """The same model as a Hugging Face folder."""
    return tiny_llama.write_folder(models / "tiny")


@pytest.fixture(scope="session")
def long_model(models):
    """The same model with room for answers that take far longer than any test waits."""
    return tiny_llama.write_gguf(models / "long.gguf", context=1 << 20)


@pytest.fixture(scope="session")
def no_bos_model(models):
    """The same model without a BOS token."""
    return tiny_llama.write_gguf(models / "no-bos.gguf", add_bos=False)


@pytest.fixture(scope="session")
def chat_model():
    """A real chat model."""
    path = CACHE / "spillway" / "models" / SMOLLM2
    if not path.is_file():
        pytest.skip("SmolLM2 is not fetched (scripts/fetch_model.sh smollm2)")
    return path


@pytest.fixture(scope="session")
def specification():
    """OpenAI's: OpenAPI 3.1, whose schemas are JSON Schema 2020-12."""
    path = SHARED_DATA / "openai-openapi.yaml.xz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in ../shared/data")
    return openai_schema.read_schemas(path, pytest.importorskip("yaml"))


@pytest.fixture(scope="session")
def validator(specification):
    """validator(name) of a schema in OpenAI's specification."""
    jsonschema = pytest.importorskip("jsonschema")
    return lambda name: jsonschema.Draft202012Validator(specification | {"$ref": f"#/components/schemas/{name}"})
