# SPDX-License-Identifier: Apache-2.0
"""bench/pie_figures.py: its cells, that they are stored and resumed, and the tables and pictures of them."""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from pie_cells import Cell, Results, emulated_cells, in_turns, medians, step_cells  # noqa: E402
from pie_serve import summarize  # noqa: E402
from pie_tables import FIGURES, longest_below, memory_for  # noqa: E402
from pie_workload import MEANS, draw_requests, write_plain, write_trace  # noqa: E402
from serve_workload import read_trace  # noqa: E402

# A stand-in for pie_sweep: more layers are faster up to 26, and 24 are found online.
SWEEP = """#!{python} -IS
import json, sys
def of(name): return sys.argv[sys.argv.index(name) + 1]
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + chr(10))
assert len(open(of("--requests")).readlines()) > 1
turning = 24 if of("--turning") == "auto" else int(of("--turning"))
blocks = int(of("--blocks"))
rate = blocks * (1 + min(turning, 26) / 50) * (0.5 if "--on-demand" in sys.argv and turning else 1)
series = [dict(s=i / 2, tokens_per_s=rate * (0.2 if 4 < i < 8 else 1), turning=min(turning, 4 * i)) for i in range(1, 41)]
print(json.dumps(dict(turning=turning, expansion=48 / (50 - turning) if turning else 1, blocks=blocks, expanded_blocks=2 * blocks, seconds=20,
    tokens_per_s=rate, step_ms=30, median_step_ms=30, waited_share=0.01, sequences=20, preemptions=1, changes=2, turn_bytes_per_s=1e6,
    queueing_ms_per_token=100 - turning, compute_ms_per_token=30, series=series)))
"""


@pytest.fixture
def figures(tmp_path):
    """figures(words...) runs the script and returns its output; figures.calls has the calls of pie_sweep."""
    sweep = tmp_path / "sweep"
    sweep.write_text(SWEEP.format(python=sys.executable, calls=str(tmp_path / "calls")))
    sweep.chmod(0o755)

    def run(*words, code=0):
        command = [sys.executable, BENCH / "pie_figures.py", *words, *(["--sweep", sweep] if words[0] == "emulated" else [])]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    run.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    run.results = lambda: json.loads((tmp_path / "out.json").read_text())
    return run


def test_every_cell_is_measured_once_and_kept_at_once(figures, tmp_path):
    words = ["emulated", "-o", "out.json", "--about", "expansion", "--workloads", "alpaca", "--rounds", "2"]
    figures(*words)
    cells = [run["cell"]["turning"] for run in figures.results()["runs"]]
    assert len(cells) == 2 * (9 + 4), "8 fixed, what is found, 4 on demand"
    assert cells[13:] == cells[:13][::-1], "rounds alternate"
    assert all("--saturate" in call for call in figures.calls())
    assert sum("--on-demand" in call for call in figures.calls()) == 8
    figures(*words)
    assert len(figures.calls()) == 26, "nothing is measured again"
    # A lost result is measured again.
    content = figures.results()
    content["runs"].pop(5)
    (tmp_path / "out.json").write_text(json.dumps(content))
    assert figures(*words).startswith("1 of 1: ")
    assert len(figures.calls()) == 27


def test_it_stops_in_time_and_says_what_is_left(figures):
    words = ["emulated", "-o", "out.json", "--about", "expansion", "--workloads", "alpaca", "--at-most", "0.000001"]
    assert "12 measurements are left" in figures(*words)
    assert len(figures.results()["runs"]) == 1
    assert "11 measurements are left" in figures(*words)


def test_all_figures_are_drawn(figures, tmp_path):
    figures("emulated", "-o", "out.json", "--workloads", "sharegpt,azure")
    about = {run["cell"]["about"] for run in figures.results()["runs"]}
    assert about == set(FIGURES) | {"on-demand"}
    figures("draw", "out.json", "--markdown", "out.md", "--svg", "pie")
    text = (tmp_path / "out.md").read_text()
    assert "Found online: 97.4% of the best fixed number (26), 1.48 times none." in text
    assert "nine tenths of them after 3.0 s" in text
    assert "longest time below it, in each round: 1.5 s" in text
    assert "| 128 | 128 | 189 | 1.48 | 1.85 | 189 | 1.48 |" in text, "memory for the same throughput"
    assert "azure" not in text, "without its trace"
    for about in set(FIGURES) - {"step"}:
        xml.etree.ElementTree.parse(tmp_path / f"pie-{about}.svg")


def test_wrong_words_are_one_line(figures, tmp_path):
    assert "unknown: nothing" in figures("emulated", "-o", "out.json", "--about", "nothing", code=2)
    (tmp_path / "other.json").write_text("[]")
    assert "other.json: not a file of measurements" in figures("draw", "other.json", code=1)


def test_cells_are_different_ones():
    cells = emulated_cells(list(MEANS))
    assert len(set(cells)) == len(cells)
    assert {cell.workload for cell in cells if cell.about == "expansion"} == set(MEANS)
    assert [number for _, number in in_turns([1, 2], 3)] == [0, 0, 1, 1, 2, 2]
    assert [cell for cell, _ in in_turns([1, 2], 3)] == [1, 2, 2, 1, 1, 2]


def test_steps_are_compared_at_what_was_found(tmp_path):
    results = Results(tmp_path / "r.json", "")
    results.add(Cell("expansion", "alpaca", "auto"), 0, {"turning": 20, "blocks": 128, "expanded_blocks": 204, "tokens_per_s": 5})
    cells = step_cells(Results(tmp_path / "r.json", "").runs, ["alpaca", "sharegpt"])
    assert {(cell.turning, cell.budget) for cell in cells} == {("0", "204"), ("20", "128")}
    assert {cell.real_time for cell in cells} == {False, True}


