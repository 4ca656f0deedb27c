#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the gain of layer swapping (Pie, figures 6 to 10), and makes tables and pictures of it.

    bench/pie_figures.py emulated -o pie.json --trace ../shared/data/traces/AzureLLMInferenceTrace_conv.csv --rounds 3
    bench/pie_figures.py serve -o pie-h200.json --serve 'dummy:opt-30b --weights 100,0,0 --kv 100,0,0 --gpu-memory {budget} --ctx 2048' \\
        --budget 66GiB --kv-expansion 0,6,12,auto --rates 2,4,8 --token-ids 50000
    bench/pie_figures.py engine -o pie-h200.json --engine 'dummy:opt-30b --weights 100,0,0 --kv 100,0,0' --budget 3GB --kv-expansion 0,4,8,auto
    bench/pie_figures.py draw pie.json --markdown pie.md --svg pie

`emulated` runs pie_sweep, on an emulated accelerator with a clock of its own: its results are the same everywhere. `serve` starts servers
on this machine and reads their metrics; `engine` is the same without HTTP, and loads a model once for all measurements of a budget. Each
result is stored immediately; a command that was stopped, or had no more time (--at-most), is resumed when it is called again. {budget}
stands for each of --budgets in turn, where throughput is measured by memory.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

from engine_process import EngineProcess
from pie_cells import Cell, Results, emulated_cells, measure_all, medians, own_command, step_cells
from pie_draw import draw
from pie_serve import Servers
from pie_tables import FIGURES
from pie_workload import MEANS, draw_requests, write_plain

EMULATED_SCALE = 0.25  # of the data sets' lengths: there is little memory
EMULATED_CONTEXT = 1000


class Emulated:
    """Measures cells with pie_sweep."""

    def __init__(self, sweep, trace, quick):
        self.sweep, self.trace, self.quick = sweep, trace, quick

    def __call__(self, cell, number):
        warm_up_s, seconds = (cell.warm_up_s / self.quick, cell.seconds / self.quick)
        with tempfile.TemporaryDirectory() as folder:
            requests = pathlib.Path(folder) / "requests"
            write_plain(draw_requests(cell.workload, cell.rate, warm_up_s + seconds, number, EMULATED_SCALE, EMULATED_CONTEXT, self.trace), requests)
            command = [self.sweep, "--requests", requests, "--turning", cell.turning, "--blocks", cell.budget, "--seed", number + 1]
            command += ["--warm-up", warm_up_s, "--seconds", seconds, "--steps", cell.steps]
            switches = {"--saturate": not cell.rate, "--on-demand": cell.on_demand, "--disturbed": cell.disturbed, "--real-time": cell.real_time}
            command += [name for name, is_on in switches.items() if is_on]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(map(str, command))}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def run_emulated(options):
    workloads = [name for name in MEANS if (not options.workloads or name in options.workloads) and (MEANS[name] or options.trace)]
    results = Results(options.output, own_command())
    measure = Emulated(options.sweep, options.trace, options.quick)
    wanted = set(options.about or FIGURES) | ({"on-demand"} if not options.about or "expansion" in options.about else set())
    cells = [cell for cell in emulated_cells(workloads) if cell.about in wanted]
    if measure_all(cells, options.rounds, results, measure, options.at_most) and "step" in wanted:
        measure_all(step_cells(results.runs, workloads), options.rounds, results, measure, options.at_most)


def server_cells(options):
    time = {"warm_up_s": options.warm_up, "seconds": options.seconds}
    fixed, cells = options.kv_expansion, []
    for workload in options.workloads or ["sharegpt", "alpaca"]:
        cells += [Cell("expansion", workload, turning, options.budget, **time) for turning in fixed]
        if options.on_demand:
            cells += [Cell("on-demand", workload, of, options.budget, on_demand=True, **time) for of in fixed if of not in ("0", "auto")]
        cells += [Cell("budget", workload, of, budget, **time) for budget in options.budgets for of in fixed if of in ("0", "auto")]
        cells += [Cell("rate", workload, turning, options.budget, rate, **time) for turning in fixed for rate in options.rates]
        cells += [Cell("latency", workload, turning, options.budget, max(options.rates), **time) for turning in fixed if options.rates]
    return [cell for cell in cells if not options.about or cell.about in options.about]


def run_servers(options):
    results = Results(options.output, own_command())
    with Servers(options.spillway, options.serve, options.port, options.ready, options.clients, options.requests, options.token_ids, options.scale,
                 options.most_tokens, options.trace, options.on_demand) as servers:
        measure_all(server_cells(options), options.rounds, results, servers.measure, options.at_most)


