# SPDX-License-Identifier: Apache-2.0
"""bench/s3_tables.py prints every table and figure of S3 that it has data for, and names those without data."""

import importlib.util
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "s3_tables.py"
RUN = {"batch": 8.5, "iterations": 100, "tokens_per_s": 850.0, "sequences_per_s": 10.0, "preemptions": 3, "recomputed_tokens": 40}
RUN |= {"generation_s": 90.0, "penalty_s": 9.0, "scheduler_s": 1.0, "mean_latency_s": 2.0, "p99_latency_s": 4.0, "steps_in_pace": 0.9}
RUN |= {"slowest_step_s": 0.2}
SYSTEMS = ("orca", "s3", "oracle", "paging", "spillway", "spillway_swap", "spillway_mean", "spillway_oracle")


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("s3_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_of(script):
    runs = {name: dict(RUN) for name in SYSTEMS}
    runs["orca"]["tokens_per_s"] = 85.0
    order = {"first_come": RUN, "shortest": RUN | {"mean_latency_s": 1.0}, "shortest_oracle": RUN}
    curve = [{"batch": 1, "latency_s": 1.0, "tokens_per_s": 60.0, "vanilla": True}, {"batch": 2, "latency_s": 1.5, "tokens_per_s": 80.0, "vanilla": False}]
    figure1 = {"vanilla_batch": 1, "exact_batch": 2, "curve": curve}
    model = {"offline": runs, "online": runs, "figure1": figure1, "shortest_first": {"4": order}}
    return {
        "requests": 1000,
        "predictor": {"paper_accuracy": 0.96, "paper_majority_accuracy": 0.95, "us_per_prediction": 10.0},
        "models": {name: model for name in script.TABLE2},
        "gpt3": {gpus: runs for gpus in script.TABLE4},
        "gpt3_figure1": {gpus: figure1 for gpus in script.TABLE4},
    }


def test_all_is_printed_beside_the_papers_figures(script, capsys):
    result = result_of(script)
    script.print_tables(result)
    script.print_figures(result)
    script.print_rest(result)
    out = capsys.readouterr().out
    for title in ("Table 2", "Table 3", "Table 4", "Table 5", "Figure 1", "Figure 4d", "Figure 5", "Figure 6", "Shortest"):
        assert title in out, title
    assert "2350" in out and "Spillway over ORCA 10.00" in out
    assert "Google-NQ" in out and "Pile" in out
    assert "2*: 1.50 s 80" in out and "mean 2.00x lower" in out
    assert "90.00%" in out or "89.9" in out


def test_what_the_papers_text_says_of_its_figures_is_beside_ours(script, capsys):
    script.print_figures(result_of(script))
    out = capsys.readouterr().out
    assert "within 11.25 s" in out and "the slowest takes 1.50 s" in out
    assert all(f"GPT-3, {gpus} GPUs: 1: 1.00 s 60" in out for gpus in (6, 8, 10))
    assert "in the paper (S3) 1.13 to 6.49; ours 1.00 to 1.00" in out
    assert "ours GPT-J, LLAMA 13B, GPT-NEOX, LLAMA 33B" in out
    assert "ORCA on 10 over S3 on 6: in the paper 1.0092; ours 0.1000" in out
    assert "in the paper 11%; ours" in out
    assert out.count(script.UNREAD) == 4


def test_results_without_an_encoder_and_without_gpt3s_half_say_so(script, capsys):
    result = result_of(script)
    del result["gpt3_figure1"]
    script.print_tables(result)
    script.print_figures(result)
    out = capsys.readouterr().out
    assert "an encoder (Spillway): not measured" in out
    assert "GPT-3 on 6, 8 and 10 GPUs: not in this result" in out


def test_an_encoder_has_a_row_in_table_5(script, capsys):
    result = result_of(script) | {"encoder": {"name": "all-MiniLM-L6-v2", "paper_accuracy": 0.9625, "us_per_prediction": 1600.0}}
    script.print_tables(result)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("all-MiniLM"))
    assert "96.25%" in row and "1.6 ms" in row