def test_medians_are_over_rounds():
    cell = Cell("expansion", "alpaca").__dict__
    runs = [{"cell": cell, "round": i, "result": {"tokens_per_s": rate, "series": [i]}} for i, rate in enumerate((10, 40, 20))]
    [(found, result)] = medians(runs)
    assert found == Cell("expansion", "alpaca")
    assert (result["tokens_per_s"], result["spread"], result["rounds"]) == (20, 1.5, 3)


def test_memory_and_time_are_read_off_curves():
    curve = [(64, 10), (128, 20), (256, 30)]
    assert memory_for(25, curve) == 192
    assert memory_for(10, curve) == 64
    assert memory_for(31, curve) is None
    assert longest_below([(1, 5), (2, 3), (3, 3), (4, 5), (5, 3)], 4) == 2
    assert longest_below([(1, 5)], 4) == 0


def test_requests_are_the_same_for_both_machines(tmp_path):
    shapes = draw_requests("sharegpt", 5.0, 20.0, seed=3)
    assert shapes == draw_requests("sharegpt", 5.0, 20.0, seed=3) != draw_requests("sharegpt", 5.0, 20.0, seed=4)
    assert shapes[-1].due_s > 15 and all(of.prompt_tokens + of.output_tokens <= 1000 for of in shapes)
    mean = sum(of.output_tokens for of in draw_requests("alpaca", 0, 0, seed=1)) / 2000
    assert mean == pytest.approx(MEANS["alpaca"][1], rel=0.1)
    write_trace(shapes, tmp_path / "trace.csv")
    again = read_trace(tmp_path / "trace.csv", len(shapes))
    assert [(of.prompt_tokens, of.output_tokens) for of in again] == [(of.prompt_tokens, of.output_tokens) for of in shapes]
    assert [of.due_s for of in again] == pytest.approx([of.due_s for of in shapes], abs=1e-5)
    write_plain(shapes, tmp_path / "plain")
    assert len((tmp_path / "plain").read_text().splitlines()) == len(shapes)
    # A trace's own lengths, scaled.
    found = draw_requests("azure", 1.0, 5.0, seed=1, scale=0.5, trace=tmp_path / "trace.csv")
    assert max(of.prompt_tokens for of in found) <= max(of.prompt_tokens for of in shapes) / 2 + 1


def test_a_servers_metrics_are_what_the_sweep_says():
    names = ("generated_tokens_total", "steps_total", "requests_waiting", "requests_running", "kv_layer_swap_wait_seconds_total")
    looks = [(float(at), {f"spillway_{name}": float(value) for name, value in zip(names, values)}) for at, values in
             ((10, (100, 10, 4, 8, 1)), (11, (200, 20, 2, 8, 1)), (12, (300, 30, 0, 10, 1.5)))]
    found = summarize(looks)
    assert (found["tokens_per_s"], found["step_ms"], found["waited_share"]) == (100, 100, 0.25)
    assert (found["sequences"], found["queueing_ms_per_token"], found["compute_ms_per_token"]) == (9, 10, 90)


def test_servers_are_measured_by_the_same_script(spillway, tiny_model, tmp_path):
    output = tmp_path / "out.json"
    serve = f"{tiny_model} --device cpu --threads 1 --no-tuning -c {{budget}} --max-sequences 4"
    command = [sys.executable, BENCH / "pie_figures.py", "serve", "-o", output, "--serve", serve, "--budget", "256", "--spillway", spillway.path]
    command += ["--kv-expansion", "0", "--workloads", "alpaca", "--rates", "4", "--about", "expansion,latency", "--warm-up", "1", "--seconds", "5"]
    command += ["--most-tokens", "200", "--token-ids", "200", "--clients", "4", "--requests", "30000", "--port", "0"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    runs = json.loads(output.read_text())["runs"]
    assert [run["cell"]["about"] for run in runs] == ["expansion", "latency"]
    for run in runs:
        assert run["result"]["tokens_per_s"] > 0 and run["result"]["expansion"] == 1 and run["result"]["series"]
        assert "--kv-expansion 0" in run["result"]["command"] and "-c 256" in run["result"]["command"]
        assert run["result"]["errors"] == [{}]


def test_an_engine_is_measured_without_a_server(engine_sweep, tiny_model, tmp_path):
    output = tmp_path / "out.json"
    command = [sys.executable, BENCH / "pie_figures.py", "engine", "-o", output, "--engine", f"{tiny_model} --device cpu --threads 1 --no-tuning -c 256"]
    command += ["--budget", "1MiB", "--budgets", "2MiB", "--kv-expansion", "0", "--workloads", "alpaca", "--rates", "20", "--most-tokens", "200"]
    command += ["--about", "expansion,budget,latency", "--warm-up", "0.2", "--seconds", "0.8", "--sweep", engine_sweep]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    runs = {run["cell"]["about"]: run["result"] for run in json.loads(output.read_text())["runs"]}
    assert list(runs) == ["expansion", "budget", "latency"]
    assert all(result["tokens_per_s"] > 0 and result["expansion"] == 1 and result["series"] for result in runs.values())
    assert runs["budget"]["blocks"] == 2 * runs["expansion"]["blocks"] == 2 * runs["latency"]["blocks"]
    assert runs["expansion"]["queueing_ms_per_token"] > runs["latency"]["queueing_ms_per_token"], "some always wait"
