#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server under load, with layers' KV that takes turns and without: one after the other, the same requests for each.

    bench/pie_serve.py --kv-expansion 0,auto,6,12 --serve 'dummy:opt-30b --weights 100,0,0 --kv 100,0,0 --gpu-memory 66GiB --ctx 2048' \\
        --load '--clients 64 --requests 256 --token-ids 50000 --prompt-len 20-300 --gen-len 16-600' -o pie.json

`--kv-expansion 0` is preemption at the same memory. --gpu-memory says how much of it KV has: what is left beside the weights, in
whole contexts. The load is serve_bench.py's; its JSON of each server is kept beside what /metrics says of turns.
"""

import argparse
import json
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

METRICS = ("spillway_kv_expansion", "spillway_kv_layers_turning", "spillway_kv_turn_bytes_total", "spillway_kv_turn_wait_seconds_total",
           "spillway_kv_turn_changes_total", "spillway_preemptions_total", "spillway_steps_total", "spillway_generated_tokens_total")


def fetch(port, route):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=10) as answer:
        return answer.read().decode()


def wait_until_ready(server, port, seconds):
    """Until /health says so; the server's end is an error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode} before it was ready")
        try:
            fetch(port, "/health")
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    sys.exit(f"the server was not ready within {seconds} s")


def read_metrics(port):
    found = {}
    for line in fetch(port, "/metrics").splitlines():
        name, _, value = line.partition(" ")
        if name in METRICS:
            found[name] = float(value)
    return found


def measure(options, expansion):
    command = [options.spillway, "serve", *shlex.split(options.serve), "--port", str(options.port), "--kv-expansion", expansion]
    server = subprocess.Popen(command)
    try:
        wait_until_ready(server, options.port, options.ready)
        with tempfile.TemporaryDirectory() as folder:
            result = pathlib.Path(folder) / "load.json"
            bench = pathlib.Path(__file__).with_name("serve_bench.py")
            begun = time.monotonic()
            subprocess.run(
                [sys.executable, str(bench), "--url", f":{options.port}", "--name", expansion, *shlex.split(options.load), "-o", str(result)], check=True
            )
            seconds = time.monotonic() - begun
            load = json.loads(result.read_text(encoding="utf-8"))
        return {"kv_expansion": expansion, "command": shlex.join(command), "seconds": seconds, "metrics": read_metrics(options.port), "load": load}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-expansion", default="0,auto", help="one server for each, in this order")
    parser.add_argument("--serve", required=True, help="model and options of `spillway serve`")
    parser.add_argument("--load", required=True, help="options of serve_bench.py")
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--port", type=int, default=8093)
    parser.add_argument("--ready", type=float, default=600.0, help="seconds to load in")
    parser.add_argument("-o", "--output", help="all of it as JSON")
    options = parser.parse_args()
    runs = [measure(options, expansion) for expansion in options.kv_expansion.split(",")]
    print("| --kv-expansion | at the end | generated tokens/s | by the first | preemptions | waits |")
    print("|---|---|---|---|---|---|")
    rates = [run["metrics"]["spillway_generated_tokens_total"] / run["seconds"] for run in runs]
    for run, rate in zip(runs, rates):
        of = run["metrics"]
        print(
            f"| {run['kv_expansion']} | {of['spillway_kv_expansion']:.2f} | {rate:.1f} | {rate / rates[0]:.2f} "
            f"| {of['spillway_preemptions_total']:.0f} | {of['spillway_kv_turn_wait_seconds_total'] / run['seconds']:.1%} |"
        )
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(runs, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
