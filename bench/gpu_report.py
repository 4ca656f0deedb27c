#!/usr/bin/env python3
"""Measures the table of what the GPU should reach, beside its ceilings, and prints it. Called by gpu_report.sh."""
import argparse
import datetime
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

LLAMA = {"layers": 32, "hidden": 4096, "kv_bytes_per_token": 2 * 32 * 4096 * 2, "embedding": 32000 * 4096 * 2,
         "multiplied": 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096}


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

    def run(self, command, timeout=120, environment=None):
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                              env={**os.environ, **(environment or {})})
        if done.returncode != 0:
            self.note(f"FAILED ({done.returncode}): {' '.join(map(str, command))}: {done.stderr.strip()[-300:]}")
            return None
        return done.stdout

    def bench(self, model, prompt, gen, batch=1, environment=None, repeat=3):
        text = self.run([self.bin / "spillway", "bench", model, "--device", "cuda", "--prompt-len", str(prompt),
                         "--gen-len", str(gen), "--batch", str(batch), "--repeat", str(repeat), "--json"],
                        environment=environment)
        return json.loads(text) if text else None


def ceilings_and_linear(report):
    path = report.out / "linear.json"
    text = report.run([report.bin / "gpu_linear_bench", "--json", path], timeout=120)
    if not text:
        return
    (report.out / "linear.txt").write_text(text)
    found = re.search(r"HBM read ([\d.]+) GB/s, cuBLASLt bf16 \S+ ([\d.]+) TFLOP/s", text)
    report.hbm, report.peak = float(found.group(1)) * 1e9, float(found.group(2)) * 1e12
    report.figures["hbm_read_gb_per_s"], report.figures["cublaslt_bf16_tflops"] = report.hbm / 1e9, report.peak / 1e12
    print(f"ceilings: HBM read {report.hbm / 1e9:.0f} GB/s, cuBLASLt bf16 {report.peak / 1e12:.0f} TFLOP/s")
    print(f"  {'what':<58} {'target':<26} figure")
    ratios = []
    for line in text.splitlines():
        cells = re.match(r"^(\S.*?)\s+(\d+) \|.*\|\s+([\d.]+)\s+([\d.]+)$", line)
        if cells:
            ratios.append((cells.group(1), int(cells.group(2)), float(cells.group(3)), float(cells.group(4))))
    small = [r[2] for r in ratios if r[1] <= 8]
    if small:
        mean = math.exp(sum(map(math.log, small)) / len(small))
        worst = min(ratios, key=lambda r: r[2])
        report.row("linear, 1-8 tokens, beside cuBLASLt's best (geo. mean)", ">= 1.15", f"{mean:.3f}", mean >= 1.15)
        report.row("linear, 1-64 tokens, worst case", ">= 0.97",
                   f"{worst[2]:.3f} ({worst[0]}, {worst[1]} tokens)", worst[2] >= 0.97)


def decode(report):
    def share(result, context):
        step = result["decode_s"] / (result["gen_len"] - 1)
        bytes_each = {"Q4_0": 18 / 32, "G4": 36 / 64, "Q4_K": 144 / 256, "Q8_0": 34 / 32}.get(result["weight_type"], 2)
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
    for model in ("q4_k", "q8_0"):
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
    if text:
        (report.out / "attention.txt").write_text(text)
        rows = []
        for line in text.splitlines():
            cells = re.match(r"^f16\s+(\S+)\s+(\d+)\s+(\d+)\s+([\d.]+) \|\s+([\d.]+)\s+([\d.]+)% \|\s+([\d.]+)\s+([\d.]+)%",
                             line)
            if cells:
                rows.append((cells.group(1), float(cells.group(4)), float(cells.group(6)), float(cells.group(8)),
                             float(cells.group(7)) / float(cells.group(5))))
        for heads in sorted({r[0] for r in rows}):
            large = [r for r in rows if r[0] == heads and r[1] >= 256]
            if large:
                best = [max(r[2], r[3]) for r in large]
                report.row(f"decode attention F16 {heads}, KV >= 256 MB", ">= 80% of HBM",
                           f"{min(best):.0f}-{max(best):.0f}%", min(best) >= 80)
                ratio = [r[4] for r in large]
                report.row(f"  unified maximum against synchronized, {heads}", "never slower",
                           f"{min(ratio):.3f}-{max(ratio):.3f}x", min(ratio) >= 0.995)
        report.figures["attention"] = text.splitlines()
    sdpa = report.run([sys.executable, "bench/torch_sdpa.py"], timeout=60)
    if sdpa:
        (report.out / "sdpa.txt").write_text(sdpa)
        print("\n".join("  torch: " + line for line in sdpa.splitlines()))
        report.figures["torch_sdpa"] = sdpa.splitlines()


