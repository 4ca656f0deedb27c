#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the gain of predicted lengths if KV memory is the limit (S3): a real engine on this machine's device, loaded once, with Alpaca's lengths.

    bench/s3_engine.py prepare --prompts ../shared/data/text/alpaca_small_2000.json --model smollm2 -o requests.tsv
    bench/s3_engine.py run --requests requests.tsv --engine 'smollm2 --device cpu' --kv-budget 48MB --context 512 --rounds 5 -o s3.json
    bench/s3_engine.py table s3.json

`prepare` counts tokens with MODEL's tokenizer, so that `run` needs neither data set nor tokenizer. A half of the questions, by a hash, is for
learning; the other one is asked, in another order each round, some of them always waiting.
Cells: orca (as many concurrent requests as fit at full length), paging (a request is admitted if its prompt fits; preempted ones are computed again),
kept (the same, with the KV of preempted requests in host memory if the device has a memory of its own, or in --kv-dir), mean (a running mean), ours
(the built-in predictor), tight (as ours, without spare room for longer answers), cold (as ours, without having learned before), oracle (true lengths);
and by time of arrival, at --load of what `ours` generates: first and shortest (as ours, with different orders of admission). Predictors have learned
before; with --learns-on they go on (leave enough requests for that: a repeated one is known). Cells alternate within rounds; each measurement is stored
immediately, and the same command resumes where it stopped.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

from alpaca import is_for_learning, read_alpaca
from engine_process import EngineProcess
from pie_cells import Results, measure_all, own_command
from s3_engine_tables import tables

OURS = {"admission": "predicted", "lengths": "built-in"}
# The options of each cell, with engine_sweep's keys.
CELLS = {
    "orca": {"admission": "whole"},
    "paging": {"admission": "room", "recomputes": True},
    "kept": {"admission": "room"},
    "mean": {"admission": "predicted", "lengths": "mean"},
    "ours": OURS,
    "tight": OURS | {"spare": 0},
    "cold": OURS,
    "oracle": {"admission": "predicted", "lengths": "oracle"},
    "first": OURS,
    "shortest": OURS | {"order": "shortest"},
}
BY_TIME = ("first", "shortest")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement, identified by its fields."""

    name: str
    budget: str  # bytes of KV memory, such as 48MB
    context: int  # tokens of a request and its answer at most
    warm_up_s: float
    seconds: float
    learn: int  # answers that the predictor learns from before
    learns_on: bool = False
    rate: float = 0.0  # requests a second; 0: some always wait

    def told(self):
        return self.name + (f", {self.rate:g} requests/s" if self.rate else "")


@dataclasses.dataclass(frozen=True)
class Request:
    prompt_tokens: int
    answer_tokens: int
    question: str


def count_tokens(spillway, model, text, *options):
    done = subprocess.run([spillway, "tokenize", model, "--json", *options], input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"spillway tokenize {model}: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)["count"]


def prepare(options):
    examples = [(question, answer) for question, answer in read_alpaca(options.prompts) if answer.strip()]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        prompts = pool.map(lambda of: count_tokens(options.spillway, options.model, of[0]), examples)
        answers = pool.map(lambda of: count_tokens(options.spillway, options.model, of[1], "--no-special"), examples)
        requests = [Request(prompt, answer + 1, question) for (question, _), prompt, answer in zip(examples, prompts, answers)]  # + 1: its end
    write_requests([(0.0, request) for request in requests], options.output)
    learning = sum(is_for_learning(request.question) for request in requests)
    print(f"{learning} to learn from, {len(requests) - learning} to ask; {mean_answer(requests):.1f} tokens an answer")


def write_requests(timed, path):
    """Writes the requests in engine_sweep's format."""
    lines = [f"{at:.6f}\t{of.prompt_tokens}\t{of.answer_tokens}\t{escaped(of.question)}\n" for at, of in timed]
    pathlib.Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")


def escaped(text):
    return text.replace("\\", "\\\\").replace("\r", "").replace("\n", "\\n")


