#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the figures of FlexGen's paper with the estimates of `spillway plan` for the same policies on the same machines.

    bench/paper_tables.py -o bench/results/NAME.json
    bench/paper_tables.py --fit t4 --write      # fits bench/machines/flexgen-t4.json again
    bench/paper_tables.py --no-search           # without our own plans: seconds instead of minutes

Policies are priced as FlexGen's rounding placed them, not as they are printed: weights are whole matrices, of a layer's
attention and of its MLP each by the midpoint of its bytes, and the KV of a GPU batch is whole sequences.

Ends with 1 where the bar is missed: of tables 12, 14 to 18 and 24, four cells in five within 30%, none beyond 50% but
those that KNOWN names with what seems to be the reason; table 21's order wherever two policies are more than 10% apart; our own plan never
below the published one, and by latency not 30% behind the frontiers of tables 19 and 20.
"""

import argparse
import concurrent.futures
import copy
import datetime
import itertools
import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass

MACHINES = pathlib.Path(__file__).parent / "machines"
WITHIN, BEYOND = 0.3, 0.5


@dataclass(frozen=True)
class Cell:
    """A published figure. `policy`: percent of weights on GPU and CPU, then of KV, then of activations; the rest is on disk."""

    table: int
    model: str
    prompt: int
    generate: int
    gpu_batch: int
    batches: int
    policy: tuple
    tokens_per_s: float
    compressed: bool = False
    machine: str = "t4"
    overlap: bool = True
    cpu_attention: bool = True
    note: str = ""

    def sequences(self):
        return self.gpu_batch * self.batches

    def latency(self):
        return self.sequences() * self.generate / self.tokens_per_s

    def name(self):
        compressed = " (c)" if self.compressed else ""
        return f"{self.table}: {self.model}{compressed} {self.prompt}+{self.generate} {self.gpu_batch}x{self.batches} {self.note}".strip()


def of_table(number, prompt, generate, plain, compressed, machine="t4"):
    """The rows FlexGen and FlexGen (c) of a table: 6.7B, 30B, 175B each; None where a cell is left out."""
    for row, is_compressed in ((plain, False), (compressed, True)):
        for model, cell in zip(("opt-6.7b", "opt-30b", "opt-175b"), row, strict=True):
            if cell:
                speed, gpu_batch, batches, *policy = cell
                yield Cell(number, model, prompt, generate, gpu_batch, batches, tuple(policy), speed, is_compressed, machine)


GPU = (100, 0, 100, 0, 100, 0)
CELLS = [
    *of_table(
        14, 256, 32,
        [(53.29, 4, 1, *GPU), (16.01, 160, 2, 10, 90, 0, 100, 0, 100), (1.36, 64, 8, 0, 50, 0, 0, 0, 100)],
        [(56.72, 128, 1, *GPU), (16.86, 128, 8, 0, 100, 0, 100, 0, 100), (2.26, 96, 3, 0, 100, 0, 100, 0, 100)],
    ),
    *of_table(
        15, 512, 32,
        [(25.26, 2, 1, *GPU), (7.32, 48, 3, 20, 80, 0, 100, 0, 100), (0.69, 32, 8, 0, 50, 0, 0, 0, 100)],
        [(29.12, 72, 1, *GPU), (8.70, 16, 20, 20, 80, 0, 100, 100, 0), (1.12, 48, 3, 0, 100, 0, 100, 0, 100)],
    ),
    *of_table(
        16, 1024, 32,
        [(13.72, 1, 1, *GPU), (3.50, 20, 4, 4, 96, 0, 100, 0, 100), (0.35, 12, 12, 0, 50, 0, 0, 0, 100)],
        [(13.18, 28, 1, *GPU), (3.98, 20, 12, 0, 100, 0, 100, 0, 100), (0.42, 12, 4, 0, 100, 0, 100, 0, 100)],
    ),
    *of_table(
        17, 128, 128,
        [(106.404, 7, 1, *GPU), (24.634, 32, 10, 25, 75, 0, 100, 100, 0), (2.409, 64, 8, 0, 50, 0, 0, 0, 100)],
        [(92.568, 196, 1, *GPU), (39.141, 128, 8, 25, 75, 0, 100, 0, 100), (4.264, 80, 3, 0, 100, 0, 100, 100, 0)],
    ),
    # The 30B cell's 512x8 would need 2.9 TB of KV in 208 GB of host memory: a misprint.
    *of_table(
        18, 512, 8,
        [(16.425, 2, 1, *GPU), None, (0.451, 32, 8, 0, 50, 0, 0, 0, 100)],
        [(14.244, 76, 1, *GPU), (4.019, 16, 36, 25, 75, 0, 100, 0, 100), (0.559, 48, 3, 0, 100, 0, 100, 0, 100)],
    ),
    Cell(24, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.49, machine="t4-uncached", note="1.6 GB/s"),
    Cell(24, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.30, machine="t4-slow", note="0.5 GB/s, page cache"),
    Cell(24, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.292, machine="t4-slow-uncached", note="0.5 GB/s"),
    *of_table(
        12, 512, 32,
        [(233.756, 28, 1, *GPU), (5.726, 4, 15, 25, 75, 40, 60, 100, 0), (0.384, 64, 4, 0, 25, 0, 0, 100, 0)],
        [(120.178, 144, 1, *GPU), (16.547, 96, 2, 25, 75, 0, 100, 100, 0), (1.114, 24, 1, 0, 100, 0, 100, 100, 0)],
        "rtx3090",
    ),
]  # fmt: skip

# Cells that are further off than the bar, with what seems to be the reason: by the paper's own figures, not measured.
KNOWN = {
    "24: opt-175b 512+32 32x8 0.5 GB/s": "812 GB a step take 1,600 s of such a disk; the published step is half of that, so memory must have helped",
    "17: opt-30b (c) 128+128 128x8": "one rate for pageable memory: 30B's 4-bit KV came at 3 to 4 GB/s, 175B's at 1 to 2",
    "4: opt-175b 512+32 2x1 DeepSpeed's policy": "printed with one digit; table 22 has 6,072 s for it, without page cache",
    **{f"19: opt-175b (c) 512+32 {n}x1": "the same rate: 98 GB of 4-bit weights came at 5 GB/s where no KV moves" for n in (1, 4, 8)},
}

# Table 21 and, as latency, 22: without page cache. (gpu batch, batches, policy, seconds of 30B, seconds of 175B)
# 22 prints 559 s for the first, where 21's 7.32 tokens/s make 629.
POLICIES = [
    (48, 3, (20, 80, 0, 100, 0, 100), 629, None),
    (48, 3, (0, 100, 0, 100, 0, 100), 635, None),
    (48, 1, (20, 80, 0, 100, 0, 100), 284, None),
    (32, 8, (0, 50, 0, 0, 0, 100), 4930, 16611),
    (32, 8, (0, 0, 0, 0, 0, 100), 5287, 18704),
    (32, 1, (0, 50, 0, 0, 0, 100), 1164, 4476),
    (1, 1, (20, 80, 100, 0, 100, 0), 160, None),
    (1, 1, (0, 50, 100, 0, 100, 0), 737, 3107),
    (8, 1, (0, 100, 100, 0, 100, 0), 163, None),
    (2, 1, (0, 0, 100, 0, 100, 0), 1215, 6072),
]


def policy_cells():
    for gpu_batch, batches, policy, *seconds in POLICIES:
        for model, latency in zip(("opt-30b", "opt-175b"), seconds, strict=True):
            if latency:
                speed = gpu_batch * batches * 32 / latency
                yield Cell(22, model, 512, 32, gpu_batch, batches, policy, speed, machine="t4-uncached", note=str(policy))


# Table 4, by the policies of table 23.
ABLATION = [
    Cell(4, "opt-30b", 512, 32, 48, 3, (20, 80, 0, 100, 0, 100), 7.32, note="all"),
    Cell(4, "opt-30b", 512, 32, 48, 3, (0, 100, 0, 100, 0, 100), 7.26, note="no policy search"),
    Cell(4, "opt-30b", 512, 32, 48, 3, (20, 80, 0, 100, 0, 100), 5.86, overlap=False, note="no overlap"),
    Cell(4, "opt-30b", 512, 32, 48, 3, (20, 80, 0, 100, 0, 100), 4.03, cpu_attention=False, note="no CPU"),
    Cell(4, "opt-30b", 512, 32, 8, 1, (0, 100, 100, 0, 100, 0), 1.57, note="DeepSpeed's policy"),
    Cell(4, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.69, note="all"),
    Cell(4, "opt-175b", 512, 32, 32, 1, (0, 50, 0, 0, 0, 100), 0.27, note="no policy search"),
    Cell(4, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.59, overlap=False, note="no overlap"),
    Cell(4, "opt-175b", 512, 32, 32, 8, (0, 50, 0, 0, 0, 100), 0.62, cpu_attention=False, note="no CPU"),
    Cell(4, "opt-175b", 512, 32, 2, 1, (0, 0, 100, 0, 100, 0), 0.01, note="DeepSpeed's policy"),
]

# Tables 19 and 20: sequences, seconds. Their policies are not published: our own plans are held against them.
FRONTIERS = [
    ("opt-175b", False, [(2, 2555), (32, 4028), (64, 4864), (128, 7159), (256, 11916)]),
    ("opt-175b", True, [(1, 612), (4, 647), (8, 693), (48, 1973), (96, 2813), (144, 4072)]),
    ("opt-30b", False, [(1, 159), (2, 172), (4, 174), (8, 183), (16, 190), (32, 253), (64, 359), (144, 629)]),
    ("opt-30b", True, [(1, 153), (2, 154), (4, 155), (8, 162), (16, 178), (40, 277), (80, 381), (160, 644), (240, 904), (320, 1177)]),
]  # fmt: skip

HIDDEN = {"opt-6.7b": 4096, "opt-30b": 7168, "opt-175b": 12288}


def weights_placed(model, on_gpu, on_cpu):
    """Percent of the layers' matrices on GPU, CPU and disk: from disk over CPU to GPU, each matrix by its midpoint."""
    h = HIDDEN[model]
    attention = [h * h, h] * 4 + [h, h]  # q, k, v, output, each with its bias; the norm
    mlp = [4 * h * h, 4 * h, 4 * h * h, h, h, h]
    on_disk = 100 - on_gpu - on_cpu
    placed = [0, 0, 0]
    for sizes in (attention, mlp):
        end = 0
        for size in sizes:
            end += size
            middle = 100 * (end - size / 2) / sum(sizes)
            if size >= h * h:
                placed[2 if middle < on_disk else 1 if middle < on_disk + on_cpu else 0] += size
    return [100 * bytes_ / sum(placed) for bytes_ in placed]


