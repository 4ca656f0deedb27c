#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the table of what the GPU should reach, beside its ceilings, and prints it. Called by gpu_report.sh."""
import argparse
import datetime
import functools
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import time

LLAMA = {"layers": 32, "hidden": 4096, "kv_bytes_per_token": 2 * 32 * 4096 * 2, "embedding": 32000 * 4096 * 2,
         "multiplied": 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096}
SDPA_KEYS = ("batch", "heads", "kv_heads", "head_dim", "tokens")
WAY = "online"  # the prefill kernel of gpu_attention_bench that the product uses


class Report:
    def __init__(self, arguments):
        self.bin = pathlib.Path(arguments.bin)
        self.out = pathlib.Path(arguments.out)
        self.rows = []
        self.figures = {}
        self.start = time.time()

    def note(self, text):
        print(f"[{time.time() - self.start:.0f} s] {text}", flush=True)

    def row(self, what, target, figure, met=None):
        mark = "" if met is None else ("  yes" if met else "  NO")
        self.rows.append({"what": what, "target": target, "figure": figure, "met": met})
        print(f"  {what:<58} {target:<26} {figure}{mark}", flush=True)

    def save(self, machine):
        (self.out / "gpu_report.json").write_text(json.dumps(
            {"date": datetime.date.today().isoformat(), "machine": machine, "command": "bench/gpu_report.sh",
             "figures": self.figures, "table": self.rows}, indent=1) + "\n")

    def run(self, command, timeout=120):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            self.note(f"FAILED: not done after {timeout} s: {' '.join(map(str, command))}")
            return None
        except OSError as error:
            self.note(f"FAILED: {error}")
            return None
        if done.returncode != 0:
            self.note(f"FAILED ({done.returncode}): {' '.join(map(str, command))}: {done.stderr.strip()[-300:]}")
            return None
        return done.stdout

    def bench(self, model, prompt, gen, batch=1, repeat=3):
        text = self.run([self.bin / "spillway", "bench", model, "--device", "cuda", "--prompt-len", str(prompt),
                         "--gen-len", str(gen), "--batch", str(batch), "--repeat", str(repeat), "--json"])
        return json.loads(text) if text else None


def ceilings_and_linear(report):
    path = report.out / "linear.json"
    text = report.run([report.bin / "gpu_linear_bench", "--json", path], timeout=150)
    if not text:
        raise SystemExit("without ceilings there is no table")
    (report.out / "linear.txt").write_text(text)
    result = json.loads(path.read_text())
    report.hbm, report.peak = result["hbm_read_bytes_per_s"], result["bf16_gemm_flop_per_s"]
    report.figures["hbm_read_gb_per_s"], report.figures["cublaslt_bf16_tflops"] = report.hbm / 1e9, report.peak / 1e12
    print(f"ceilings: HBM read {report.hbm / 1e9:.0f} GB/s, cuBLASLt bf16 {report.peak / 1e12:.0f} TFLOP/s")
    print(f"  {'what':<58} {'target':<26} figure")
    report.figures["linear"] = {"against_cublaslt": result["against_cublaslt"], "cases": result["cases"]}
    if not result["against_cublaslt"]:
        return report.row("linear, beside cuBLASLt's best", ">= 1.15", "no cuBLASLt here")
    for way, words in (("in_steps", "as steps launch it"), ("alone", "alone")):
        ratios = result["against_cublaslt"][way]
        mean, worst = ratios["mean_to_8_tokens"], ratios["worst"]
        report.row(f"linear, 1-8 tokens, beside cuBLASLt (geo. mean), {words}", ">= 1.15",
                   f"{mean:.3f} (best variants {ratios['mean_to_8_tokens_best_variant']:.3f})", mean >= 1.15)
        report.row(f"linear, 1-64 tokens, worst case, {words}", ">= 0.97",
                   f"{worst:.3f} ({ratios['worst_case']}; best variants {ratios['worst_best_variant']:.3f})", worst >= 0.97)
    print("  which kernel is the fastest in steps, and the planned one's time beside it:")
    for case in result["cases"]:
        ways = case["in_steps"]
        if case["tokens"] <= 8 and "gemv" in ways and "flat" in ways:
            print(f"    {case['shape']:<18} {case['tokens']:>2} tokens: {ways['gemv']['kernel']} {ways['gemv']['us']:.2f} us, "
                  f"{ways['flat']['kernel']} {ways['flat']['us']:.2f} us; {ways['planned']['kernel']} "
                  f"{ways['planned']['us']:.2f} us")
    return None