def read_requests(path):
    requests = []
    # Texts may contain other line separators.
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1], 1):
        parts = line.split("\t", 3)
        if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
            raise ValueError(f"{path}, line {number}: not as `prepare` writes it")
        requests.append(Request(int(parts[1]), int(parts[2]), parts[3].replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")))
    return requests


def mean_answer(requests):
    return statistics.fmean(request.answer_tokens for request in requests)


class Measuring:
    """Measures cells with one engine_sweep."""

    def __init__(self, options, process):
        requests = read_requests(options.requests)
        learning = [request for request in requests if is_for_learning(request.question)]
        self.learning = learning[: options.learn] if options.learn else learning
        self.asked = [request for request in requests if not is_for_learning(request.question)]
        if not self.learning or not self.asked:
            raise ValueError(f"{options.requests}: {len(learning)} requests to learn from and {len(self.asked)} to ask; some of both are needed")
        self.words = [*shlex.split(options.engine), "--kv-budget", options.kv_budget, "-c", options.context, "--max-sequences", options.max_sequences]
        self.process = process

    def timed(self, cell, number):
        """Requests with arrival times, the same for each cell of a round."""
        draw = random.Random(f"requests of round {number}")
        asked = draw.sample(self.asked, len(self.asked))
        if not cell.rate:
            return [(0.0, request) for request in asked]
        times, at = [], 0.0
        while at < cell.warm_up_s + cell.seconds + 5:  # a few more, in case the measurement begins late
            times.append(at)
            at += draw.expovariate(cell.rate)
        return [(at, asked[i % len(asked)]) for i, at in enumerate(times)]

    def __call__(self, cell, number):
        with tempfile.TemporaryDirectory() as folder:
            learn, requests = pathlib.Path(folder) / "learn.tsv", pathlib.Path(folder) / "requests.tsv"
            write_requests([(0.0, request) for request in self.learning], learn)
            write_requests(self.timed(cell, number), requests)
            asked = {"requests": str(requests), "saturates": not cell.rate, "context": cell.context, "seed": number + 1}
            asked |= {"warm_up_s": cell.warm_up_s, "seconds": cell.seconds} | CELLS[cell.name]
            asked |= {"learn": "" if cell.name == "cold" else str(learn), "learns": cell.learns_on or cell.name == "cold"}
            result = self.process.measure(self.words, asked)
        result.pop("series")
        return result


def rate_of(results, options, answer_tokens):
    """Requests a second: the share --load of the median rate of `ours`, or the rate of earlier cells by arrival time, if there are any."""
    ours = [run for run in results.runs if run["cell"]["budget"] == options.kv_budget and run["cell"]["context"] == options.context]
    before = [run["cell"]["rate"] for run in ours if run["cell"]["rate"]]
    if before:
        return before[0]
    rates = [run["result"]["tokens_per_s"] for run in ours if run["cell"]["name"] == "ours"]
    if not rates:
        raise ValueError("cells by time need `ours` in --cells: how fast it is says how many requests come")
    return float(f"{options.load * statistics.median(rates) / answer_tokens:.3g}")


def run(options):
    results = Results(options.output, own_command())
    with EngineProcess(options.sweep) as process:
        measure = Measuring(options, process)
        of = {"budget": options.kv_budget, "context": options.context, "warm_up_s": options.warm_up, "seconds": options.seconds}
        of |= {"learn": len(measure.learning), "learns_on": options.learns_on}
        cells = [Cell(name, **of) for name in options.cells if name not in BY_TIME]
        if not measure_all(cells, options.rounds, results, measure, options.at_most):
            return
        timed = [name for name in options.cells if name in BY_TIME]
        if timed:
            rate = rate_of(results, options, mean_answer(measure.asked))
            measure_all([Cell(name, **of | {"rate": rate}) for name in timed], options.rounds, results, measure, options.at_most)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare", help="a file of requests from Alpaca's JSON")
    preparing.set_defaults(command=prepare)
    preparing.add_argument("--prompts", required=True, help="Alpaca's JSON (.xz, too)")
    preparing.add_argument("--model", required=True, help="whose tokens are counted: as `spillway tokenize` takes it")
    preparing.add_argument("--spillway", default="build/release/bin/spillway")
    preparing.add_argument("-o", "--output", required=True)
    running = commands.add_parser("run", help="measure")
    running.set_defaults(command=run)
    running.add_argument("--requests", required=True, help="what `prepare` wrote")
    running.add_argument("--engine", required=True, help="model and options of engine_sweep, but those below")
    running.add_argument("--kv-budget", required=True, help="KV memory on the device, such as 2GB")
    running.add_argument("--context", type=int, default=2048, help="tokens of a request and its answer at most")
    running.add_argument("--max-sequences", type=int, default=64, help="at work at once")
    running.add_argument("--cells", type=lambda text: text.split(","), default=["orca", "paging", "mean", "ours", "oracle"], help=f"of {', '.join(CELLS)}")
    running.add_argument("--rounds", type=int, default=1)
    running.add_argument("--warm-up", type=float, default=4.0, help="seconds before what counts")
    running.add_argument("--seconds", type=float, default=12.0, help="that count")
    running.add_argument("--learn", type=int, default=0, help="answers to learn from before (default: all of that half)")
    running.add_argument("--learns-on", action="store_true", help="from what is asked, too")
    running.add_argument("--load", type=float, default=0.8, help="of cells by time: a share of what `ours` generates")
    running.add_argument("--at-most", type=float, default=0.0, help="seconds, after which no other measurement begins")
    running.add_argument("--sweep", default="build/release/bin/engine_sweep")
    running.add_argument("-o", "--output", required=True, help="JSON; what it has is not measured again")
    showing = commands.add_parser("table", help="results as Markdown")
    showing.set_defaults(command=lambda options: print("\n".join(line for path in options.results for line in tables(Results(path, "").runs))))
    showing.add_argument("results", nargs="+")
    options = parser.parse_args(arguments)
    unknown = [name for name in getattr(options, "cells", []) if name not in CELLS]
    if unknown:
        parser.error(f"no such cells: {', '.join(unknown)}")
    return options


def main():
    options = parse_arguments()
    try:
        options.command(options)
    except (OSError, RuntimeError, ValueError) as problem:
        sys.exit(f"s3_engine.py: {problem}")


if __name__ == "__main__":
    main()
