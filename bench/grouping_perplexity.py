#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of 4-bit groups of 64, along the input dimension (Spillway's G4) and along the output channel (FlexGen's
paper, section 5): perplexity of one model on one text with F16 weights, with each grouping, and loaded with
--compress-weights.

    bench/grouping_perplexity.py MODEL.gguf TEXT [--ctx 512] [--max-windows N] [--build build/release]
                                 [-o bench/results/NAME.json]

The model may be stored in any type; it is decoded to F16 first. `input` and `output` are F16 files that hold the rounded
values, so that only the weights differ; `compressed` is what users get: G4 in memory and the kernels that go with it.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import tempfile

import keep_result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--max-windows", type=int, default=0)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--note")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()

    runs = {}
    with tempfile.TemporaryDirectory() as folder:

        def evaluate(name, path, *options):
            command = [f"{args.build}/bin/spillway", "eval", path, "--text", args.text, "--ctx", str(args.ctx), "--json", *options]
            if args.max_windows:
                command += ["--max-windows", str(args.max_windows)]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            runs[name] = {key: answer[key] for key in ("perplexity", "perplexity_stderr", "tokens", "windows")}
            if name != "plain":
                runs[name]["ratio"] = answer["perplexity"] / runs["plain"]["perplexity"]

        for mode in ("plain", "input", "output"):
            path = f"{folder}/{mode}.gguf"
            subprocess.run([f"{args.build}/bench/round_to_groups", args.model, path, mode], check=True)
            evaluate(mode, path)
            if mode == "plain":
                evaluate("compressed", path, "--compress-weights")
            os.remove(path)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": f"bench/grouping_perplexity.py {os.path.basename(args.model)} {os.path.basename(args.text)} --ctx {args.ctx}"
        + (f" --max-windows {args.max_windows}" if args.max_windows else ""),
        "runs": runs,
    }
    if args.note:
        result["note"] = args.note
    print(json.dumps(result, indent=2))
    keep_result.keep(result, args.output)


if __name__ == "__main__":
    main()
