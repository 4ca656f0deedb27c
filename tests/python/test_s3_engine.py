# SPDX-License-Identifier: Apache-2.0
"""bench/s3_engine.py: requests from a data set, an engine that answers them under every policy, and the tables of it."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from alpaca import is_for_learning  # noqa: E402
from engine_process import EngineProcess  # noqa: E402
from s3_engine import Request, read_requests, write_requests  # noqa: E402
from s3_engine_tables import tables  # noqa: E402


def run_script(*words, code=0):
    command = [sys.executable, BENCH / "s3_engine.py", *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def requests(spillway, tiny_model, tmp_path):
    prompts, path = tmp_path / "prompts.json", tmp_path / "requests.tsv"
    entries = [{"instruction": f"Name thing {i}", "input": "one\\two" if i % 2 else "", "output": "word " * (1 + i % 9)} for i in range(40)]
    prompts.write_text(json.dumps([*entries, {"instruction": "Say nothing", "output": ""}]))
    told = run_script("prepare", "--prompts", prompts, "--model", tiny_model, "--spillway", spillway.path, "-o", path)
    assert "to learn from" in told
    return path


def test_tokens_are_counted_and_questions_stay_as_they_are(requests, spillway, tiny_model):
    found = read_requests(requests)
    assert [of.question for of in found[:2]] == ["Name thing 0", "Name thing 1\n\none\\two"]
    assert len(found) == 40, "an answer without words is none"
    assert found[3].prompt_tokens == spillway.run("tokenize", tiny_model, found[3].question, "--json").json()["count"]
    assert found[3].answer_tokens == spillway.run("tokenize", tiny_model, "word " * 4, "--json", "--no-special").json()["count"] + 1


def test_every_cell_is_measured_in_one_process_and_gone_on_with(requests, engine_sweep, tiny_model, tmp_path):
    output = tmp_path / "out.json"
    words = ["run", "--requests", requests, "--engine", f"{tiny_model} --device cpu --threads 1 --no-tuning", "--kv-budget", "64KiB", "--context", 64]
    words += ["--warm-up", 0.1, "--seconds", 0.4, "--rounds", 2, "--max-sequences", 8, "--sweep", engine_sweep, "-o", output]
    names = ["orca", "paging", "mean", "ours", "cold", "oracle"]
    assert "11 measurements are left" in run_script(*words, "--cells", ",".join(names), "--at-most", "0.000001")
    run_script(*words, "--cells", ",".join([*names, "first", "shortest"]))
    runs = json.loads(output.read_text())["runs"]
    assert [run["cell"]["name"] for run in runs] == [*names, *names[::-1], "first", "shortest", "shortest", "first"]
    results = {run["cell"]["name"]: run["result"] for run in runs}
    assert all(result["tokens_per_s"] > 0 and result["requests"] > 0 for result in results.values())
    whole = results["orca"]["blocks"] * 16 // 64  # full contexts that fit
    assert results["orca"]["sequences"] <= whole < results["ours"]["sequences"]
    assert results["orca"]["preemptions"] == 0 and results["oracle"]["recomputed_tokens"] == 0
    assert results["cold"]["learning_share"] > 0 == results["ours"]["learning_share"], "what is asked again teaches nothing"
    rates = {run["cell"]["rate"] for run in runs}
    assert len(rates) == 2 and min(rates) == 0, "both orders see the same arrivals"
    told = run_script("table", output)
    assert told.count("\n| ") == len(names) + 2 + 2 and "2 rounds" in told


def test_ratios_are_those_of_rounds():
    cell = {"budget": "1GB", "context": 512, "rate": 0.0}
    result = {"seconds": 10.0, "sequences": 4.0, "preemptions": 1, "scheduling_share": 0.001}
    speeds = {"orca": (100.0, 50.0, 10.0), "paging": (200.0, 110.0, 18.0), "ours": (210.0, 121.0, 19.0)}
    lost = {"orca": 0, "paging": 300, "ours": 20}
    runs = [
        {"cell": cell | {"name": name}, "round": i, "result": result | {"tokens_per_s": speed, "recomputed_tokens": lost[name]}}
        for name, of in speeds.items()
        for i, speed in enumerate(of)
    ]
    told = "\n".join(tables(runs))
    assert "| ours | 121 | 2.100 (1.900 to 2.420) | 1.056 (1.050 to 1.100) |" in told
    assert "| 3 | 60 | 16.0 times | 0.10% | 0.00% |" in told


def test_no_predictor_learns_from_the_measured_requests(tmp_path):
    questions = [f"question {i}" for i in range(200)]
    assert 60 < sum(map(is_for_learning, questions)) < 140
    write_requests([(0.0, Request(3, 4, "all of\none kind"))], tmp_path / "r.tsv")
    assert read_requests(tmp_path / "r.tsv") == [Request(3, 4, "all of\none kind")]


def test_a_program_that_ended_is_named_with_its_words(monkeypatch):
    start = subprocess.Popen

    def start_and_wait(*words, **options):
        process = start(*words, **options)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_wait)
    with pytest.raises(RuntimeError, match="ended with 1: false 7"), EngineProcess("false") as process:
        process.measure([7], {"requests": "r.tsv"})


def test_wrong_words_are_one_line(tmp_path):
    words = ["run", "--engine", "m", "--kv-budget", "1GB", "-o", tmp_path / "o.json", "--requests", tmp_path / "r.tsv"]
    assert "no such cells: theirs" in run_script(*words, "--cells", "ours,theirs", code=2)
    (tmp_path / "r.tsv").write_text("0\t3\tfour\tx\n")
    assert "r.tsv, line 1: not as `prepare` writes it" in run_script(*words, code=1)
    (tmp_path / "r.tsv").write_text("0\t3\t4\tquestion\n")
    assert "some of both are needed" in run_script(*words, code=1)