def decode(report):
    def share(result, context):
        step = result["decode_s"] / (result["gen_len"] - 1)
        bytes_each = {"Q4_0": 18 / 32, "G4": 36 / 64, "Q4_K": 144 / 256, "Q6_K": 210 / 256, "Q8_0": 34 / 32}.get(result["weight_type"], 2)
        weights = LLAMA["multiplied"] * bytes_each
        return (weights + LLAMA["kv_bytes_per_token"] * context * result["batch"]) / step / report.hbm

    def one(what, target, bar, model, prompt, gen):
        result = report.bench(model, prompt, gen)
        if result is None:
            return report.row(what, target, "failed", False)
        speed = result["decode_tokens_per_s"]
        used = share(result, prompt + gen / 2)
        report.figures[what] = {"tokens_per_s": speed, "share_of_hbm": used}
        return report.row(what, target, f"{speed:.0f} tok/s, {used:.0%} of HBM", bar(speed, used))

    one("decode 7B F16, batch 1, context 64-192", ">= 85% of HBM", lambda s, u: u >= 0.85, "dummy:llama-2-7b", 64, 128)
    one("decode 7B F16, batch 1, depth 8192", ">= 210 tok/s", lambda s, u: s >= 210, "dummy:llama-2-7b", 8192, 32)
    one("decode 7B Q4_0, batch 1", ">= 530 tok/s", lambda s, u: s >= 530, "dummy:llama-2-7b:q4_0", 64, 128)
    one("decode 7B G4 (group 64), batch 1", ">= 530 tok/s", lambda s, u: s >= 530, "dummy:llama-2-7b:g4", 64, 128)
    for model in ("q4_k", "q6_k", "q8_0"):
        one(f"decode 7B {model.upper()}, batch 1", "-", lambda s, u: None, f"dummy:llama-2-7b:{model}", 64, 128)
    for batch in (32, 128):
        result = report.bench("dummy:llama-2-7b", 1008, 32, batch)
        what = f"decode 7B F16, batch {batch}, context 1024: step / floor"
        if result is None:
            report.row(what, "<= 1.33", "failed", False)
            continue
        step = result["decode_s"] / 31
        moved = (LLAMA["multiplied"] * 2 + LLAMA["kv_bytes_per_token"] * 1024 * batch) / report.hbm
        computed = 2 * LLAMA["multiplied"] * batch / report.peak
        floor = max(moved, computed)
        report.figures[what] = {"step_ms": step * 1e3, "floor_ms": floor * 1e3, "tokens_per_s": batch / step}
        report.row(what, "<= 1.33", f"{step / floor:.2f} ({step * 1e3:.2f} ms, {batch / step:.0f} tok/s)",
                   step <= 1.33 * floor)
    for model, target in (("dummy:llama-2-7b", 33000), ("dummy:llama-2-7b:q4_0", 10892)):
        result = report.bench(model, 2048, 2)
        if result:
            speed = result["prefill_tokens_per_s"]
            rate = 2 * LLAMA["multiplied"] * speed / report.peak
            report.figures[f"prefill 2048 {model}"] = speed
            report.row(f"prefill 2048 tokens, {model}", f">= {target} tok/s",
                       f"{speed:.0f} tok/s ({rate:.0%} of cuBLASLt's rate)", speed >= target)


