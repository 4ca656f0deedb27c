#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of Spillway beside llama.cpp: the same files, threads and work, in turns, and as shares of what the machine can do.

    bench/vs_llama_cpp.py --llama-bench PATH/llama-bench [--models smollm2,tinyllama-1.1b:q4_0] [--threads N]
                          [--prompt 512] [--gen 64] [--repeat 3] [-o bench/results/NAME.json]

A model is a GGUF file, `smollm2` (scripts/fetch_model.sh), or SHAPE:TYPE, which random_gguf writes into --cache. Without
--llama-bench the llama_cpp package (llama-cpp-python from PyPI) is measured. Each of --repeat rounds runs Spillway, then
llama.cpp; the figures are medians over all runs. Decoding starts with --depth tokens in the KV cache (the prompt's length
if left out), for both. Needs an idle machine.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

DEFAULT_MODELS = "smollm2,tinyllama-1.1b:f16,tinyllama-1.1b:q4_0,tinyllama-1.1b:q8_0,tinyllama-1.1b:q4_k_m"
DECODE_RATIO, DECODE_SHARE = 1.5, 0.85  # the target of decoding is the lower of the two, and never below llama.cpp
PREFILL_RATIO = 1.3
PREFILL_SHARE = {"int8": 0.45, "f16": 0.70, "bf16": 0.70, "f32": 0.70}
PLAIN_OPERANDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}  # every other type is multiplied as int8


