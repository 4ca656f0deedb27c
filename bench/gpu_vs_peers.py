#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Spillway beside llama.cpp and FlexGen on one machine, cell by cell, in turns, as one table. Called by gpu_vs_peers.sh.

    bench/gpu_vs_peers.sh --list
    bench/gpu_vs_peers.sh --llama-cpp FOLDER --flexgen FOLDER              # every cell that has no result yet
    bench/gpu_vs_peers.sh --llama-cpp FOLDER --cell 7b-q4_0-8x512 --again
    bench/gpu_vs_peers.sh --table -o bench/results/DATE-MACHINE-peers.json

A cell takes less than 10 minutes and leaves CELL.json in --out; one that is there is not measured again unless --again says
so. Its figures are of one call: rounds of both programs in turns (llama.cpp: three, on the CPU five; FlexGen: one without warm-up), and for
each figure the round with the median ratio, ours and theirs of the same round. Nothing else may use the machine meanwhile.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CELL_SECONDS = 600
GIB = 1 << 30
# The part of a budget that llama.cpp takes beside weights and KV, for its compute buffers.
LLAMA_RESERVE = GIB
FLEXGEN_POLICY = "--percent 20 80 0 100 0 100"
FIGURES = {"prefill": "prompt", "decode": "decode", "generated": "generated"}
TARGET = 1.0  # the least ratio that every figure must reach: never slower


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    peer: str
    shape: str
    type: str
    sequences: int = 1
    prompt: int = 512
    steps: int = 64  # decode steps after the prompt
    gpu_gib: int = 0  # 0: all of the GPU's memory
    device: str = "cuda"
    rounds: int = 3
    ours: tuple = ()  # options of spillway bench
    theirs: tuple = ()  # options of the peer

    def describe(self):
        memory = f" in {self.gpu_gib} GiB of GPU memory" if self.gpu_gib else ""
        where = " on the CPU" if self.device == "cpu" else ""
        many = "1 sequence" if self.sequences == 1 else f"{self.sequences} sequences"
        kind = self.type if self.type == "4-bit" else self.type.upper()
        return f"{self.shape} {kind}{where}{memory}, {many}, prompt {self.prompt}"


def make_cells():
    cells = [Cell(f"7b-{kind}-{sequences}x{prompt}", "llama.cpp", "llama-2-7b", kind, sequences, prompt)
             for kind in ("f16", "q4_0", "q4_k_m") for sequences in (1, 8, 32) for prompt in (512, 2048)]  # fmt: skip
    cells += [Cell(f"13b-f16-{gib}gib", "llama.cpp", "llama-2-13b", "f16", steps=32, gpu_gib=gib) for gib in (8, 16)]
    offloaded = {"peer": "FlexGen", "shape": "opt-30b", "steps": 31, "gpu_gib": 16, "rounds": 1}
    cells.append(Cell("opt-30b-f16", type="f16", sequences=64, theirs=("--gpu-batch-size", "24", "--num-gpu-batches", "2",
                      "--cpu-cache-compute"), **offloaded))  # fmt: skip
    cells.append(Cell("opt-30b-4bit", type="4-bit", sequences=192, ours=("--compress-weights", "--compress-kv"), theirs=(
                      "--gpu-batch-size", "64", "--num-gpu-batches", "3", "--compress-weight", "--compress-cache"), **offloaded))  # fmt: skip
    cells += [Cell(f"cpu-7b-{kind}", "llama.cpp", "llama-2-7b", kind, steps=24, device="cpu", rounds=5) for kind in ("q4_0", "q4_k_m", "f16")]
    return {cell.name: cell for cell in cells}


CELLS = make_cells()


class CellFailed(Exception):
    """A cell failed: nothing of it is kept, and the others go on."""


