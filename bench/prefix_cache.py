#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the worth of a prefix that was computed before: time to first token of a request that begins like an earlier one.

    bench/prefix_cache.py build/release/bin/spillway smollm2 -o bench/results/DATE-MACHINE-prefix-cache.json
    bench/prefix_cache.py build/release/bin/spillway model.gguf --prefix 8000 -- --device cuda -c 16384

Starts `spillway serve MODEL --kv-dir FOLDER`, options behind -- included, and asks with prompts of --prefix shared tokens and a few of
their own: the first computes them, the second finds them in the pool. Then the server is ended and started again, and a third finds
them on disk. Each round has another prefix; medians are shown. Before a request is timed, another one that shares nothing has been
answered, so that nothing is measured that only the first request of a process pays for.
"""

import argparse
import contextlib
import datetime
import http.client
import json
import pathlib
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from keep_result import keep

READY = re.compile(r"serving (.*) at http://127\.0\.0\.1:(\d+)\n")
NAME = "measured"
OWN_TOKENS, ANSWER_TOKENS = 16, 4
TARGETS = {"second": 0.05, "after_restart": 0.15}


def parse_arguments():
    words, options = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--prefix", type=int, default=2000, help="tokens that requests share (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="prefixes (3)")
    parser.add_argument("--kv-dir", type=pathlib.Path, help="an empty folder on the disk to be measured (default: a temporary one)")
    parser.add_argument("-o", "--output", help="JSON for bench/results")
    return parser.parse_args(words), options


@contextlib.contextmanager
def server(args, options, folder):
    """Yields the port of a running server, which is ended by SIGTERM."""
    command = [args.program, "serve", args.model, "--name", NAME, "--port", "0", "--kv-dir", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            found = READY.fullmatch(process.stdout.readline().decode())
            if not found:
                sys.exit(f"it did not start: {' '.join(command)}")
            yield int(found[2])
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait() != 0:
                sys.exit(f"the server ended with {process.returncode}")


def ask(port, prompt):
    """Seconds to the first token, and the answer's text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"model": NAME, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.read()[:500]!r}")
    first, texts = None, []
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:])["choices"]
        if choices and first is None:
            first = time.perf_counter() - begin
        texts += [choice.get("text", "") for choice in choices]
    connection.close()
    return first, "".join(texts)


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    names = ("spillway_prefix_hit_tokens_total", "spillway_kv_store_blocks", "spillway_kv_store_damaged_total")
    lines = (line.rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in lines if name.startswith(names)}


def tokens(port, generator, count):
    """Token ids of random words, which any vocabulary has; for a model without a vocabulary, random ids."""
    text = " ".join("".join(generator.choices("aeinorst", k=generator.randint(2, 7))) for _ in range(count))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/tokenize", json.dumps({"content": text}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read()).get("tokens") or [generator.randrange(100, 1000) for _ in range(count)]
    connection.close()
    return found[:count]


def measure(args, options, folder):
    generator = random.Random(1)
    times = {"first": [], "second": [], "after_restart": []}
    texts = {}

    def time_one(name, port, prefix, own):
        seconds, text = ask(port, prefix + own)
        times[name].append(seconds)
        return text

    with server(args, options, folder) as port:
        prefixes = [tokens(port, generator, args.prefix) for _ in range(args.rounds)]
        owns = [tokens(port, generator, OWN_TOKENS) for _ in prefixes]
        ask(port, tokens(port, generator, 64))
        for prefix, own in zip(prefixes, owns):
            time_one("first", port, prefix, tokens(port, generator, OWN_TOKENS))
            texts[tuple(own)] = time_one("second", port, prefix, own)
        before = metrics(port)
    with server(args, options, folder) as port:
        ask(port, tokens(port, generator, 64))
        for prefix, own in zip(prefixes, owns):
            if time_one("after_restart", port, prefix, own) != texts[tuple(own)]:
                print("an answer after the restart differs; only --deterministic promises the same", file=sys.stderr)
        after = metrics(port)
    return times, before, after


def main():
    args, options = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.kv_dir or pathlib.Path(temporary) / "kv"
        times, before, after = measure(args, options, folder)
    medians = {name: statistics.median(values) for name, values in times.items()}
    shares = {name: medians[name] / medians["first"] for name in TARGETS}
    print(f"{'':16}{'seconds':>10}{'share':>10}{'target':>10}")
    print(f"{'first':16}{medians['first']:10.4f}")
    for name, target in TARGETS.items():
        print(f"{name:16}{medians[name]:10.4f}{shares[name]:10.1%}{target:10.0%}")
    keep(
        {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {platform.processor() or platform.system()}",
            "command": " ".join(sys.argv),
            "prefix_tokens": args.prefix,
            "ttft_s": times,
            "median_s": medians,
            "share_of_first": shares,
            "target_share": TARGETS,
            "metrics_before_restart": before,
            "metrics_after_restart": after,
        },
        args.output,
    )
    sys.exit(0 if all(shares[name] <= target for name, target in TARGETS.items()) else 1)


if __name__ == "__main__":
    main()