def kv_placed(gpu_batch, on_gpu, on_cpu):
    """Percent of a GPU batch's sequences: those on GPU and CPU are rounded down, the others are on disk."""
    gpu, cpu = gpu_batch * on_gpu // 100, gpu_batch * on_cpu // 100
    return [100 * n / gpu_batch for n in (gpu, cpu, gpu_batch - gpu - cpu)]


def plan_of(cell):
    wg, wc, cg, cc, hg, hc = cell.policy
    percent = lambda of: dict(zip(("gpu", "host", "disk"), of, strict=True))  # noqa: E731
    return {
        "weights": percent(weights_placed(cell.model, wg, wc)),
        "kv": percent(kv_placed(cell.gpu_batch, cg, cc)),
        "activations": percent([hg, hc, 100 - hg - hc]),
        "micro_batch": cell.gpu_batch,
        "micro_batches": cell.batches,
        # FlexGen expands 4-bit KV on the GPU; attention to other KV runs on the CPU.
        "attention": "cpu" if cell.cpu_attention and not cell.compressed else "gpu",
        "overlap": cell.overlap,
    }


def with_disk(machine, read, write):
    other = copy.deepcopy(machine)
    other["disk"].update(read_gb_per_s=read, write_gb_per_s=write)
    return other


def machines_of(t4, rtx3090):
    """The machines of table 24: disks as `dd` measured them, or, with the page cache, faster by the factor of the fitted one."""
    cached = t4["disk"]["read_gb_per_s"] / 1.6
    return {
        "t4": t4,
        "t4-uncached": with_disk(t4, 1.6, 1.3),
        "t4-slow": with_disk(t4, 0.5 * cached, 0.5),
        "t4-slow-uncached": with_disk(t4, 0.5, 0.5),
        "rtx3090": rtx3090,
    }