def attention(report):
    path = report.out / "attention.json"
    text = report.run([report.bin / "gpu_attention_bench", "--json", path], timeout=150)
    if not text:
        return report.row("attention", "-", "failed", False)
    (report.out / "attention.txt").write_text(text)
    cases = json.loads(path.read_text())["cases"]
    report.figures["attention"] = cases
    decode_cases = [c for c in cases if c["op"] == "decode" and c["kv"] == "f16"]
    for case in decode_cases:
        case["share"], case["sync_share"] = (case["kv_bytes"] / case[us] / 1e-6 / report.hbm for us in ("unified_us", "sync_us"))
        case["ratio"] = case["sync_us"] / case["unified_us"]
        case["name"] = f"{case['heads']}/{case['kv_heads']} heads of {case['head_dim']}"
    for name in sorted({c["name"] for c in decode_cases}):
        large = [c for c in decode_cases if c["name"] == name and c["kv_bytes"] >= 256e6]
        if not large:
            continue
        best = [max(c["share"], c["sync_share"]) for c in large]
        report.row(f"decode attention F16 {name}, KV >= 256 MB", ">= 80% of HBM", f"{min(best):.0%}-{max(best):.0%}",
                   min(best) >= 0.8)
        ratios = [c["ratio"] for c in large]
        report.row(f"  unified maximum against synchronized, {name}", "never slower",
                   f"{min(ratios):.3f}-{max(ratios):.3f}x", min(ratios) >= 0.995)
    slow = [c for c in decode_cases if c["sync_share"] < 0.75]
    if slow:
        least = min(slow, key=lambda c: c["ratio"])
        mean = math.exp(sum(math.log(c["ratio"]) for c in slow) / len(slow))
        report.row("  the same where synchronized is below 75% of HBM", ">= 1.10x",
                   f"mean {mean:.3f}x, least {least['ratio']:.3f}x ({least['name']}, batch {least['batch']}, context "
                   f"{least['context']})", least["ratio"] >= 1.1)
    return beside_pytorch(report, [c for c in cases if c["op"] == "prefill" and c["kv"] == "f16"])


def beside_pytorch(report, ours):
    """Prefill attention; the bar is for Llama-2-7B's heads and 2048 tokens."""
    if not is_importable("torch"):
        return report.note("PyTorch is not here: no comparison of prefill attention")
    path = report.out / "sdpa.json"
    text = report.run([sys.executable, "bench/torch_sdpa.py", "--json", path], timeout=90)
    if not text:
        return None
    (report.out / "sdpa.txt").write_text(text)
    theirs = json.loads(path.read_text())
    report.figures["torch_sdpa"] = theirs
    for case in ours:
        if case.get("way", WAY) != WAY:
            continue
        same = [t for t in theirs["cases"] if "us" in t and all(t[k] == case[k] for k in SDPA_KEYS)]
        if not same:
            continue
        best = min(same, key=lambda t: t["us"])
        others = [o for o in ours if o.get("way", WAY) != WAY and all(o[k] == case[k] for k in SDPA_KEYS)]
        other = "".join(f"; {o['way']} {o['us']:.0f} us" for o in others if o["way"] == "unified")
        ratio = best["us"] / case["us"]
        bar = case["tokens"] == 2048 and case["batch"] == 1 and case["head_dim"] == 128
        report.row(f"prefill attention {case['batch']} x {case['tokens']}, {case['heads']}/{case['kv_heads']} heads of "
                   f"{case['head_dim']}", "as fast as PyTorch" if bar else "-",
                   f"{ratio:.2f}x ({case['us']:.0f} us, {case['tflops']:.0f} TFLOP/s{other}; PyTorch {theirs['version']} "
                   f"{best['backend']} {best['us']:.0f} us)", ratio >= 1 if bar else None)
    return None


def peers(report):
    """Measures OPT-6.7B in transformers with the same prompt and as many steps."""
    prompt, steps, theirs = 128, 31, {}
    path = report.out / "hf.json"
    if not (is_importable("torch") and is_importable("transformers")):
        report.note("PyTorch or transformers is not here: no comparison with it")
    elif report.run([sys.executable, "bench/hf_decode.py", "--batches", "1,32", "--prompt-len", str(prompt), "--steps",
                     str(steps), "--json", path], timeout=100):
        theirs = json.loads(path.read_text())["step_ms"]
    for batch in (1, 32):
        result = report.bench("dummy:opt-6.7b", prompt, steps + 1, batch)
        if result is None:
            continue
        step, peer = result["decode_s"] / steps * 1e3, theirs.get(str(batch))
        ratio = f", transformers {peer:.1f} ms: {peer / step:.1f}x" if peer else ""
        report.figures[f"opt-6.7b batch {batch}"] = {"step_ms": step, "transformers_ms": peer}
        report.row(f"OPT-6.7B step, batch {batch}, prompt {prompt}", "several times faster", f"{step:.2f} ms{ratio}",
                   peer > 2 * step if peer else None)


