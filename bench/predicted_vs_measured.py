#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the estimates of `spillway plan`'s cost model with measurements, on configurations drawn by seed from a grid.

    bench/predicted_vs_measured.py [--spillway PROGRAM] [--seed 1] [--count 12] [--device cpu] [-o bench/results/NAME.json]

First the machine is measured (`spillway profile`, into a folder of its own), then each configuration: `spillway bench`, whose
report has both figures. Nothing is fitted on these. Prints every error; exit code 1 where one is beyond --bar (15%). Needs an
idle machine.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import platform
import random
import subprocess
import sys
import tempfile

# Models, sequences, prompts, tokens generated, 4-bit weights, percent of the weights on disk.
GRIDS = {
    "cpu": (["dummy:opt-125m", "dummy:opt-350m", "dummy:tinyllama-1.1b:q4_0", "dummy:tinyllama-1.1b:q8_0", "dummy:tinyllama-1.1b"],
            [1, 2, 8], [64, 128, 256], [8, 16, 32], [False, True], [0, 0, 40]),
    "cuda": (["dummy:opt-1.3b", "dummy:opt-6.7b", "dummy:opt-13b", "dummy:llama-2-7b:q4_0", "dummy:llama-2-13b"],
             [1, 8, 32], [128, 512], [16, 32], [False, True], ["", "2GiB", "4GiB", "8GiB"]),
}  # fmt: skip


def draw(device, seed, count):
    grid = list(itertools.product(*GRIDS[device]))
    random.Random(seed).shuffle(grid)
    return grid[:count]


def run(program, arguments, folder):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, "XDG_CACHE_HOME": str(folder)})  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def options_of(device, configuration, disk):
    model, sequences, prompt, generated, compress, last = configuration
    options = [model, "--device", device, "--batch", sequences, "--prompt-len", prompt, "--gen-len", generated]
    if compress:
        options.append("--compress-weights")
    if device == "cpu" and last:
        options += ["--weights", f"0,{100 - last},{last}", "--disk-memory", "8GiB", "--disk-dir", disk]
    if device == "cuda" and last:
        options += ["--gpu-memory", last]
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--device", choices=sorted(GRIDS), default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--bar", type=float, default=0.15)
    parser.add_argument("--disk-dir", default=tempfile.gettempdir())
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        print("measuring the machine", file=sys.stderr, flush=True)
        run(arguments.spillway, ["profile", "--disk-dir", arguments.disk_dir], folder)
        print("| configuration | measured, tokens/s | predicted | error | prompts | decode |\n|---|---|---|---|---|---|", flush=True)
        for configuration in draw(arguments.device, arguments.seed, arguments.count):
            options = options_of(arguments.device, configuration, arguments.disk_dir)
            report = json.loads(run(arguments.spillway, ["bench", *options, "--repeat", arguments.repeat, "--json"], folder))
            predicted = report["predicted"]
            error = {key: predicted[key] / report[key] - 1 for key in ("generated_tokens_per_s", "prefill_s", "decode_s")}
            shown = " ".join(map(str, options)).replace("dummy:", "").replace(arguments.disk_dir, "DIR")
            print(f"| {shown} | {report['generated_tokens_per_s']:.3g} | {predicted['generated_tokens_per_s']:.3g} "
                  f"| {error['generated_tokens_per_s']:+.0%} | {error['prefill_s']:+.0%} | {error['decode_s']:+.0%} |", flush=True)  # fmt: skip
            results.append({"options": shown, "measured": report["generated_tokens_per_s"], "predicted": predicted, "errors": error})
    beyond = [r["options"] for r in results if abs(r["errors"]["generated_tokens_per_s"]) > arguments.bar]
    print(f"\nWithin {arguments.bar:.0%}: {len(results) - len(beyond)} of {len(results)}.")
    if arguments.output:
        kept = {"date": datetime.date.today().isoformat(), "machine": f"{platform.machine()}, {os.cpu_count()} threads",
                "command": f"bench/predicted_vs_measured.py --device {arguments.device} --seed {arguments.seed}", "results": results}  # fmt: skip
        pathlib.Path(arguments.output).write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
