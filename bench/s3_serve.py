#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the gain of predicted lengths in the real server if KV memory is the limit: one server after the other, with the same requests.

    bench/s3_serve.py --model smollm2.gguf --prompts ../shared/data/text/alpaca_small_2000.json \\
        --serve '-c 512 --max-sequences 32 --host-memory 220MiB --deterministic' --requests 120 --learn 200 -o s3.json

Cells (--cells): orca (as many concurrent requests as fit at full length), paging (a request is admitted if its prompt fits; preempted ones
are computed again), mean (a running mean), ours (the built-in predictor, which has learned from --learn other requests), cold (the same,
which has not), kept (as ours, with the KV of preempted requests in a folder), oracle (each request says how long its answer is), first and shortest
(as ours, with different orders of admission: for --rate).
Where a machine's speed changes by the minute, orca+ours runs two servers at the same time (each with its share of the cores: -t in --serve).
How much KV there is, --host-memory or --gpu-memory says. Answers end by themselves. A model of random weights never does: with
--end-token ID its end is made as likely in each request as Alpaca's answer to it is short. JSON is written after each cell.
"""

import argparse
import concurrent.futures
import hashlib
import http.client
import json
import math
import os
import pathlib
import platform
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from alpaca import is_for_learning, read_alpaca

OFF = ["--length-predictor", "off"]
CELLS = {
    "orca": [*OFF, "--kv-admission", "whole"],
    "paging": [*OFF, "--kv-admission", "room"],
    "mean": ["--length-predictor", "mean"],
    "ours": [],
    "cold": [],
    "kept": [],
    "oracle": [],
    "first": ["--queue-order", "first"],
    "shortest": ["--queue-order", "shortest"],
}
LEARNED = ("ours", "kept", "oracle", "first", "shortest")  # these cells begin with a predictor that has learned
READY = re.compile(r"serving (.*) at http://127\.0\.0\.1:(\d+)\n")
WORDS_TO_TOKENS = 1.4  # tokens per word of an answer in English, about


class Server:
    """A server process on a free port. Use with `with`."""

    def __init__(self, options, extra, cache):
        words = [options.spillway, "serve", options.model, *shlex.split(options.serve), "--port", "0", "--name", "model", "--max-queue", "100000", *extra]
        self.command = shlex.join(map(str, words))
        self.log = tempfile.TemporaryFile("w+") if options.quiet else None  # not a pipe, which could fill up
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self.log, text=True, env=os.environ | {"XDG_CACHE_HOME": str(cache)})
        line = self.process.stdout.readline()
        found = READY.fullmatch(line)
        if not found:
            if self.log:
                self.log.seek(0)
            sys.exit(f"the server ended: {self.command}\n{self.log.read() if self.log else ''}")
        self.port = int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()

    def complete(self, body, timeout_s):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            connection.request("POST", path, json.dumps({"model": "model"} | body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {text[:300]!r}")
            return json.loads(text)
        finally:
            connection.close()

    def metrics(self):
        self.complete({"prompt": [5], "max_tokens": 1, "ignore_eos": True}, 600)  # metrics are those of the last step, so one more step updates them
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(spillway_\S+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


def body_of(options, question, words, number, most_tokens=None):
    fields = {"max_tokens": options.max_tokens, "temperature": 0, "seed": number}
    if most_tokens is not None:
        fields |= {"max_tokens": most_tokens, "ignore_eos": True}
    elif options.end_token is not None:
        tokens = min(options.max_tokens, max(2.0, words * WORDS_TO_TOKENS))
        fields |= {"temperature": 1, "logit_bias": {str(options.end_token): round(math.log(options.vocabulary / tokens) + options.end_bias, 3)}}
    if options.chat:
        return fields | {"messages": [{"role": "user", "content": question}]}
    return fields | {"prompt": question}


def run_load(server, options, bodies, due_s):
    """([(seconds from the due time to the end, tokens, text)] in the order of the bodies, the seconds of all)"""
    begun = time.monotonic()

    def ask(item):
        body, due = item
        time.sleep(max(0.0, begun + due - time.monotonic()))
        answer = server.complete(body, options.timeout)
        choice = answer["choices"][0]
        text = choice.get("text") if "text" in choice else choice["message"]["content"]
        return time.monotonic() - begun - due, answer["usage"]["completion_tokens"], text

    with concurrent.futures.ThreadPoolExecutor(max_workers=len(bodies)) as pool:
        outcomes = list(pool.map(ask, zip(bodies, due_s)))
    return outcomes, time.monotonic() - begun


def measure(options, name, bodies, due_s, cache):
    cache.mkdir(exist_ok=True)
    kept = ["--kv-dir", str(cache / "kv")] if name == "kept" else []
    with Server(options, [*CELLS[name], *kept], cache) as server:
        before = server.metrics()
        outcomes, seconds = run_load(server, options, bodies, due_s)
        after = server.metrics()
        command = server.command

    def grown(metric):
        return after.get(metric, 0.0) - before.get(metric, 0.0)

    latencies = sorted(latency for latency, _, _ in outcomes)
    tokens = [count for _, count, _ in outcomes]
    foresight = {part: grown(f'spillway_prediction_seconds_total{{part="{part}"}}') for part in ("predicting", "scheduling", "learning")}
    steps_s = grown("spillway_step_seconds_sum")
    results = {result: grown(f'spillway_length_predictions_total{{result="{result}"}}') for result in ("right", "over", "under")}
    return {
        "cell": name,
        "command": command,
        "requests": len(outcomes),
        "seconds": seconds,
        "generated_tokens": sum(tokens),
        "tokens_per_s": sum(tokens) / seconds,
        "mean_answer": statistics.fmean(tokens),
        "mean_at_work": grown("spillway_generated_tokens_total") / max(1.0, grown("spillway_steps_total")),
        "mean_latency_s": statistics.fmean(latencies),
        "p99_latency_s": latencies[min(len(latencies) - 1, math.ceil(0.99 * len(latencies)) - 1)],
        "preemptions": grown("spillway_preemptions_total"),
        "recomputed_tokens": grown("spillway_recomputed_tokens_total"),
        "outgrown": grown("spillway_predictions_exceeded_total"),
        "outgrown_preemptions": grown("spillway_exceeded_preemptions_total"),
        "predictions": results,
        "foresight_s": foresight,
        "foresight_share": sum(foresight.values()) / max(steps_s, 1e-9),
        "kv_blocks": sum(value for metric, value in after.items() if metric.startswith("spillway_kv_blocks{")),
        "answer_tokens": tokens,
        "answers_digest": [hashlib.sha256((text or "").encode()).hexdigest()[:12] for _, _, text in outcomes],
    }


def medians(runs):
    """One result per cell: the median of each figure over the rounds."""
    cells = {}
    for run in runs:
        cells.setdefault(run["cell"], []).append(run)
    names = [name for name, value in runs[0].items() if isinstance(value, float)]
    return [rounds[0] | {name: statistics.median(run[name] for run in rounds) for name in names} for rounds in cells.values()]


def print_table(runs):
    for beside in dict.fromkeys(run["beside"] for run in runs if "+" in run["beside"]):
        pair = [[run["tokens_per_s"] for run in runs if run["beside"] == beside and run["cell"] == cell] for cell in beside.split("+")]
        ratios = [second / first for first, second in zip(*pair[:2])]
        print(f"{beside}, at the same time: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    cells = medians(runs)
    print("| cell | tokens/s | by orca | by paging | at work | preemptions | computed again | mean latency | p99 | foresight | same answers |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    by_name = {cell["cell"]: cell for cell in cells}
    first = cells[0]

    def ratio(cell, name):
        return f"{cell['tokens_per_s'] / by_name[name]['tokens_per_s']:.3f}" if name in by_name else ""

    for cell in cells:
        same = sum(a == b for a, b in zip(cell["answers_digest"], first["answers_digest"]))
        print(
            f"| {cell['cell']} | {cell['tokens_per_s']:.1f} | {ratio(cell, 'orca')} | {ratio(cell, 'paging')} | {cell['mean_at_work']:.1f} "
            f"| {cell['preemptions']:.0f} | {cell['recomputed_tokens']:.0f} | {cell['mean_latency_s']:.2f} s | {cell['p99_latency_s']:.2f} s "
            f"| {cell['foresight_share']:.2%} | {same} of {cell['requests']} |"
        )


def parse_options(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file or a folder")
    parser.add_argument("--prompts", required=True, help="Alpaca's JSON (.xz, too)")
    parser.add_argument("--serve", default="", help="further options of `spillway serve`")
    parser.add_argument("--cells", default="orca,paging,mean,ours,oracle", help=f"of {', '.join(CELLS)}; oracle needs one before it")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--learn", type=int, default=0, help="other requests that the predictor learns from first")
    parser.add_argument("--rounds", type=int, default=1, help="cells take turns in each; the table has medians")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second, at random times (default: all at once)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer: what the server is told")
    parser.add_argument("--completions", dest="chat", action="store_false", help="prompts as they are, instead of messages")
    parser.add_argument("--end-token", type=int, help="of a model of random weights")
    parser.add_argument("--vocabulary", type=int, default=32000, help="with --end-token: the model's")
    parser.add_argument("--end-bias", type=float, default=0.0, help="with --end-token: added, where ends are too rare or too frequent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one request")
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--quiet", action="store_true", help="without the servers' log")
    parser.add_argument("-o", "--output", help="all of it as JSON, after each cell")
    options = parser.parse_args(words)
    unknown = [name for name in re.split("[,+]", options.cells) if name not in CELLS]
    if unknown:
        parser.error(f"no such cells: {', '.join(unknown)}")
    return options


def main():
    options = parse_options()
    draw = random.Random(options.seed)
    examples = [(question, len(answer.split())) for question, answer in read_alpaca(options.prompts)]
    draw.shuffle(examples)
    asked = [example for example in examples if not is_for_learning(example[0])][: options.requests]
    taught = [example for example in examples if is_for_learning(example[0])][: options.learn]
    due_s, at = [], 0.0
    for _ in asked:
        due_s.append(at)
        at += draw.expovariate(options.rate) if options.rate else 0.0
    result = {"machine": platform.machine(), "cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "arguments": vars(options), "cells": []}

    def keep():
        if options.output:
            pathlib.Path(options.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        learned = pathlib.Path(folder) / "learned"
        if taught:
            bodies = [body_of(options, *example, number) for number, example in enumerate(taught)]
            with Server(options, [], learned) as server:
                _, seconds = run_load(server, options, bodies, [0.0] * len(bodies))
            result["learning"] = {"requests": len(taught), "seconds": seconds}
            keep()

        def run_cell(number, name, beside):
            known = result["cells"][0]["answer_tokens"] if name == "oracle" else [None] * len(asked)
            bodies = [body_of(options, *example, seed, tokens) for seed, (example, tokens) in enumerate(zip(asked, known))]
            cache = pathlib.Path(folder) / f"{name}{number}{beside}"
            if name in LEARNED and learned.exists():
                subprocess.run(["cp", "-r", str(learned), str(cache)], check=True)
            return {"round": number, "beside": beside} | measure(options, name, bodies, due_s, cache)

        for number in range(options.rounds):
            for beside in options.cells.split(","):
                names = beside.split("+")
                with concurrent.futures.ThreadPoolExecutor(max_workers=len(names)) as pool:
                    result["cells"] += pool.map(lambda name: run_cell(number, name, beside), names)
                keep()
    print_table(result["cells"])


if __name__ == "__main__":
    main()
