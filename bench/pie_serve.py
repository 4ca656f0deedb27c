# SPDX-License-Identifier: Apache-2.0
"""Measures pie_figures.py's cells on a real server: starts it with a cell's options, sends the cell's requests, and reads its metrics."""

import json
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from pie_workload import draw_requests, write_trace

LOOK_EVERY_S = 0.5
EXPANSION, TURNING = "spillway_kv_expansion", "spillway_kv_swapped_layers"
WAITING, RUNNING = "spillway_requests_waiting", "spillway_requests_running"
TOKENS, WAITED, STEPS = "spillway_generated_tokens_total", "spillway_kv_layer_swap_wait_seconds_total", "spillway_steps_total"
BYTES, PREEMPTIONS, CHANGES = "spillway_kv_layer_swap_bytes_total", "spillway_preemptions_total", "spillway_kv_layer_swap_changes_total"


def fetch(port, route):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=10) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def read_metrics(port):
    """The server's metrics without labels, by name."""
    found = {}
    for line in fetch(port, "/metrics").splitlines():
        name, _, value = line.partition(" ")
        if name and not name.startswith("#") and "{" not in name:
            found[name] = float(value)
    return found


def summarize(looks):
    """Summarizes [(seconds, metrics)] between the first and the last, with the keys of pie_sweep's results."""
    (begun_s, before), (ended_s, after) = looks[0], looks[-1]
    seconds = ended_s - begun_s

    def grew(name):
        return after.get(name, 0.0) - before.get(name, 0.0)

    def request_seconds(name):
        return sum((at - last) * metrics.get(name, 0.0) for (last, _), (at, metrics) in zip(looks, looks[1:]))

    tokens, steps = max(grew(TOKENS), 1.0), max(grew(STEPS), 1.0)
    series, every = [], max(1, round(2 / LOOK_EVERY_S))
    for (last_s, last), (at_s, now) in zip(looks[::every], looks[every::every]):
        series.append({"s": at_s - begun_s, "tokens_per_s": (now[TOKENS] - last[TOKENS]) / (at_s - last_s), "turning": now.get(TURNING, 0.0)})
    return {
        "turning": int(after.get(TURNING, 0)),
        "expansion": after.get(EXPANSION, 1.0),
        "seconds": seconds,
        "tokens_per_s": grew(TOKENS) / seconds,
        "step_ms": seconds / steps * 1e3,
        "waited_share": grew(WAITED) / seconds,
        "sequences": request_seconds(RUNNING) / seconds,
        "preemptions": grew(PREEMPTIONS),
        "changes": after.get(CHANGES, 0.0),
        "turn_bytes_per_s": grew(BYTES) / seconds,
        "queueing_ms_per_token": request_seconds(WAITING) / tokens * 1e3,
        "compute_ms_per_token": request_seconds(RUNNING) / tokens * 1e3,
        "series": series,
    }


class Servers:
    """Runs one server at a time, and starts another only if a cell needs other options. It ends with the `with` block."""

    def __init__(self, spillway, serve, port, ready_s, clients, requests, token_ids, scale, most_tokens, trace=None, on_demand=""):
        """`serve`: model and options, in which {budget} stands for the cell's; `on_demand`: more options for cells that load layers on demand.

        `clients` send `requests` for a cell without a rate.
        """
        self.spillway, self.serve, self.on_demand = spillway, serve, on_demand
        self.port = port or free_port()
        self.ready_s, self.clients, self.requests, self.token_ids = ready_s, clients, requests, token_ids
        self.scale, self.most_tokens, self.trace = scale, most_tokens, trace
        self.server, self.command = None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait()
        self.server = self.command = None

    def command_of(self, cell):
        words = shlex.split(self.serve.replace("{budget}", cell.budget)) + (shlex.split(self.on_demand) if cell.on_demand else [])
        return [self.spillway, "serve", *words, "--port", str(self.port), "--kv-expansion", cell.turning]

    def use(self, cell):
        command = self.command_of(cell)
        # With "auto" the number of swapped layers found for one load would be where the next one starts.
        if command == self.command and cell.turning != "auto" and self.server.poll() is None:
            return self.wait_for(lambda found: found[WAITING] + found[RUNNING] == 0, "idle")
        self.stop()
        self.server, self.command = subprocess.Popen(command), command
        return self.wait_for(lambda _: True, "ready")

    def wait_for(self, condition, name):
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                raise RuntimeError(f"the server ended with {self.server.returncode} before it was {name}: {shlex.join(self.command)}")
            try:
                fetch(self.port, "/health")
                if condition(read_metrics(self.port)):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError, KeyError):
                pass
            time.sleep(LOOK_EVERY_S)
        raise RuntimeError(f"the server was not {name} within {self.ready_s} s: {shlex.join(self.command)}")

    def measure(self, cell, number):
        self.use(cell)
        before = read_metrics(self.port)[TOKENS]
        whole_s = cell.warm_up_s + cell.seconds
        shapes = draw_requests(cell.workload, cell.rate, whole_s, number, self.scale, self.most_tokens, self.trace, self.requests)
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "requests.csv"
            write_trace(shapes, trace)
            arrivals = [] if cell.rate else ["--clients", str(self.clients)]
            command = [sys.executable, str(pathlib.Path(__file__).with_name("serve_bench.py")), "--url", f":{self.port}", "--trace", str(trace)]
            command += ["--requests", str(len(shapes)), "--token-ids", str(self.token_ids), "--warm-up", "0", *arrivals, "-o", str(trace) + ".json"]
            with open(trace.with_suffix(".log"), "wb") as log:
                load = subprocess.Popen(command, stdout=log, stderr=log)
                try:
                    looks = self.look(load, cell, log.name, before)
                finally:
                    # The load generator then writes the results so far.
                    load.send_signal(signal.SIGINT)
                    load.wait()
            told = pathlib.Path(str(trace) + ".json")
            errors = [of["errors"] for of in json.loads(told.read_text())["endpoints"].values()] if told.exists() else []
        return summarize(looks) | {"command": shlex.join(self.command), "errors": errors}

    def look(self, load, cell, log, before):
        """[(seconds, metrics)] of the measured time, which begins once the server has generated more than `before` tokens and has warmed up."""
        self.wait_for(lambda found: load.poll() is not None or found[TOKENS] > before, "at work")
        begun, looks = time.monotonic(), []
        while not looks or looks[-1][0] < cell.warm_up_s + cell.seconds:
            if load.poll() is not None:
                said = pathlib.Path(log).read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the load ended before the measurement did ({load.returncode}): {said}")
            time.sleep(LOOK_EVERY_S)
            now = time.monotonic() - begun
            if now >= cell.warm_up_s:
                looks.append((now, read_metrics(self.port)))
        return looks