def run_json(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


# --- the models -----------------------------------------------------------------------------------------------------


class ModelFile:
    """A GGUF file and what a token costs in it."""

    def __init__(self, args, name):
        self.name = name
        self.generated = False
        path = name
        if ":" in name and not os.path.exists(name):
            path = self.generate(args, *name.split(":", 1))
        found = run_json([args.spillway, "inspect", path, "--tensors", "--json"])
        self.path = found["files"][0]
        self.title = name if self.generated else os.path.basename(self.path)
        self.spec = found["model"]
        matrices = {t["name"]: t for t in found["tensors"] if len(t["shape"]) == 2}
        # The embedding table is not multiplied, unless it is also the head.
        head = matrices.pop("output.weight", None)
        embedding = matrices.pop("token_embd.weight")
        head = head or embedding
        self.head_elements = head["shape"][0] * head["shape"][1]
        self.layer_elements = sum(t["shape"][0] * t["shape"][1] for t in matrices.values())
        self.read_bytes = sum(t["bytes"] for t in matrices.values()) + head["bytes"]
        by_type = {}
        for tensor in matrices.values():
            by_type[tensor["type"]] = by_type.get(tensor["type"], 0) + tensor["bytes"]
        self.main_type = max(by_type, key=by_type.get)
        self.operands = PLAIN_OPERANDS.get(self.main_type, "int8")

    def generate(self, args, shape, kind):
        os.makedirs(args.cache, exist_ok=True)
        path = os.path.join(args.cache, f"{shape}.{kind}.gguf")
        if not os.path.exists(path):
            print(f"writing {os.path.basename(path)}", file=sys.stderr)
            subprocess.run([args.random_gguf, path, "--model", shape, "--type", kind, "--quiet"], check=True)
        self.generated = True
        return path

    def decode_bytes(self, context):
        """Bytes read for one token after `context` others: every multiplied matrix, and K and V."""
        return self.read_bytes + context * self.spec["kv_bytes_per_token"]

    def prefill_flop(self, tokens):
        """Floating-point operations of a prompt: the head computes its last token only; token i attends to i + 1 tokens, with q k and p v."""
        attention = 4 * self.spec["layers"] * self.spec["heads"] * self.spec["head_dim"] * tokens * (tokens + 1) / 2
        return 2 * self.layer_elements * tokens + 2 * self.head_elements + attention


# --- the engines: each gives tokens/s of prefill and of decode -----------------------------------------------------


def run_spillway(args, model):
    def bench(prompt, generate):
        return run_json([args.spillway, "bench", model.path, "--device", "cpu", "--prompt-len", str(prompt), "--gen-len",
                         str(generate), "--threads", str(args.threads), "--repeat", str(args.inner), "--json"])  # fmt: skip

    # The first generated token comes from the prompt's step, so one more is asked for.
    if args.depth == args.prompt:
        result = bench(args.prompt, args.gen + 1)
        return [result["prefill_tokens_per_s"]], [result["decode_tokens_per_s"]]
    prefill = bench(args.prompt, 1)
    decode = bench(max(1, args.depth), args.gen + 1)
    return [prefill["prefill_tokens_per_s"]], [decode["decode_tokens_per_s"]]


def run_llama_bench(args, model):
    def bench(prompt, generate, depth):
        command = [args.llama_bench, "-m", model.path, "-t", str(args.threads), "-p", str(prompt), "-n", str(generate),
                   "-d", str(depth), "-r", str(args.inner), "-ngl", "0", "-o", "json"]  # fmt: skip
        (result,) = run_json(command)
        args.peer_version = f"llama-bench {result['build_commit']}"
        return [statistics.median(result["samples_ts"])]

    return bench(args.prompt, 0, 0), bench(0, args.gen, args.depth)


def run_llama_package(args, model):
    """Runs llama.cpp's package in a process of its own, so that no run affects the next."""
    result = run_json([sys.executable, os.path.abspath(__file__), "--package-worker", model.path, "--threads",
                       str(args.threads), "--prompt", str(args.prompt), "--gen", str(args.gen), "--depth",
                       str(args.depth), "--inner", str(args.inner)])  # fmt: skip
    args.peer_version = result["version"]
    return result["prefill"], result["decode"]


def package_worker(args):
    """Measures llama.cpp through its Python package, with the calls that llama-bench makes."""
    import llama_cpp

    context = max(args.prompt, args.depth + args.gen)
    model = llama_cpp.Llama(args.package_worker, n_ctx=context, n_batch=512, n_ubatch=512, n_threads=args.threads,
                            n_threads_batch=args.threads, n_gpu_layers=0, verbose=False)  # fmt: skip

    def evaluate(count, chunk):
        started = time.monotonic()
        for start in range(0, count, chunk):
            model.eval([7 + (start + i) % 97 for i in range(min(chunk, count - start))])
        return count / (time.monotonic() - started)

    prefill, decode = [], []
    for repeat in range(args.inner + 1):
        model.reset()
        prefill.append(evaluate(args.prompt, 512))
        model.reset()
        if args.depth:
            evaluate(args.depth, 512)
        decode.append(evaluate(args.gen, 1))
    print(json.dumps({
        "prefill": [statistics.median(prefill[1:])], "decode": [statistics.median(decode[1:])],
        "version": f"llama-cpp-python {llama_cpp.__version__}",
    }))  # fmt: skip


# --- the comparison -------------------------------------------------------------------------------------------------


class Ceilings:
    """The machine's peak rates, from the `ceilings` program; they are measured before and after, and the better ones count."""

    def __init__(self, args):
        self.command = [args.ceilings, "--threads", str(args.threads), "--json"]
        self.runs = []

    def measure(self):
        self.runs.append(run_json(self.command))

    @property
    def read_gb_per_s(self):
        return max(run["read"]["best_gb_per_s"] for run in self.runs)

    @property
    def processor(self):
        return self.runs[0]["processor"]

    def peak(self, operands):
        """(instruction, Gop/s) of the fastest instruction for these operands, or for floats if there is none."""
        peaks = [(p["best_gop_per_s"], p["instruction"], p["operands"]) for run in self.runs for p in run["peaks"]]
        suited = [p for p in peaks if p[2] == operands] or [p for p in peaks if p[2] == "f32"]
        rate, instruction, _ = max(suited)
        return instruction, rate


def measure_model(args, model):
    peer = run_llama_bench if args.llama_bench else run_llama_package
    samples = {"spillway": ([], []), "llama_cpp": ([], [])}
    for number in range(args.repeat):
        for engine, run in (("spillway", run_spillway), ("llama_cpp", peer)):
            prefill, decode = run(args, model)
            samples[engine][0].extend(prefill)
            samples[engine][1].extend(decode)
            print(f"{model.title}, round {number + 1} of {args.repeat}, {engine}: prefill {prefill[0]:.1f}, "
                  f"decode {decode[0]:.1f} tokens/s", file=sys.stderr)  # fmt: skip
    return samples


def judge(args, model, samples, ceilings):
    """The row of a model for the table and the results."""
    ours = [statistics.median(values) for values in samples["spillway"]]
    theirs = [statistics.median(values) for values in samples["llama_cpp"]]
    instruction, peak = ceilings.peak(model.operands)
    flop = model.prefill_flop(args.prompt)
    read = model.decode_bytes(args.depth + (args.gen + 1) / 2)
    prefill_share = ours[0] / args.prompt * flop / 1e9 / peak
    decode_gb_per_s = ours[1] * read / 1e9
    prefill_target = max(PREFILL_RATIO * theirs[0], PREFILL_SHARE[model.operands] * peak * 1e9 / flop * args.prompt)
    decode_target = max(theirs[1], min(DECODE_RATIO * theirs[1], DECODE_SHARE * ceilings.read_gb_per_s * 1e9 / read))
    return {
        "model": model.title,
        "weight_type": model.main_type,
        "prefill": {
            "spillway_tokens_per_s": ours[0], "llama_cpp_tokens_per_s": theirs[0], "ratio": ours[0] / theirs[0],
            "gflop": flop / 1e9, "share_of_peak": prefill_share, "peak_instruction": instruction,
            "llama_cpp_share_of_peak": theirs[0] / args.prompt * flop / 1e9 / peak,
            "target_tokens_per_s": prefill_target, "reached": ours[0] >= prefill_target,
        },
        "decode": {
            "spillway_tokens_per_s": ours[1], "llama_cpp_tokens_per_s": theirs[1], "ratio": ours[1] / theirs[1],
            "bytes_per_token": read, "gb_per_s": decode_gb_per_s,
            "share_of_bandwidth": decode_gb_per_s / ceilings.read_gb_per_s,
            "llama_cpp_share_of_bandwidth": theirs[1] * read / 1e9 / ceilings.read_gb_per_s,
            "target_tokens_per_s": decode_target, "reached": ours[1] >= decode_target,
        },
        "samples": {engine: {"prefill": values[0], "decode": values[1]} for engine, values in samples.items()},
    }  # fmt: skip


def print_table(args, rows, ceilings):
    print(f"{ceilings.processor}, {args.threads} threads; prompt {args.prompt}, {args.gen} decoded after {args.depth}; "
          f"read {ceilings.read_gb_per_s:.1f} GB/s; {args.peer_version}")  # fmt: skip
    half = f"{'ours':>8} {'llama':>8} {'ratio':>6} {'share':>6} {'target':>8}    "
    print(f"\n{'':<34} {'prefill, tokens/s':<{len(half)}} decode, tokens/s")
    print(f"{'model':<34} {half} {half}")
    for row in rows:
        line = f"{row['model'][:34]:<34}"
        for part, share in ((row["prefill"], "share_of_peak"), (row["decode"], "share_of_bandwidth")):
            line += (f" {part['spillway_tokens_per_s']:>8.1f} {part['llama_cpp_tokens_per_s']:>8.1f} {part['ratio']:>6.2f}"
                     f" {part[share]:>6.0%} {part['target_tokens_per_s']:>8.1f} {'yes' if part['reached'] else 'no':<3}")  # fmt: skip
        print(line)
    used = sorted({f"{row['prefill']['peak_instruction']} ({row['weight_type']})" for row in rows})
    print(f"\nshare: prefill of the peak of {', '.join(used)}; decode of the best read loop. target: decode the lower of "
          f"{DECODE_RATIO} x llama.cpp and {DECODE_SHARE:.0%}\nof that loop, never below llama.cpp; prefill "
          f"{PREFILL_RATIO} x llama.cpp and {PREFILL_SHARE['f16']:.0%} (F16, BF16) or {PREFILL_SHARE['int8']:.0%} of the peak")  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument("--spillway", default="build/release/bin/spillway")
    parser.add_argument("--llama-bench", help="llama.cpp's own benchmark; without it the llama_cpp package is used")
    parser.add_argument("--ceilings", help="default: beside --spillway")
    parser.add_argument("--random-gguf", help="default: beside --spillway")
    parser.add_argument("--models", default=DEFAULT_MODELS, help="separated by commas")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--depth", type=int, help="tokens before those decoded; default: as long as the prompt")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of both engines")
    parser.add_argument("--inner", type=int, default=3, help="runs inside a round; their median counts")
    parser.add_argument("--cache", default=os.path.join(cache, "spillway", "bench"), help="for generated files")
    parser.add_argument("--delete", action="store_true", help="remove generated files once measured")
    parser.add_argument("-o", "--output", help="JSON for bench/results/")
    parser.add_argument("--package-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    beside = os.path.dirname(args.spillway)
    args.ceilings = args.ceilings or os.path.join(beside, "ceilings")
    args.random_gguf = args.random_gguf or os.path.join(beside, "random_gguf")
    args.depth = args.prompt if args.depth is None else args.depth
    args.peer_version = "llama.cpp"
    return args


def main():
    args = parse_arguments()
    if args.package_worker:
        return package_worker(args)
    load_average = os.getloadavg()[0]
    if load_average > 0.5:
        print(f"the machine is busy (load {load_average:.1f}): the figures will be noise", file=sys.stderr)
    ceilings = Ceilings(args)
    ceilings.measure()
    measured = []
    for name in args.models.split(","):
        model = ModelFile(args, name)
        measured.append((model, measure_model(args, model)))
        if args.delete and model.generated:
            os.remove(model.path)
    ceilings.measure()
    rows = [judge(args, model, samples, ceilings) for model, samples in measured]
    print_table(args, rows, ceilings)
    if args.output:
        shown = [",".join(os.path.basename(part) for part in word.split(",")) for word in sys.argv]
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {ceilings.processor}, {os.cpu_count()} cores",
            "command": " ".join(shown),
            "load_average_before": load_average,
            "peer": args.peer_version,
            "threads": args.threads, "prompt": args.prompt, "gen": args.gen, "depth": args.depth, "rounds": args.repeat,
            "ceilings": {
                "read_gb_per_s": ceilings.read_gb_per_s,
                "peaks_gop_per_s": {p["instruction"]: max(q["best_gop_per_s"] for run in ceilings.runs for q in run["peaks"]
                                                          if q["instruction"] == p["instruction"])
                                    for p in ceilings.runs[0]["peaks"]},
            },
            "models": rows,
        }  # fmt: skip
        with open(args.output, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