class Machine:
    """Runs programs within a cell's time, and remembers what was run."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.threads = arguments.threads or len(os.sched_getaffinity(0))
        self.begin_cell()

    def begin_cell(self):
        self.deadline = time.monotonic() + self.arguments.cell_seconds
        self.commands = []

    def run(self, command, environment=None):
        command = [str(word) for word in command]
        shown = " ".join(os.path.basename(word) if os.path.isabs(word) else word for word in command)
        if shown not in self.commands:
            self.commands.append(shown)
        print(f"  {shown}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})},
                                  timeout=max(1.0, self.deadline - time.monotonic()))  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CellFailed(f"not done after {self.arguments.cell_seconds} s: {shown}") from error
        except OSError as error:
            raise CellFailed(str(error)) from error
        if done.returncode == -signal.SIGKILL:
            raise CellFailed(f"{shown} was killed, most likely for want of memory; models of other cells in a folder that is memory "
                             "(--models) take it too")  # fmt: skip
        if done.returncode != 0:
            raise CellFailed(f"{shown} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def run_json(self, command, environment=None):
        return json.loads(self.run(command, environment))


def describe_machine():
    parts = []
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        parts.append(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0])
    except (OSError, subprocess.CalledProcessError, IndexError):
        pass
    found = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    parts.append(f"{os.cpu_count()} cores, {found.group(1) if found else platform.machine()}")
    return "; ".join(parts)


class GpuMemoryWatch:
    """Watches the most GPU memory in use during the block, beyond that in use before, as the driver counts it (contexts included)."""

    def __enter__(self):
        self.before = self.most = self.used_mib()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def watch(self):
        while self.before is not None and not self.done.wait(0.5):
            self.most = max(self.most, self.used_mib() or 0)

    @staticmethod
    def used_mib():
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0])
        except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
            return None

    @property
    def mib(self):
        return None if self.before is None else self.most - self.before


# --- the programs: each gives tokens/s ------------------------------------------------------------------------------


def make_model(machine, cell):
    """Makes the GGUF file that both programs read."""
    arguments = machine.arguments
    folder = pathlib.Path(arguments.models)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.shape}.{cell.type}.gguf"
    if not path.exists():
        machine.run([pathlib.Path(arguments.bin) / "random_gguf", path, "--model", cell.shape, "--type", cell.type, "--quiet"])
    return path


def run_ours(machine, cell, model):
    memory = ["--gpu-memory", f"{cell.gpu_gib}GiB"] if cell.gpu_gib else []
    repeats = ["--repeat", machine.arguments.inner, "--warm-up", "1"] if cell.rounds > 1 else ["--repeat", "1"]
    host = ["--host-memory", f"{machine.arguments.host_gib}GiB"] if cell.peer == "FlexGen" else []
    report = machine.run_json([
        pathlib.Path(machine.arguments.bin) / "spillway", "bench", model, "--device", cell.device, *memory, *host, *cell.ours,
        "--prompt-len", cell.prompt, "--gen-len", cell.steps + 1, "--batch", cell.sequences, *repeats, "--threads", machine.threads,
        "--no-tuning", "--json"])  # fmt: skip
    kept = ("prefill_tokens_per_s", "decode_tokens_per_s", "generated_tokens_per_s", "prefill_s", "decode_s", "steps", "repeat", "plan")
    return {key: report.get(key) for key in kept}


def find_llama_program(arguments, name):
    for folder in ("", "bin", "build/bin"):
        path = pathlib.Path(arguments.llama_cpp, folder, name)
        if path.is_file() and os.access(path, os.X_OK):
            return path.resolve()
    raise CellFailed(f"no {name} in {arguments.llama_cpp}; build llama.cpp as its documentation says")


def layers_that_fit(machine, cell, model):
    """The value of -ngl: as many layers as fit with their share of the KV."""
    if cell.device == "cpu":
        return 0
    if not cell.gpu_gib:
        return 999
    found = machine.run_json([pathlib.Path(machine.arguments.bin) / "spillway", "inspect", model, "--tensors", "--json"])
    layers = found["model"]["layers"]
    weights = sum(t["bytes"] for t in found["tensors"] if t["name"].startswith("blk."))
    kv = found["model"]["kv_bytes_per_token"] * (cell.prompt + cell.steps) * cell.sequences
    return min(layers, int((cell.gpu_gib * GIB - LLAMA_RESERVE) // ((weights + kv) / layers)))


def run_llama(machine, cell, model):
    layers = layers_that_fit(machine, cell, model)
    common = ["-m", model, "-ngl", layers, "-t", machine.threads, *machine.arguments.llama_options.split(), *cell.theirs]
    # A build with CUDA would compute large batches on the GPU even with -ngl 0.
    environment = {"CUDA_VISIBLE_DEVICES": ""} if cell.device == "cpu" else {}
    with GpuMemoryWatch() as watch:
        run = run_llama_bench if cell.sequences == 1 else run_batched_bench
        result = run(machine, cell, common, environment)
    return {**result, "layers_on_gpu": layers, "gpu_mib_by_driver": watch.mib if cell.gpu_gib else None}


def run_llama_bench(machine, cell, common, environment):
    program = find_llama_program(machine.arguments, "llama-bench")

    # On a CPU loading takes longer than measuring, so one process measures both. It then decodes from the first token on, which is a
    # little faster than after a prompt.
    if cell.device == "cpu":
        results = machine.run_json([program, *common, "-p", cell.prompt, "-n", cell.steps, "-r", machine.arguments.inner, "-o", "json"],
                                   environment)  # fmt: skip
        middle = [sorted(result["samples_ts"])[(len(result["samples_ts"]) - 1) // 2] for result in results]
        return {"prefill_tokens_per_s": middle[0], "decode_tokens_per_s": middle[1], "repeat": int(machine.arguments.inner),
                "version": results[0]["build_commit"]}  # fmt: skip

    def bench(prompt, steps, depth):
        (result,) = machine.run_json([program, *common, "-p", prompt, "-n", steps, "-d", depth, "-r", machine.arguments.inner,
                                      "-o", "json"], environment)  # fmt: skip
        samples = sorted(result["samples_ts"])
        return samples[(len(samples) - 1) // 2], result["build_commit"]

    prefill, version = bench(cell.prompt, 0, 0)
    decode, _ = bench(0, cell.steps, cell.prompt)
    return {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode, "repeat": int(machine.arguments.inner), "version": version}


def run_batched_bench(machine, cell, common, environment):
    program = find_llama_program(machine.arguments, "llama-batched-bench")
    # Each sequence has its part of the context, a multiple of 256. One process measures twice: the first time is the warm-up.
    context = cell.sequences * -(-(cell.prompt + cell.steps) // 256) * 256
    text = machine.run([program, *common, "-c", context, "-npp", cell.prompt, "-ntg", cell.steps, "-npl",
                        f"{cell.sequences},{cell.sequences}", "--output-format", "jsonl"], environment)  # fmt: skip
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(lines) != 2:
        raise CellFailed(f"llama-batched-bench gave {len(lines)} results instead of 2")
    return {"prefill_tokens_per_s": lines[-1]["speed_pp"], "decode_tokens_per_s": lines[-1]["speed_tg"], "repeat": 1}


def run_flexgen(machine, cell, _):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        policy = (machine.arguments.flexgen_options or FLEXGEN_POLICY).split()
        limit = cell.gpu_gib if machine.arguments.flexgen_gib is None else machine.arguments.flexgen_gib
        machine.run([sys.executable, HERE / "run_flexgen.py", "--source", machine.arguments.flexgen, "--gpu-memory-gib", limit,
                     "--json", path, "--", "--model", f"facebook/{cell.shape}", "--prompt-len", cell.prompt,
                     "--gen-len", cell.steps + 1, *cell.theirs, *policy])  # fmt: skip
        return json.loads(pathlib.Path(path).read_text())


# --- a cell ---------------------------------------------------------------------------------------------------------


def median_round(rounds, figure):
    """The round with the median ratio; None if one of the programs does not report this figure."""
    pairs = [(r["ours"].get(f"{figure}_tokens_per_s"), r["theirs"].get(f"{figure}_tokens_per_s")) for r in rounds]
    if not all(ours and theirs for ours, theirs in pairs):
        return None
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][0] / pairs[i][1])
    at = order[(len(order) - 1) // 2]
    ours, theirs = pairs[at]
    return {"ours": ours, "theirs": theirs, "ratio": ours / theirs, "round": at + 1}


def judge(cell, rounds):
    """Judges against llama.cpp by prefill and decode, against FlexGen by the throughput that it is made for."""
    wanted = ("prefill", "decode", "generated") if cell.peer == "FlexGen" else ("prefill", "decode")
    figures = {figure: median_round(rounds, figure) for figure in wanted}
    figures = {figure: found for figure, found in figures.items() if found is not None}
    judged = ("generated",) if cell.peer == "FlexGen" else ("prefill", "decode")
    missed = [f"{FIGURES[f]}: {figures[f]['ratio']:.2f} times {cell.peer}, target {TARGET}" for f in judged
              if f in figures and figures[f]["ratio"] < TARGET]  # fmt: skip
    return {"figures": figures, "targets": {f: TARGET for f in judged}, "missed_targets": missed}


def measure_cell(machine, cell):
    machine.begin_cell()
    started = time.monotonic()
    peer = run_flexgen if cell.peer == "FlexGen" else run_llama
    model = f"dummy:{cell.shape}" if cell.peer == "FlexGen" else make_model(machine, cell)
    rounds = []
    for number in range(cell.rounds):
        result = {}
        # The program that runs first finds the machine as the other one left it, so they alternate.
        order = [("ours", run_ours), ("theirs", peer)]
        for who, run in order if number % 2 == 0 else reversed(order):
            result[who] = run(machine, cell, model)
        rounds.append(result)
    if machine.arguments.delete and cell.peer != "FlexGen":
        model.unlink()
    versions = {r["theirs"].pop("version", None) for r in rounds} - {None}
    return {
        "cell": cell.name, "date": datetime.date.today().isoformat(), "machine": describe_machine(),
        "command": f"bench/gpu_vs_peers.sh --cell {cell.name}", "peer": " ".join([cell.peer, *sorted(versions)]),
        "model": cell.shape, "type": cell.type, "sequences": cell.sequences, "prompt": cell.prompt,
        "steps": cell.steps, "repeats": cell.rounds, "commands": machine.commands, "seconds": round(time.monotonic() - started, 1),
        **judge(cell, rounds), "rounds": rounds,
    }  # fmt: skip


class Results:
    """The stored results of cells."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def path(self, name):
        return self.folder / f"{name}.json"

    def read(self, name):
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None

    def keep(self, result):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(result["cell"])
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(result, indent=2) + "\n")
        unfinished.replace(path)  # a killed process leaves no incomplete result

    def all(self):
        return [found for found in map(self.read, CELLS) if found is not None]