def ablations(report):
    """Measures without one technique at a time, alternating in one process."""
    path = report.out / "ablation.json"
    text = report.run([report.bin / "gpu_ablation", "--models", "dummy:llama-2-7b", "--batches", "1,8", "--rounds", "3",
                       "--json", path])
    if text:
        print(text, flush=True)
        report.figures["ablation"] = json.loads(path.read_text())


def models(report, folder):
    """Trained models on CPU and GPU. The bars are for weights widened to F32: over quantized weights the CPU rounds
    activations to 8 bits as well, the GPU does not, so that texts part where two tokens are nearly as likely."""
    texts = sorted(pathlib.Path(folder).glob("*.txt"))

    def compare(path, name, bars):
        answers, perplexities = [], []
        for device in ("cpu", "cuda"):
            text = report.run([report.bin / "spillway", "run", path, "-p", "Once upon a time", "-n", "128", "--temp", "0",
                               "--ignore-end", "--device", device, "--json"])
            answers.append(json.loads(text)["ids"] if text else [])
            if texts:
                text = report.run([report.bin / "spillway", "eval", path, "--text", texts[0], "--ctx", "128", "--max-windows",
                                   "100", "--device", device, "--json"])
                perplexities.append(json.loads(text)["perplexity"] if text else float("nan"))
        same = next((i for i, pair in enumerate(zip(*answers)) if pair[0] != pair[1]), min(map(len, answers)))
        report.figures[name] = {"same_tokens": same, "perplexity": perplexities}
        report.row(f"{name}: greedy tokens, CPU and GPU", "128 the same" if bars else "-", f"{same} the same",
                   same == 128 if bars else None)
        if perplexities:
            difference = abs(perplexities[1] / perplexities[0] - 1)
            report.row(f"{name}: perplexity, CPU and GPU", "within 0.1%" if bars else "-",
                       f"{perplexities[0]:.4f}, {perplexities[1]:.4f}: {difference:.3%}",
                       difference <= 0.001 if bars else None)

    for path in sorted(pathlib.Path(folder).glob("*.gguf")):
        wide = report.out / f"{path.stem}.f32.gguf"
        if report.run([report.bin / "spillway", "convert", path, wide, "--type", "f32"]):
            compare(wide, f"{path.stem} in F32", True)
            wide.unlink()
        else:
            report.row(f"{path.stem} in F32", "128 the same", "not converted", False)
        if "f32" not in path.stem.lower():
            compare(path, f"{path.stem} as it is", False)


def is_importable(module):
    return importlib.util.find_spec(module) is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--out", default="build/gpu-report")
    parser.add_argument("--models", help="folder with *.gguf and *.txt to compare with the CPU")
    parser.add_argument("--only-models", action="store_true", help="that comparison alone, without the table of speeds")
    arguments = parser.parse_args()
    if arguments.only_models and not arguments.models:
        parser.error("--only-models needs --models FOLDER")
    report = Report(arguments)
    report.out.mkdir(parents=True, exist_ok=True)
    steps = []
    if not arguments.only_models:
        report.run([report.bin / "spillway", "profile", "dummy:llama-2-7b", "dummy:opt-6.7b", "--softmax", "--device", "cuda"])
        report.note("profiled")
        steps = [ceilings_and_linear, decode, attention, peers, ablations]
    if arguments.models:
        steps.append(functools.partial(models, folder=arguments.models))
    gpu = (report.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]) or "unknown").strip()
    for step in steps:
        name = getattr(step, "__name__", "models")
        try:
            step(report)
        except (KeyError, ValueError, AttributeError, ZeroDivisionError) as error:  # the other results still count
            report.row(name, "-", f"failed: {error!r}", False)
        report.note(name)
        report.save(gpu)  # keeps what was measured if the rest is cut off


if __name__ == "__main__":
    main()
