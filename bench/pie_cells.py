# SPDX-License-Identifier: Apache-2.0
"""The measurements (cells) of pie_figures.py: the list of them, and a file that always has all results so far."""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import sys
import time

BLOCKS = 128  # KV blocks on the emulated accelerator, if a cell says nothing else
FIXED = (0, 12, 18, 22, 26, 30, 34, 38)
BUDGETS = (64, 96, 192, 256, 384)
RATES = {"sharegpt": (4.0, 8.0, 12.0, 16.0), "alpaca": (40.0, 80.0, 120.0, 160.0)}  # requests a second
STEPS = 400


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement, identified by its fields."""

    about: str  # the figure that it is for
    workload: str
    turning: str = "0"  # swapped layers, or "auto"
    budget: str = str(BLOCKS)  # KV memory: blocks of the emulated accelerator, or a real server's option
    rate: float = 0.0  # requests a second; 0: some always wait
    on_demand: bool = False  # layers are loaded only when they are needed
    disturbed: bool = False  # half of the link's bandwidth is gone in every other quarter of the time
    real_time: bool = False
    warm_up_s: float = 8.0
    seconds: float = 24.0
    steps: int = 0  # runs this many steps instead of a time

    def told(self):
        parts = [self.about, self.workload, f"{self.turning} layers", f"budget {self.budget}"]
        parts += [f"{self.rate:g} requests/s"] if self.rate else []
        return ", ".join(parts + [name for name in ("on_demand", "disturbed", "real_time") if getattr(self, name)])


def emulated_cells(workloads):
    """The cells that do not depend on the results of other cells."""
    cells = [Cell("expansion", of, str(turning)) for of in workloads for turning in (*FIXED, "auto")]
    cells += [Cell("on-demand", of, str(turning), on_demand=True) for of in ("sharegpt", "alpaca") for turning in (12, 22, 30, 38)]
    cells += [Cell("budget", of, turning, str(blocks)) for of in ("sharegpt", "alpaca") for blocks in BUDGETS for turning in ("0", "auto")]
    cells += [Cell("rate", of, turning, rate=rate) for of, rates in RATES.items() for rate in rates for turning in ("0", "26", "auto")]
    cells += [Cell("latency", "sharegpt", str(turning), rate=RATES["sharegpt"][2]) for turning in (*FIXED, "auto")]
    cells += [Cell("timeline", "sharegpt", turning, warm_up_s=0.0, seconds=20.0) for turning in ("0", "auto")]
    cells += [Cell("disturbed", "sharegpt", turning, disturbed=True, seconds=80.0) for turning in ("0", "auto")]
    return [cell for cell in cells if cell.workload in workloads]


def step_cells(runs, workloads):
    """The same batch with as many swapped layers as were found online, and with memory for all layers; on the emulated and the real clock."""
    cells = []
    for workload in workloads:
        about = {"about": "expansion", "workload": workload, "turning": "auto"}
        found = [run["result"] for run in runs if about.items() <= run["cell"].items() and run["result"]["turning"] > 0]
        if not found:
            continue
        result = found[0]
        for real_time in (False, True):
            of = {"workload": workload, "warm_up_s": 5.0, "steps": STEPS if not real_time else STEPS // 4, "real_time": real_time}
            cells.append(Cell("step", turning="0", budget=str(result["expanded_blocks"]), **of))
            cells.append(Cell("step", turning=str(result["turning"]), budget=str(result["blocks"]), **of))
    return cells


def own_command():
    """The command line as typed, without the folders of this machine."""
    words = [pathlib.PurePath(word).name if "/" in word and " " not in word else word for word in sys.argv[1:]]
    return shlex.join([f"bench/{pathlib.PurePath(sys.argv[0]).name}", *words])


class Results:
    """The results in a file that is rewritten after each measurement, so that a stopped run can be resumed."""

    def __init__(self, path, command):
        self.path = pathlib.Path(path)
        self.content = {"date": f"{datetime.date.today()}", "machine": f"{platform.machine()}, {os.cpu_count()} cores", "command": command, "runs": []}
        if self.path.exists():
            self.content = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(self.content, dict) or "runs" not in self.content:
                raise ValueError(f"{path}: not a file of measurements; name another one")
        self.known = {self._key(run["cell"], run["round"]) for run in self.runs}

    @staticmethod
    def _key(cell, number):
        return json.dumps([cell, number], sort_keys=True)

    @property
    def runs(self):
        return self.content["runs"]

    def has(self, cell, number):
        return self._key(dataclasses.asdict(cell), number) in self.known

    def add(self, cell, number, result):
        of = dataclasses.asdict(cell)
        self.runs.append({"cell": of, "round": number, "result": result})
        self.known.add(self._key(of, number))
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def in_turns(cells, rounds):
    """[(cell, round)], with every other round in reverse order, so that drift affects all cells alike."""
    return [(cell, number) for number in range(rounds) for cell in (cells if number % 2 == 0 else cells[::-1])]


def measure_all(cells, rounds, results, measure, at_most_s, tell=print):
    """Measures the cells that have no result; returns False if time ran out first. At least one is measured."""
    begun = time.monotonic()
    left = [(cell, number) for cell, number in in_turns(cells, rounds) if not results.has(cell, number)]
    for at, (cell, number) in enumerate(left):
        if at > 0 and at_most_s and time.monotonic() - begun > at_most_s:
            tell(f"{len(left) - at} measurements are left: the same command goes on")
            return False
        result = measure(cell, number)
        results.add(cell, number, result)
        tell(f"{at + 1} of {len(left)}: {cell.told()}: {result['tokens_per_s']:.0f} tokens/s")
    return True


def medians(runs):
    """[(cell, result)] with each figure's median over the rounds, and how far these are apart."""
    by_cell = {}
    for run in runs:
        by_cell.setdefault(json.dumps(run["cell"], sort_keys=True), []).append(run["result"])
    found = []
    for key, results in by_cell.items():
        of = {}
        for name, value in results[0].items():
            values = [result[name] for result in results]
            of[name] = statistics.median(values) if isinstance(value, (int, float)) else value
        rates = [result["tokens_per_s"] for result in results]
        of["rounds"] = len(results)
        of["spread"] = (max(rates) - min(rates)) / of["tokens_per_s"] if of["tokens_per_s"] else 0.0
        of["all"] = results
        found.append((Cell(**json.loads(key)), of))
    return found