# --- the table ------------------------------------------------------------------------------------------------------


def shown(number):
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}" if number < 100 else f"{number:.0f}"


def table_row(result):
    cell = dataclasses.replace(CELLS[result["cell"]], shape=result["model"])
    columns = [cell.describe(), result["peer"]]
    for figure in FIGURES:
        found = result["figures"].get(figure)
        columns += [shown(found["ours"]), shown(found["theirs"]), f"{found['ratio']:.2f}"] if found else ["", "", ""]
    return f"| {' | '.join(columns)} |"


def make_table(results):
    heads = [part for title in FIGURES.values() for part in (f"{title}, tokens/s", "theirs", "ratio")]
    lines = [f"| {' | '.join(['what', 'peer', *heads])} |", "|---" * (2 + len(heads)) + "|"]
    lines += [table_row(result) for result in results]
    missed = [f"{result['cell']}: {text}" for result in results for text in result["missed_targets"]]
    absent = [name for name in CELLS if name not in {result["cell"] for result in results}]
    lines += ["", "Missed targets: " + ("; ".join(missed) if missed else "none") + "."]
    if absent:
        lines.append(f"Not measured: {', '.join(absent)}.")
    return "\n".join(lines)


def keep_all(results, path):
    missed = [f"{result['cell']}: {text}" for result in results for text in result["missed_targets"]]
    dates, machines = ({result[field] for result in results} for field in ("date", "machine"))
    kept = {"date": max(dates), "machine": " / ".join(sorted(machines)), "command": "bench/gpu_vs_peers.sh",
            "missed_targets": missed, "cells": results}  # fmt: skip
    pathlib.Path(path).write_text(json.dumps(kept, indent=2) + "\n")


