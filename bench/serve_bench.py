#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures servers under load: throughput, time to first token and between tokens, for one or more servers side by side.

    bench/serve_bench.py --url http://127.0.0.1:8080 --clients 8 --prompts ../shared/data/text/ShareGPT_V3_filtered_500_prompts.json
    bench/serve_bench.py --url :8080 --name spillway --url :8081 --name llama-server --clients 32 --prompts FILE --svg out.svg
    bench/serve_bench.py --url :8080 --trace ../shared/data/traces/AzureLLMInferenceTrace_conv.csv --speed-up 4 --requests 200
    bench/serve_bench.py --url :8080 --poisson 2.5 --prompt-len 100-900 --gen-len 16-256 --requests 300 -o bench/results/NAME.json
    bench/serve_bench.py --url :8080 --steady --clients 64 --prompt-len 512 --gen-len 128 --cores 14,15

Anything that speaks OpenAI's API. Several servers take turns, --rounds times, with the same requests; each round has new ones,
so that no answer comes out of a cache. With --steady all clients start at once and decoding is measured only while all of them
decode; each prompt was asked for one token before, so that a server that keeps KV has all of them decode at once, as
`spillway bench` does (--cold: not; then answers must be long enough that the first one ends after the last prompt). Prompts of --prompt-len go as token ids where the server has /tokenize, as that many words where it does not. Answers
have exactly --gen-len tokens (`ignore_eos`; for servers that do not know it: --extra '{"min_tokens": 128}'). The load generator
is one thread: give it cores of its own (--cores), and see its share of a core in the table. Ctrl-C shows what there is.
"""

import argparse
import datetime
import json
import os
import platform
import pathlib
import random
import re
import shlex
import statistics
import sys

from keep_result import keep
from serve_client import Endpoint, Interrupts, Load, clock
from serve_figures import endpoint_figures, steady
from serve_plot import draw
from serve_workload import FilePrompts, RandomPrompts, Shape, parse_range, poisson_times, read_prompts, read_trace

ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def parse_cores(text):
    """`0,4-7` as a set."""
    cores = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        cores.update(range(int(low), int(high or low) + 1))
    return cores


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_argument_group("servers; the options of the n-th one go with the n-th --url")
    server.add_argument("--url", action="append", required=True, help="http://HOST:PORT, or :PORT on this machine")
    server.add_argument("--name", action="append", default=[], help="what the tables call it")
    server.add_argument("--model", action="append", default=[], help="default: the first one that it lists")
    server.add_argument("--extra", action="append", default=[], type=json.loads, help="JSON that joins every request's body")
    server.add_argument("--server-pid", action="append", default=[], type=int, help="tells the CPU time of its threads")
    server.add_argument("--api-key-file", help="its first line goes to all servers")
    load = parser.add_argument_group("arrivals")
    how = load.add_mutually_exclusive_group()
    how.add_argument("--trace", help="a CSV with Azure's columns: arrivals and lengths")
    how.add_argument("--poisson", type=float, metavar="RATE", help="requests a second, at random times")
    load.add_argument("--clients", type=int, default=0, help="each sends its next request when the last is answered")
    load.add_argument("--steady", action="store_true", help="one request per client, all at once; decoding while all decode")
    load.add_argument("--cold", action="store_true", help="with --steady: prompts come unannounced")
    load.add_argument("--requests", type=int, help="in a round; default: 4 per client, or 100")
    load.add_argument("--speed-up", type=float, default=1.0, help="of the trace's time")
    load.add_argument("--most-tokens", type=int, default=0, help="leaves out longer requests of a trace, and prompts of a file")
    load.add_argument("--rounds", type=int, default=1, help="servers take turns in each")
    load.add_argument("--warm-up", type=int, default=2, help="requests to each server before anything is measured")
    load.add_argument("--timeout", type=float, default=600.0, help="seconds for one request")
    load.add_argument("--seed", type=int, default=1)
    what = parser.add_argument_group("requests")
    what.add_argument("--prompts", help="JSON: ShareGPT, Alpaca, or strings (.xz, too)")
    what.add_argument("--prompt-len", type=parse_range, metavar="N|LOW-HIGH", help="tokens of random words (default: 512)")
    what.add_argument("--token-ids", type=int, default=0, metavar="N", help="prompts of random ids below N, for any model")
    what.add_argument("--gen-len", type=parse_range, default=(128, 128), metavar="N|LOW-HIGH", help="tokens of an answer (128)")
    what.add_argument("--keep-eos", action="store_true", help="answers may end before --gen-len")
    what.add_argument("--route", choices=ROUTES, help="default: chat for --prompts, else completions")
    what.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--cores", type=parse_cores, metavar="LIST", help="the load generator stays on these: 0,4-7")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    parser.add_argument("--svg", help="a picture of the distributions")
    args = parser.parse_args(words)
    args.url = [f"http://127.0.0.1{url}" if url.startswith(":") else url for url in args.url]
    if not (args.trace or args.poisson or args.clients):
        parser.error("give --clients, --poisson or --trace")
    if args.clients < 0 or args.rounds < 1 or args.speed_up <= 0 or (args.poisson is not None and args.poisson <= 0):
        parser.error("counts and rates are above 0")
    if args.steady and (not args.clients or args.poisson or args.trace):
        parser.error("--steady needs --clients, and no other arrivals")
    if args.prompts and (args.prompt_len or args.trace):
        parser.error("--prompts has its own lengths: not with --prompt-len or --trace")
    if args.requests is None:
        args.requests = args.clients if args.steady else 4 * args.clients if args.clients else 100
    if args.requests < 1 or (args.steady and args.requests != args.clients):
        parser.error("--requests is at least 1, and with --steady as many as --clients")
    args.route = ROUTES[args.route or ("chat" if args.prompts else "completions")]
    return args


def make_endpoints(args):
    key = ""
    if args.api_key_file:
        with open(args.api_key_file) as file:
            key = file.readline().strip()

    def nth(values, at, default):
        return values[at] if at < len(values) else default

    endpoints = []
    for at, url in enumerate(args.url):
        endpoint = Endpoint(url, nth(args.name, at, ""), nth(args.model, at, ""), key, nth(args.extra, at, None))
        endpoint.find_model()
        endpoints.append(endpoint)
    if len({endpoint.name for endpoint in endpoints}) != len(endpoints):
        raise ValueError("two servers have the same name: give each a --name")
    return endpoints


class Workload:
    """The requests of each round, the same for all servers."""

    def __init__(self, args, tokenizing):
        self.args = args
        self.prompts = None
        self.tokenizing = tokenizing  # the server whose /tokenize counts
        if args.prompts:
            texts = read_prompts(args.prompts)
            if args.most_tokens:
                texts = [text for text in texts if self.tokens_of(text) <= args.most_tokens]
            self.prompts = FilePrompts(texts, args.seed)

    def tokens_of(self, text):
        ids = self.tokenizing.try_tokenize(text)
        return len(text.split()) if ids is None else len(ids)

    def shapes(self, count, draw):
        args = self.args
        if args.trace:
            return read_trace(args.trace, count, args.speed_up, args.most_tokens)
        times = poisson_times(args.poisson, count, draw) if args.poisson else [None] * count
        prompt_len = (0, 0) if args.prompts else args.prompt_len or (512, 512)
        return [Shape(at, draw.randint(*prompt_len), draw.randint(*args.gen_len)) for at in times]

    def round(self, number, count):
        """[(due, fields of the body)]"""
        draw = random.Random(f"{self.args.seed} {number}")
        prompts = self.prompts or RandomPrompts(self.tokenizing.try_tokenize, f"{self.args.seed} {number}", self.args.token_ids)
        sampling = {"temperature": self.args.temperature, "seed": number} | ({} if self.args.keep_eos else {"ignore_eos": True})
        requests = []
        for shape in self.shapes(count, draw):
            fields = prompts.fields(self.args.route, shape.prompt_tokens)
            requests.append((shape.due_s, fields | {"max_tokens": shape.output_tokens} | sampling))
        return requests


class ServerThreads:
    """CPU seconds of the threads of a server on this machine since this object was made; also the seconds of its steps and the bytes of
    each link (reported once a second), if its metrics have them."""

    def __init__(self, pid, endpoint):
        self.pid, self.endpoint = pid, endpoint
        self.before = self.read()
        self.made_at = clock()

    def read(self):
        seconds = {}
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            fields = (task / "stat").read_text()
            name, rest = fields[fields.index("(") + 1 : fields.rindex(")")], fields[fields.rindex(")") + 2 :].split()
            seconds[name] = seconds.get(name, 0.0) + (int(rest[11]) + int(rest[12])) / os.sysconf("SC_CLK_TCK")
        metrics = self.endpoint.read("/metrics").decode()
        found = re.search(r"^spillway_step_seconds_sum (\S+)", metrics, re.MULTILINE)
        links = {link: float(value) for link, value in re.findall(r'^spillway_link_bytes_total\{link="([^"]+)"\} (\S+)', metrics, re.MULTILINE)}
        return seconds, float(found[1]) if found else 0.0, links

    def since(self):
        passed_s = clock() - self.made_at
        seconds, steps_s, links = self.read()
        cpu_s = {name: value - self.before[0].get(name, 0.0) for name, value in seconds.items()}
        http_s = sum(value for name, value in cpu_s.items() if name.startswith("http"))
        steps_s -= self.before[1]
        rates = {link: (value - self.before[2].get(link, 0.0)) / passed_s / 1e9 for link, value in links.items()}
        return {
            "cpu_s": cpu_s,
            "steps_s": steps_s,
            "http_share_of_steps": http_s / steps_s if steps_s else None,
            "links_gb_per_s": {link: rate for link, rate in rates.items() if rate},
        }


class Progress:
    """One line on a terminal, a few times a second."""

    def __init__(self):
        self.label = ""
        self.next_at = 0.0
        self.is_shown = sys.stderr.isatty()

    def __call__(self, load):
        if not self.is_shown or clock() < self.next_at:
            return
        self.next_at = clock() + 0.25
        errors = sum(bool(outcome.error) for outcome in load.outcomes)
        told = f"{len(load.outcomes)} of {load.total} done, {len(load.open)} at work" + (f", {errors} errors" if errors else "")
        print(f"\r\x1b[K{self.label}: {told}", end="", file=sys.stderr, flush=True)

    def clear(self):
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Bench:
    """Runs the rounds; `measured` always has all finished ones."""

    def __init__(self, args, endpoints):
        self.args = args
        self.endpoints = endpoints
        self.workload = Workload(args, endpoints[0])
        self.measured = {endpoint.name: [] for endpoint in endpoints}  # [(outcomes, cpu seconds)]
        self.steady = {endpoint.name: [] for endpoint in endpoints}
        self.threads = {endpoint.name: [] for endpoint in endpoints}
        self.progress = Progress()
        self.was_interrupted = False

    def load(self, endpoint, requests, label):
        self.progress.label = label
        messages = [(due_s, endpoint.stream_message(self.args.route, fields)) for due_s, fields in requests]
        return Load(endpoint, messages, self.args.clients, self.args.timeout, self.progress)

    def warm_up(self):
        if not self.args.warm_up:
            return
        found = self.workload.round(-1, self.args.warm_up)
        requests = [(None, fields | {"max_tokens": min(fields["max_tokens"], 16)}) for _, fields in found]
        for endpoint in self.endpoints:
            outcomes = self.load(endpoint, requests, f"{endpoint.name}, warm-up").run()
            failed = [outcome.error for outcome in outcomes if outcome.error]
            if failed and len(failed) == len(outcomes):
                raise RuntimeError(f"{endpoint.name}: every request of the warm-up fails: {failed[0]}")

    def measure(self, endpoint, number, requests):
        label = f"{endpoint.name}, round {number + 1} of {self.args.rounds}"
        load = self.load(endpoint, requests, label)
        try:
            if self.args.steady and not self.args.cold:
                self.load(endpoint, [(None, fields | {"max_tokens": 1}) for _, fields in requests], f"{label}, prompts").run()
            pid = dict(zip(self.measured, self.args.server_pid)).get(endpoint.name)
            threads = ServerThreads(pid, endpoint) if pid else None
            load.run()
            if threads:
                self.threads[endpoint.name].append(threads.since())
        except KeyboardInterrupt:
            self.was_interrupted = True
        if load.outcomes:
            self.measured[endpoint.name].append((load.outcomes, load.cpu_s))
        if self.args.steady and not self.was_interrupted:
            self.steady[endpoint.name].append(steady(load.outcomes))

    def run(self):
        try:
            self.warm_up()
            for number in range(self.args.rounds):
                requests = self.workload.round(number, self.args.requests)
                for endpoint in self.endpoints if number % 2 == 0 else self.endpoints[::-1]:
                    if not self.was_interrupted:
                        self.measure(endpoint, number, requests)
        except KeyboardInterrupt:
            self.was_interrupted = True
        finally:
            self.progress.clear()

    def figures(self):
        """{name: figures} of the servers that have results."""
        figures = {}
        for name, rounds in self.measured.items():
            if not rounds:
                continue
            figures[name] = endpoint_figures(rounds)
            if self.args.steady:
                rates = [found["tokens_per_s"] for found in self.steady[name] if found]
                figures[name]["steady_tokens_per_s"] = statistics.median(rates) if rates else None
                figures[name]["steady_rounds"] = self.steady[name]
            if self.threads[name]:
                figures[name]["server_threads"] = self.threads[name]
        return figures

    def good(self, name):
        return [outcome for outcomes, _ in self.measured[name] for outcome in outcomes if not outcome.error]


def rows_of(figures):
    """The rows of the table: (name, factor of the unit, digits, function of the figures)."""
    rows = [
        ("total tokens/s", 1, 1, lambda f: f["total_tokens_per_s"]),
        ("output tokens/s", 1, 1, lambda f: f["output_tokens_per_s"]),
        ("requests/s", 1, 2, lambda f: f["requests_per_s"]),
    ]
    if any("steady_tokens_per_s" in f for f in figures.values()):
        rows.insert(0, ("decode tokens/s, all at work", 1, 1, lambda f: f.get("steady_tokens_per_s")))
    for title, name in (("first token", "ttft_s"), ("between tokens", "inter_token_s"), ("whole request", "end_to_end_s")):
        for share in ("p50", "p90", "p95", "p99"):
            rows.append((f"{title}, {share}, ms", 1e3, 1, lambda f, n=name, s=share: f[n][s]))
    return rows


def print_table(figures):
    names = list(figures)
    width = max(14, *(len(name) + 2 for name in names))
    has_ratio = len(names) > 1
    print(f"{'':<30}" + "".join(f"{name:>{width}}" for name in names) + (f"{'ratio':>9}" if has_ratio else ""))
    counts = [f"{f['requests']}, {sum(f['errors'].values())}" for f in figures.values()]
    print(f"{'requests, errors':<30}" + "".join(f"{count:>{width}}" for count in counts))
    for title, factor, digits, get in rows_of(figures):
        values = [get(f) for f in figures.values()]
        line = f"{title:<30}" + "".join(f"{'-' if v is None else f'{v * factor:.{digits}f}':>{width}}" for v in values)
        if has_ratio and values[0] is not None and values[1]:
            line += f"{values[0] / values[1]:9.2f}"
        print(line)
    shares = [f"{f['client_share_of_a_core']:.0%}" for f in figures.values()]
    print(f"{'load generator, of a core':<30}" + "".join(f"{share:>{width}}" for share in shares))
    for name, f in figures.items():
        for found in f.get("server_threads", []):
            told = ", ".join(f"{thread} {seconds:.2f}" for thread, seconds in sorted(found["cpu_s"].items()))
            share = found["http_share_of_steps"]
            print(f"{name}: CPU seconds of its threads: {told}" + (f"; HTTP {share:.1%} of the steps' time" if share else ""))
        if f["errors"]:
            print(f"{name}: errors: " + ", ".join(f"{kind} ({count})" for kind, count in sorted(f["errors"].items())))
        if f["client_share_of_a_core"] > 0.8:
            print(f"{name}: the load generator was nearly all of a core: it may have been the limit")
        if f["started_late_s"] > 0.1:
            print(f"{name}: requests started up to {f['started_late_s']:.2f} s late: not the arrivals that were asked for")
        if "steady_rounds" in f and f["steady_tokens_per_s"] is None:
            print(f"{name}: there was no time in which all streams decoded: give a longer --gen-len")


def processor_name():
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.machine()


def result_of(args, bench, figures):
    words = [os.path.basename(word) if os.sep in word and "://" not in word else word for word in sys.argv[1:]]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {processor_name()}, {os.cpu_count()} cores",
        "command": shlex.join(["bench/serve_bench.py", *words]),
        "cores_of_the_load_generator": sorted(os.sched_getaffinity(0)),
        "is_pinned": args.cores is not None,
        "models": {endpoint.name: os.path.basename(endpoint.model) for endpoint in bench.endpoints},
        "was_interrupted": bench.was_interrupted,
        "endpoints": figures,
    }


def draw_svg(args, bench, figures):
    first = [(name, [outcome.ttft_s for outcome in bench.good(name)]) for name in figures]
    between = [(name, [gap for outcome in bench.good(name) for gap in outcome.gaps_s]) for name in figures]
    arrivals = f"{args.clients} clients" if args.clients else f"{args.poisson:g} requests/s" if args.poisson else "arrivals of a trace"
    title = f"{arrivals}, {args.requests} requests, {args.rounds} rounds; {processor_name()}, {datetime.date.today().isoformat()}"
    with open(args.svg, "w") as file:
        file.write(draw([("Time to first token", first), ("Between tokens", between)], title))


def main():
    args = parse_arguments()
    Interrupts.install()
    if args.cores:
        os.sched_setaffinity(0, args.cores)
    try:
        bench = Bench(args, make_endpoints(args))
        bench.run()
    except (OSError, RuntimeError, ValueError) as problem:
        sys.exit(f"serve_bench.py: {problem}")
    figures = bench.figures()
    if figures:
        print_table(figures)
        keep(result_of(args, bench, figures), args.output)
        if args.svg:
            draw_svg(args, bench, figures)
    if bench.was_interrupted:
        print("interrupted: this is what there was" if figures else "interrupted before anything was measured", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
