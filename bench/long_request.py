#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One request whose KV cache is many times what its device's KV memory holds.

Three runs: the machine's rates (spillway profile), the request with all of its KV on the device, and the same with a share of
it there and the rest in host memory (with --device cpu: in host memory and on disk). Printed are

  prompt  tokens per second, as a share of those with all KV on the device
  decode  tokens per second, as a share of what the memories give: the CPU reads the part in host memory while the GPU reads its
          own part and the weights, each at its measured rate, and the slower one decides

    bench/long_request.py -o bench/results/DATE-MACHINE-long-request.json
    bench/long_request.py --device cpu --model dummy:tinyllama-1.1b:q8_0 --tokens 2048 --kv-budget 8 --chunk 256 --disk-dir /tmp

On a GPU of 141 GB the default (128K tokens of a 7B model, 6 GB of KV on the GPU, 62 GB in host memory) takes about four
minutes and 75 GB of host memory. A machine whose GPU cannot hold all of the KV leaves that run out: --no-resident.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

GIB = 1 << 30
BARS = {"decode": 0.7, "prompt": 0.5}


def run_json(command):
    print(" ".join(command), file=sys.stderr)
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def machine_rates(options, folder):
    path = pathlib.Path(folder) / "hardware.json"
    command = [options.spillway, "profile", "-o", str(path), "--disk-dir", options.disk_dir]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(path.read_text())


def bench(options, kv, extra=()):
    return run_json([
        options.spillway, "bench", options.model, "--device", options.device, "--batch", "1", "--prompt-len",
        str(options.tokens - options.generate), "--gen-len", str(options.generate), "--chunk", str(options.chunk), "--repeat", "1",
        "--weights", options.weights, "--kv", kv, "--kv-type", options.kv_type, "--json", *extra, *options.extra,
    ])  # fmt: skip


def kv_bytes(result):
    return sum(tier["peak_bytes_by_tag"].get("KV cache", 0) for tier in result["tiers"].values())


def read_rate(hardware, memory):
    """Bytes per second."""
    rate = (hardware.get(memory) or {}).get("read_gb_per_s")
    if not rate:
        sys.exit(f"the machine's profile has no read_gb_per_s of {memory}")
    return rate * 1e9


def measure(options, folder):
    on_gpu = options.device != "cpu"
    hardware = machine_rates(options, folder)
    disk = [] if on_gpu else ["--disk-memory", options.disk_memory, "--disk-dir", options.disk_dir]
    here = "100,0,0" if on_gpu else "0,100,0"
    percent = options.kv_budget
    if options.kv_budget_gb is not None:
        percent = 100 * options.kv_budget_gb * 1e9 / options.kv_gb / 1e9
    shares = f"{percent:.3f},{100 - percent:.3f},0" if on_gpu else f"0,{percent:.3f},{100 - percent:.3f}"
    spanning = bench(options, shares, disk)
    resident = None if options.no_resident else bench(options, here)

    total = kv_bytes(spanning) if on_gpu else kv_bytes(spanning) * 100 / percent
    near, away = total * percent / 100, total * (1 - percent / 100)
    weights = spanning["weight_bytes"]
    if on_gpu:
        seconds = {
            "gpu": (weights + near) / read_rate(hardware, "gpu"),
            "cpu": away / read_rate(hardware, "host"),
        }
    else:
        seconds = {
            "cpu": (weights + total) / read_rate(hardware, "host"),
            "disk": away / read_rate(hardware, "disk"),
        }
    bound = max(seconds.values())
    return {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "device": spanning["device"],
        "model": options.model,
        "tokens": options.tokens,
        "chunk": options.chunk,
        "kv_type": options.kv_type,
        "kv_bytes": total,
        "kv_bytes_near": near,
        "decode": {
            "tokens_per_s": spanning["decode_tokens_per_s"],
            "bound_tokens_per_s": 1 / bound,
            "seconds_by_memory": seconds,
            "share": spanning["decode_tokens_per_s"] * bound,
        },
        "prompt": {
            "tokens_per_s": spanning["prefill_tokens_per_s"],
            "resident_tokens_per_s": resident and resident["prefill_tokens_per_s"],
            "share": resident and spanning["prefill_tokens_per_s"] / resident["prefill_tokens_per_s"],
        },
        "spanning": spanning,
        "resident": resident,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="dummy:llama-2-7b:f16")
    parser.add_argument("--tokens", type=int, default=131072, help="prompt and answer")
    parser.add_argument("--generate", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=8192, help="tokens of the prompt through a layer together")
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--kv-budget", type=float, default=None, help="percent of the KV near the processor")
    parser.add_argument("--kv-budget-gb", type=float, default=None, help="the same in GB (default: 6)")
    parser.add_argument("--kv-gb", type=float, default=131072 * 512 * 1024 / 1e9, help="of the whole request, for --kv-budget-gb")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--no-resident", action="store_true", help="without the run with all KV on the device")
    parser.add_argument("--disk-dir", default=tempfile.gettempdir())
    parser.add_argument("--disk-memory", default="16GiB")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    parser.add_argument("extra", nargs="*", help="options for spillway bench, behind --")
    options = parser.parse_args()
    if options.kv_budget is None and options.kv_budget_gb is None:
        options.kv_budget_gb = 6
    if options.weights is None:
        options.weights = "0,100,0" if options.device == "cpu" else "100,0,0"

    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, folder)
    print(f"{result['model']}, {result['tokens']} tokens, KV of {result['kv_bytes'] / 1e9:.2f} GB in {result['kv_type']}, "
          f"{result['kv_bytes_near'] / 1e9:.2f} GB of it near")
    decode, prompt = result["decode"], result["prompt"]
    by_memory = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in decode["seconds_by_memory"].items())
    print(f"decode: {decode['tokens_per_s']:.2f} tokens/s, {decode['share']:.0%} of what the memories give ({by_memory} a token; "
          f"bar {BARS['decode']:.0%})")
    if prompt["share"] is None:
        print(f"prompt: {prompt['tokens_per_s']:.0f} tokens/s")
    else:
        print(f"prompt: {prompt['tokens_per_s']:.0f} tokens/s, {prompt['share']:.0%} of {prompt['resident_tokens_per_s']:.0f} "
              f"with all KV near (bar {BARS['prompt']:.0%})")
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