# --- the command ----------------------------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the cells, and which have a result")
    parser.add_argument("--table", action="store_true", help="the kept results as markdown; measures nothing")
    parser.add_argument("--cell", action="append", choices=list(CELLS), metavar="NAME", help="only this one; may be given often")
    parser.add_argument("--again", action="store_true", help="also cells that have a result")
    parser.add_argument("--llama-cpp", metavar="FOLDER", help="a built llama.cpp: llama-bench and llama-batched-bench")
    parser.add_argument("--flexgen", metavar="FOLDER", help="FlexGen's source; needs PyTorch and transformers")
    parser.add_argument("--out", default="build/gpu-vs-peers", help="folder of the results (default: %(default)s)")
    parser.add_argument("-o", "--output", help="with --table: all kept results in one JSON file, for bench/results/")
    parser.add_argument("--bin", default="build/release/bin", help="folder of spillway and random_gguf (default: %(default)s)")
    parser.add_argument("--models", default="build/gpu-vs-peers/models", help="folder of the GGUF files that random_gguf writes, up to 48 GB")
    parser.add_argument("--delete", action="store_true", help="remove each of these files once its cell is measured")
    parser.add_argument("--inner", default="3", help="runs inside a round; their median counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="default: all")
    parser.add_argument("--host-gib", type=int, default=100, help="host memory beside FlexGen (default: %(default)s)")
    parser.add_argument("--cell-seconds", type=float, default=CELL_SECONDS, help="a cell that takes longer has failed (default: %(default)s)")
    # Larger chunks of a prompt than llama.cpp's default are faster on a large GPU.
    parser.add_argument("--llama-options", default="-fa on -ub 2048", help="of both llama.cpp programs (default: %(default)s)")
    parser.add_argument("--flexgen-options", help=f"its policy (default: {FLEXGEN_POLICY.replace('%', '%%')})")
    parser.add_argument("--flexgen-gib", type=float, help="GPU memory that it may take, 0: any (default: as much as ours)")
    parser.add_argument("--shape", help="another model than the cells', to try this script out")
    arguments = parser.parse_args()
    if arguments.output and not arguments.table:
        parser.error("-o goes with --table")
    for name in arguments.cell or []:
        if lacks_peer(arguments, CELLS[name]) and not (arguments.list or arguments.table):
            parser.error(f"{name} needs {lacks_peer(arguments, CELLS[name])}")
    return arguments


def lacks_peer(arguments, cell):
    """The option for a peer that the cell needs and that was not given."""
    if cell.peer == "FlexGen":
        return None if arguments.flexgen else "--flexgen FOLDER"
    return None if arguments.llama_cpp else "--llama-cpp FOLDER"


def measure_all(arguments, results):
    machine = Machine(arguments)
    failed = False
    for name in arguments.cell or CELLS:
        cell = dataclasses.replace(CELLS[name], shape=arguments.shape or CELLS[name].shape)
        if results.path(name).exists() and not arguments.again:
            print(f"{name}: there already", file=sys.stderr)
        elif lacks_peer(arguments, cell):
            print(f"{name}: left out without {lacks_peer(arguments, cell)}", file=sys.stderr)
        else:
            print(f"{name}: {cell.describe()}", file=sys.stderr, flush=True)
            try:
                results.keep(measure_cell(machine, cell))
            except CellFailed as error:
                failed = True
                print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def main():
    arguments = parse_arguments()
    results = Results(arguments.out)
    if arguments.list:
        for name, cell in CELLS.items():
            print(f"{name:<18} {'kept' if results.path(name).exists() else '-':<5} {cell.peer:<10} {cell.describe()}")
        return 0
    status = 0 if arguments.table else measure_all(arguments, results)
    kept = results.all()
    if not kept:
        print(f"no results in {arguments.out}", file=sys.stderr)
        return 1
    print(make_table(kept))
    if arguments.output:
        keep_all(kept, arguments.output)
    return status


if __name__ == "__main__":
    sys.exit(main())