def peers(report):
    text = report.run([sys.executable, "bench/hf_decode.py", "--batches", "1,32"], timeout=100)
    theirs = {}
    if text:
        for batch, step in re.findall(r"batch (\d+): ([\d.]+) ms", text):
            theirs[int(batch)] = float(step)
    for batch in (1, 32):
        result = report.bench("dummy:opt-6.7b", 128, 32, batch)
        if result is None:
            continue
        step = result["decode_s"] / 31 * 1e3
        ratio = f", transformers {theirs[batch]:.1f} ms: {theirs[batch] / step:.1f}x" if batch in theirs else ""
        report.figures[f"opt-6.7b batch {batch}"] = {"step_ms": step, "transformers_ms": theirs.get(batch)}
        report.row(f"OPT-6.7B step, batch {batch}", "several times faster", f"{step:.2f} ms{ratio}",
                   theirs[batch] > 2 * step if batch in theirs else None)


def ablations(report):
    print("  ablation, 7B F16, context 64-128: tok/s at batch 1 / 8")
    for name, environment in (
            ("all of it", {}), ("without CUDA graphs", {"SPILLWAY_CUDA_WITHOUT": "graphs"}),
            ("without overlapping launches", {"SPILLWAY_NO_OVERLAPPING_LAUNCHES": "1"}),
            ("without GEMV (flat GEMM from 1 token)", {"SPILLWAY_CUDA_WITHOUT": "gemv"}),
            ("without flat GEMM (library)", {"SPILLWAY_CUDA_WITHOUT": "flat"}),
            ("library GEMM only", {"SPILLWAY_CUDA_WITHOUT": "gemv,flat"}),
            ("without unified maximum", {"SPILLWAY_CUDA_WITHOUT": "unified"})):
        speeds = []
        for batch in (1, 8):
            result = report.bench("dummy:llama-2-7b", 64, 64, batch, environment, repeat=2)
            speeds.append(result["decode_tokens_per_s"] if result else float("nan"))
        report.figures[f"ablation: {name}"] = speeds
        print(f"    {name:<44} {speeds[0]:8.1f} {speeds[1]:8.1f}", flush=True)


def models(report, folder):
    texts = sorted(pathlib.Path(folder).glob("*.txt"))
    for path in sorted(pathlib.Path(folder).glob("*.gguf")):
        answers, perplexities = [], []
        for device in ("cpu", "cuda"):
            text = report.run([report.bin / "spillway", "run", path, "-p", "Once upon a time", "-n", "200", "--device",
                               device, "--json"])
            answers.append(json.loads(text).get("ids") if text else device)
            if texts:
                text = report.run([report.bin / "spillway", "eval", path, "--text", texts[0], "--ctx", "128", "--device",
                                   device, "--json"])
                perplexities.append(json.loads(text)["perplexity"] if text else float("nan"))
        same = answers[0] == answers[1]
        report.row(f"{path.name}: 200 greedy tokens, CPU and GPU", "the same", "the same" if same else "differ", same)
        if perplexities:
            difference = abs(perplexities[1] / perplexities[0] - 1)
            report.row(f"{path.name}: perplexity, CPU and GPU", "within 0.1%",
                       f"{perplexities[0]:.4f}, {perplexities[1]:.4f}: {difference:.3%}", difference <= 0.001)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--out", default="build/gpu-report")
    parser.add_argument("--models", help="folder with *.gguf and *.txt to compare with the CPU")
    arguments = parser.parse_args()
    report = Report(arguments)
    report.out.mkdir(parents=True, exist_ok=True)
    report.run([report.bin / "spillway", "profile", "dummy:llama-2-7b", "dummy:opt-6.7b", "--softmax", "--device", "cuda"])
    report.note("profiled")
    for step in (ceilings_and_linear, decode, attention, peers, ablations):
        step(report)
        report.note(step.__name__)
    if arguments.models:
        models(report, arguments.models)
    gpu = report.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]) or "unknown"
    (report.out / "gpu_report.json").write_text(json.dumps(
        {"date": datetime.date.today().isoformat(), "machine": gpu.strip(), "command": "bench/gpu_report.sh",
         "figures": report.figures, "table": report.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