class Planner:
    def __init__(self, program, machines, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.numbers = itertools.count()
        self.files = {}
        self.use(machines)

    def write(self, name, document):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document))
        return str(path)

    def use(self, machines):
        for name, machine in machines.items():
            self.files[name] = (self.write(f"machine-{name}", machine), machine)

    def run(self, cell, *options, machine=None):
        file, machine = self.files[machine or cell.machine]
        command = [self.program, "plan", f"dummy:{cell.model}", "--hardware", file, "--json"]
        command += ["--host-memory", f"{machine['host']['memory_gib']}GiB"]
        command += ["--disk-memory", f"{machine['disk']['free_gib']}GiB"]
        command += ["--prompt-len", str(cell.prompt), "--gen-len", str(cell.generate), "--requests", str(cell.sequences())]
        if cell.compressed:
            command += ["--compress-weights", "--kv-type", "int4"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{shlex.join([*command, *options])}: {done.stderr}")
        return json.loads(done.stdout)

    def published(self, cell):
        """Our estimate of a published policy: a prompt's tokens pass a layer one GPU batch at a time, as in FlexGen."""
        plan = self.write(f"plan-{next(self.numbers)}", plan_of(cell))
        return self.run(cell, "--plan", plan, "--chunk", str(cell.gpu_batch * cell.prompt))

    def ours(self, cell, at_least=0):
        """Our own plan, with the chunks of prompts that suit us; if it is slower than `at_least`, the better of it and one with FlexGen's chunks."""
        answer = self.run(cell, "--no-advice")
        if speed_of(answer) >= at_least:
            return answer
        return max(answer, self.run(cell, "--no-advice", "--chunk", str(cell.gpu_batch * cell.prompt)), key=speed_of)


def speed_of(answer):
    return answer["predicted"]["generated_tokens_per_s"]


# The rates that are fitted, and the cells for each. The disk's rate on 0.69 is that with the page cache. The other rates of the RTX 3090
# follow from the T4's by the two GPUs' data sheets.
FITS = {
    "t4": (
        lambda cell: cell.table == 15,
        [("gpu", "read_gb_per_s"), ("gpu", "attention_gb_per_s", "int4"), ("gpu", "dequantize_gb_per_s"),
         ("host", "attention_gb_per_s", "f16"), ("links", "pageable_to_gpu_gb_per_s"), ("disk", "read_gb_per_s")],
    ),
    "rtx3090": (
        lambda cell: cell.table == 12 and (cell.model, cell.compressed) in {("opt-175b", False), ("opt-30b", True)},
        [("links", "pageable_to_gpu_gb_per_s"), ("disk", "read_gb_per_s")],
    ),
}  # fmt: skip


def is_fitted(cell):
    return any(chosen(cell) for chosen, _ in FITS.values())


def fit(planner, pool, name, machine):
    """Fits the rates one after the other, moving each a little up or down as long as that brings the cells nearer."""
    chosen, parameters = FITS[name]
    cells = [cell for cell in CELLS if chosen(cell)]

    def badness():
        planner.use({name: machine})
        speeds = pool.map(lambda cell: speed_of(planner.published(cell)), cells)
        return sum(math.log(speed / cell.tokens_per_s) ** 2 for speed, cell in zip(speeds, cells, strict=True))

    def scale(path, factor):
        *groups, last = path
        group = machine
        for key in groups:
            group = group[key]
        group[last] = float(f"{group[last] * factor:.3g}")

    best = badness()
    for step in (1.2, 1.06, 1.02):
        better = True
        while better:
            better = False
            for path, factor in itertools.product(parameters, (step, 1 / step)):
                before = copy.deepcopy(machine)
                scale(path, factor)
                found = badness()
                if found < best * 0.999:
                    best, better = found, True
                else:
                    machine.clear()
                    machine.update(before)
        print(f"{name}: {math.sqrt(best / len(cells)):.1%} off, {machine}", flush=True)
    return machine


def report_cells(title, cells, answers):
    print(f"\n{title}\n{'cell':54}{'published':>11}{'predicted':>11}{'error':>8}")
    for cell, answer in zip(cells, answers, strict=True):
        predicted = speed_of(answer)
        error = predicted / cell.tokens_per_s - 1
        small = [warning for warning in answer["warnings"] if "does not fit" in warning]
        mark = " *" if abs(error) > WITHIN else ""
        print(
            f"{cell.name()[:53]:54}{cell.tokens_per_s:11.4g}{predicted:11.4g}{error:8.0%}{mark}"
            f"{' (does not fit)' if small else ''}"
        )
        if mark:
            print(f"    {KNOWN.get(cell.name(), 'for no known reason')}")
        yield {
            "table": cell.table,
            "cell": cell.name(),
            "published_tokens_per_s": cell.tokens_per_s,
            "predicted_tokens_per_s": predicted,
            "error": error,
            "bottleneck": answer["bottleneck"],
            "does_not_fit": small,
        }


def shares(rows):
    within = sum(abs(row["error"]) <= WITHIN for row in rows) / len(rows)
    beyond = [row["cell"] for row in rows if abs(row["error"]) > BEYOND]
    return within, beyond


def order_of_policies(cells, answers):
    """(pairs of policies for one model whose published figures are more than 10% apart, those of them that we estimate in the reverse order)"""
    pairs, wrong = 0, []
    of = list(zip(cells, map(speed_of, answers), strict=True))
    for (a, speed_a), (b, speed_b) in itertools.combinations(of, 2):
        ratio = a.tokens_per_s / b.tokens_per_s
        if a.model != b.model or 1 / 1.1 <= ratio <= 1.1:
            continue
        pairs += 1
        if (ratio > 1) != (speed_a > speed_b):
            wrong.append(f"{a.model}: {a.note} {a.gpu_batch}x{a.batches} and {b.note} {b.gpu_batch}x{b.batches}")
    return pairs, wrong


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--fit", choices=FITS, help="fits that machine's rates, starting from its file")
    parser.add_argument("--write", action="store_true", help="with --fit: into its file")
    parser.add_argument("--no-search", action="store_true", help="only what was published")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", type=pathlib.Path)
    return parser.parse_args()


def compare(planner, pool, search):
    missed = []
    rows = list(report_cells("Tables 12, 14 to 18, 24", CELLS, pool.map(planner.published, CELLS)))
    within, beyond = shares(rows)
    tests = [row for cell, row in zip(CELLS, rows, strict=True) if not is_fitted(cell)]
    print(
        f"{within:.0%} of {len(rows)} cells within {WITHIN:.0%}, {shares(tests)[0]:.1%} of the {len(tests)} that nothing was fitted on; "
        f"beyond {BEYOND:.0%}: {', '.join(beyond) or 'none'}"
    )
    if within < 0.8:
        missed.append(f"only {within:.0%} of the cells are within {WITHIN:.0%}")
    missed += [f"{cell} is beyond {BEYOND:.0%}" for cell in beyond if cell not in KNOWN]

    ablation = list(report_cells("Table 4", ABLATION, pool.map(planner.published, ABLATION)))
    policies = list(policy_cells())
    answers = list(pool.map(planner.published, policies))
    latency = list(report_cells("Tables 21, 22", policies, answers))
    pairs, wrong = order_of_policies(policies, answers)
    print(f"order: {pairs - len(wrong)} of {pairs} pairs of policies; the other way round: {', '.join(wrong) or 'none'}")
    missed += [f"table 21's order: {pair}" for pair in wrong]
    result = {"cells": rows, "within_30_percent": within, "of_tests_within_30_percent": shares(tests)[0], "beyond_50_percent": beyond, "table_4": ablation,
              "tables_21_22": latency, "order_pairs": pairs, "order_wrong": wrong}  # fmt: skip
    if search:
        result["our_plans"] = compare_plans(planner, pool, rows, missed)
        result["frontiers"] = compare_frontiers(planner, pool, missed)
    result["missed"] = missed
    return result


def compare_plans(planner, pool, rows, missed):
    print(f"\nOur plan beside the published policy, both as predicted\n{'cell':54}{'published':>11}{'ours':>11}{'ratio':>8}")
    plans = []
    speeds = [row["predicted_tokens_per_s"] for row in rows]
    for cell, row, answer in zip(CELLS, rows, pool.map(planner.ours, CELLS, speeds), strict=True):
        ours, theirs = speed_of(answer), row["predicted_tokens_per_s"]
        below = ours < theirs * 0.995
        fits = not row["does_not_fit"]
        print(
            f"{cell.name()[:53]:54}{theirs:11.4g}{ours:11.4g}{ours / theirs:8.2f}{' below' if below else ''}"
            f"{'' if fits else ' (theirs does not fit)'}"
        )
        if below and fits:
            missed.append(f"our plan is below the published one: {cell.name()}")
        plans.append(
            {
                "cell": cell.name(),
                "policy_tokens_per_s": theirs,
                "our_tokens_per_s": ours,
                "plan": answer["plan"],
                "sequences": answer["sequences"],
            }
        )
    return plans


def compare_frontiers(planner, pool, missed):
    print(f"\nTables 19, 20: our plan for as many sequences\n{'':44}{'published':>10}{'ours':>11}{'of it':>8}")
    points = []
    for model, compressed, published in FRONTIERS:
        table = 19 if model == "opt-175b" else 20
        cells = [Cell(table, model, 512, 32, n, 1, GPU, n * 32 / seconds, compressed) for n, seconds in published]
        for cell, answer in zip(cells, pool.map(planner.ours, cells), strict=True):
            seconds = cell.sequences() * cell.generate / speed_of(answer)
            late = seconds > cell.latency() * (1 + WITHIN)
            print(
                f"{cell.name():44}{cell.latency():8.0f} s{seconds:9.0f} s{seconds / cell.latency():8.2f}{' late' if late else ''}"
            )
            if late:
                print(f"    {KNOWN.get(cell.name(), 'for no known reason')}")
            if late and cell.name() not in KNOWN:
                missed.append(f"the frontier: {cell.name()}")
            points.append({"cell": cell.name(), "published_s": cell.latency(), "our_s": seconds})
    return points


def main():
    options = parse_arguments()
    read = lambda name: json.loads((MACHINES / f"flexgen-{name}.json").read_text())  # noqa: E731
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        planner = Planner(options.spillway, machines_of(read("t4"), read("rtx3090")), folder)
        if options.fit:
            machine = fit(planner, pool, options.fit, read(options.fit))
            if options.write:
                (MACHINES / f"flexgen-{options.fit}.json").write_text(json.dumps(machine, indent=2) + "\n")
            return 0
        result = compare(planner, pool, not options.no_search)
    for miss in result["missed"]:
        print("missed:", miss)
    if options.output:
        about = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores (predictions do not depend on it)",
            "command": shlex.join(["bench/paper_tables.py", *sys.argv[1:]]),
        }
        options.output.write_text(json.dumps({**about, **result}, indent=1) + "\n")
    return 1 if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