class Engines:
    """Measures cells with engine_sweep, one process for each budget."""

    def __init__(self, options, process):
        self.options, self.process = options, process

    def __call__(self, cell, number):
        shapes = draw_requests(cell.workload, cell.rate, cell.warm_up_s + cell.seconds, number, self.options.scale, self.options.most_tokens,
                               self.options.trace)
        words = [*shlex.split(self.options.engine), "--kv-budget", cell.budget]
        with tempfile.TemporaryDirectory() as folder:
            requests = pathlib.Path(folder) / "requests"
            write_plain(shapes, requests)
            return self.process.measure(words, {"requests": str(requests), "saturates": not cell.rate, "turning": cell.turning, "seed": number + 1,
                                                "admission": self.options.admission, "lengths": self.options.lengths,
                                                "warm_up_s": cell.warm_up_s, "seconds": cell.seconds})


def run_engine(options):
    results = Results(options.output, own_command())
    with EngineProcess(options.sweep) as process:
        measure_all(server_cells(options), options.rounds, results, Engines(options, process), options.at_most)


def run_draw(options):
    runs = [run for path in options.results for run in Results(path, "").runs]
    measured = medians(runs)
    lines = []
    for about, figure in FIGURES.items():
        told, panels = figure(measured)
        if len(told) > 2:
            lines += told
        if panels and options.svg:
            path = pathlib.Path(f"{options.svg}-{about}.svg")
            path.write_text(draw(panels), encoding="utf-8")
    text = "\n".join(lines)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def words(text):
    return text.split(",")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    emulated = commands.add_parser("emulated", help="on an accelerator that the host plays")
    emulated.set_defaults(run=run_emulated)
    emulated.add_argument("--sweep", default="build/release/bin/pie_sweep")
    emulated.add_argument("--quick", type=float, default=1.0, metavar="N", help="an Nth of each measurement's time")
    serve = commands.add_parser("serve", help="with servers on this machine")
    serve.set_defaults(run=run_servers)
    serve.add_argument("--serve", required=True, help="model and options of `spillway serve`; {budget} is replaced")
    engine = commands.add_parser("engine", help="with an engine on this machine, without a server")
    engine.set_defaults(run=run_engine, on_demand="")
    engine.add_argument("--engine", required=True, help="model and options of engine_sweep, but its --kv-budget")
    engine.add_argument("--sweep", default="build/release/bin/engine_sweep")
    engine.add_argument("--admission", default="predicted", choices=["predicted", "room"], help="as --kv-admission of a server")
    engine.add_argument("--lengths", default="built-in", help="who predicts them: built-in, mean, oracle or off")
    for command in (serve, engine):
        command.add_argument("--budget", default="3GB" if command is engine else "", help="of memory, but in measurements by it")
        command.add_argument("--budgets", type=words, default=[], help="of memory, one after the other")
        command.add_argument("--kv-expansion", type=words, default=["0", "auto"], help="numbers of layers, and auto")
        command.add_argument("--rates", type=lambda text: [float(of) for of in words(text)], default=[], help="requests a second")
        command.add_argument("--scale", type=float, default=1.0, help="of the data sets' lengths")
        command.add_argument("--most-tokens", type=int, default=1900, help="of prompt and answer")
        command.add_argument("--warm-up", type=float, default=30.0, help="seconds before what counts")
        command.add_argument("--seconds", type=float, default=90.0, help="that count")
    serve.add_argument("--on-demand", default="", help="options by which layers come on demand: a --plan whose `overlap` is false")
    serve.add_argument("--clients", type=int, default=128, help="that ask at once, where no rate is given")
    serve.add_argument("--requests", type=int, default=4000, help="of which there must be enough for the time")
    serve.add_argument("--token-ids", type=int, default=32000, help="prompts are random ids below this")
    serve.add_argument("--spillway", default="build/release/bin/spillway")
    serve.add_argument("--port", type=int, default=0, help="default: one that is free")
    serve.add_argument("--ready", type=float, default=600.0, help="seconds to load in")
    for command in (emulated, serve, engine):
        command.add_argument("-o", "--output", required=True, help="JSON; what it has is not measured again")
        command.add_argument("--about", type=words, default=[], help=f"some of {', '.join(FIGURES)}")
        command.add_argument("--workloads", type=words, default=[], help=f"some of {', '.join(MEANS)}")
        command.add_argument("--trace", help="a CSV with Azure's columns, for the workload azure")
        command.add_argument("--rounds", type=int, default=1, help="each with requests of its own")
        command.add_argument("--at-most", type=float, default=0.0, help="seconds, after which no other measurement begins")
    drawing = commands.add_parser("draw", help="tables and pictures of results")
    drawing.set_defaults(run=run_draw)
    drawing.add_argument("results", nargs="+")
    drawing.add_argument("--markdown", help="write the tables here (default: print them)")
    drawing.add_argument("--svg", help="write pictures to this name, with -FIGURE.svg behind it")
    options = parser.parse_args(arguments)
    unknown = set(getattr(options, "about", [])) - set(FIGURES) | set(getattr(options, "workloads", [])) - set(MEANS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def main():
    options = parse_arguments()
    try:
        options.run(options)
    except (OSError, RuntimeError, ValueError) as problem:
        sys.exit(f"pie_figures.py: {problem}")


if __name__ == "__main__":
    main()
