#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of HTTP: decoding by a server's streams beside `spillway bench` with as many sequences, in alternating rounds.

    bench/serve_vs_bench.py dummy:opt-125m --server-cores 0 --cores 1
    bench/serve_vs_bench.py dummy:llama-2-7b --cores 15 --server-cores 0-14 -o bench/results/NAME.json
    bench/serve_vs_bench.py dummy:opt-30b --rounds 1 -- --gpu-memory 16GiB --host-memory 100GiB

Both run the same model with the same options (behind --) on the same cores, one after the other. The server's rate is taken while all
streams decode (serve_bench.py --steady), from a load generator on cores of its own. Prompts are random ids, so any model will do.

On a machine whose speed changes from minute to minute, --beside CORES runs both at the same time, bench on CORES, and exchanges the
cores after every round; the load generator is then on the server's cores, and what is compared is two rounds' geometric mean.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

from keep_result import keep
from serve_bench import parse_cores, processor_name

HERE = pathlib.Path(__file__).resolve().parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bin", default=str(HERE.parent / "build/release/bin/spillway"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=30000, help="prompt ids are below it")
    parser.add_argument("--cores", help="of the load generator")
    parser.add_argument("--server-cores", type=parse_cores, help="of bench and the server")
    parser.add_argument("--beside", type=parse_cores, help="run bench on these at the same time, and exchange them with --server-cores")
    parser.add_argument("--start-s", type=float, default=300, help="seconds for the server to come up")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    own, options = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    args = parser.parse_args(own)
    if args.beside and (not args.server_cores or args.cores):
        parser.error("--beside needs --server-cores, and no --cores: the load generator runs on the server's")
    if args.beside and args.rounds % 2:
        parser.error("--beside needs an even number of --rounds, as every second one exchanges the cores")
    return args, options


class Comparison:
    def __init__(self, args, options):
        self.args, self.options = args, options
        self.cores = {"bench": args.beside or args.server_cores, "serve": args.server_cores}

    def _pinning(self, what):
        cores = self.cores[what]
        return (lambda: os.sched_setaffinity(0, cores)) if cores else None

    def round(self, number):
        if self.args.beside:
            with concurrent.futures.ThreadPoolExecutor() as both:
                started = {what: both.submit(getattr(self, what)) for what in ("bench", "serve")}
                found = {what: job.result() for what, job in started.items()}
            self.cores = {"bench": self.cores["serve"], "serve": self.cores["bench"]}
            return found
        order = ("bench", "serve") if number % 2 == 0 else ("serve", "bench")
        return {what: getattr(self, what)() for what in order}

    def bench(self):
        args = self.args
        lengths = ["--prompt-len", str(args.prompt_len), "--gen-len", str(args.gen_len), "--batch", str(args.streams)]
        command = [args.bin, "bench", args.model, *lengths, "--repeat", "1", "--json", *self.options]
        done = subprocess.run(command, preexec_fn=self._pinning("bench"), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout)

    def serve(self):
        args = self.args
        context = args.prompt_len + args.gen_len
        command = [args.bin, "serve", args.model, "--port", "0", "-c", str(context), "--max-sequences", str(args.streams)]
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen(
                [*command, *self.options], preexec_fn=self._pinning("serve"), stdout=subprocess.PIPE, stderr=log, text=True
            )
            try:
                line = server.stdout.readline()
                if "http://" not in line:
                    log.seek(0)
                    raise RuntimeError(f"{shlex.join(command)}: {log.read()[-2000:]}")
                found = self._measure(line.split()[-1], server.pid)
                log.seek(0)
                found["log"] = [text for text in log.read().splitlines() if "plan" in text or "requests running" in text][:4]
                return found
            finally:
                server.terminate()
                server.wait(60)

    def _measure(self, url, pid):
        args = self.args
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "figures.json")
            command = [sys.executable, str(HERE / "serve_bench.py"), "--url", url, "--name", "server", "--steady", "-o", result]
            command += ["--clients", str(args.streams), "--prompt-len", str(args.prompt_len), "--gen-len", str(args.gen_len)]
            command += ["--token-ids", str(args.vocabulary), "--server-pid", str(pid), "--seed", str(pid), "--timeout", "1800"]
            cores = args.cores or (args.beside and ",".join(map(str, sorted(self.cores["serve"]))))
            command += ["--cores", cores] if cores else []
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()[-2000:]}")
            print(done.stdout, file=sys.stderr)
            return json.load(open(result))["endpoints"]["server"]


def main():
    args, options = parse_arguments()
    comparison = Comparison(args, options)
    rounds = []
    try:
        for number in range(args.rounds):
            both = comparison.round(number)
            rate, there = both["serve"]["steady_tokens_per_s"], both["bench"]["decode_tokens_per_s"]
            ratio = rate / there if rate else None
            rounds.append({"server": rate, "bench": there, "ratio": ratio, "threads": both["serve"].get("server_threads")})
            rounds[-1] |= {"server_log": both["serve"]["log"], "client_share_of_a_core": both["serve"]["client_share_of_a_core"]}
            rounds[-1]["bench_step_s"] = both["bench"]["decode_s"] / (args.gen_len - 1)
            told = f"server {rate:.1f}, ratio {ratio:.3f}" if rate else "server: no time in which all streams decoded"
            print(f"round {number + 1}: decode tokens/s: bench {there:.1f}, {told}", flush=True)
    except RuntimeError as problem:
        if not rounds:
            sys.exit(f"serve_vs_bench.py: {problem}")
        print(f"serve_vs_bench.py: {problem}", file=sys.stderr)
    ratios = [found["ratio"] for found in rounds if found["ratio"]]
    if args.beside:  # cores differ, too: what one gives is in both rounds of a pair, once for either
        ratios = [(one * other) ** 0.5 for one, other in zip(ratios[::2], ratios[1::2])]
    if ratios:
        print(f"median of {len(ratios)}: {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    keep(
        {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {processor_name()}, {os.cpu_count()} cores",
            "command": shlex.join(["bench/serve_vs_bench.py", *sys.argv[1:]]),
            "median_ratio": statistics.median(ratios) if ratios else None,
            "rounds": rounds,
        },
        args.output,
    )
    return 0 if ratios else 1


if __name__ == "__main__":
    sys.exit(main())
