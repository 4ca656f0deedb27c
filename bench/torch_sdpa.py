#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention for the prefill cases of gpu_attention_bench, every backend that it has."""
import argparse
import json

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# batch, heads, kv heads, head dim, tokens
CASES = [(1, 32, 32, 128, 2048), (1, 32, 32, 128, 8192), (4, 32, 32, 128, 2048), (1, 32, 8, 128, 8192), (1, 32, 32, 64, 2048),
         (1, 32, 32, 64, 8192), (1, 16, 16, 256, 2048)]
BACKENDS = {"default": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def seconds_per_call(call, calls=20):
    """Best of three rounds, by CUDA events."""
    for _ in range(3):
        call()
    best = float("inf")
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e-3 / calls)
    return best


def measure(backend, batch, heads, kv_heads, dim, tokens):
    q = torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(batch, kv_heads, tokens, dim, device="cuda", dtype=torch.float16) for _ in range(2))
    grouped = {} if heads == kv_heads else {"enable_gqa": True}

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)

    if backend is None:
        return seconds_per_call(attend)
    with sdpa_kernel(backend):
        return seconds_per_call(attend)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="writes every measurement to this file")
    arguments = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    rows = []
    for case in CASES:
        batch, heads, kv_heads, dim, tokens = case
        flops = 4 * batch * heads * dim * 0.5 * tokens * tokens
        for name, backend in BACKENDS.items():
            row = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "tokens": tokens, "backend": name}
            try:
                seconds = measure(backend, *case)
                row.update(us=seconds * 1e6, tflops=flops / seconds * 1e-12)
                figure = f"{row['us']:9.1f} us {row['tflops']:7.1f} TFLOP/s"
            except (RuntimeError, TypeError) as error:  # this backend does not support the case
                row["error"] = figure = str(error).splitlines()[0]
            rows.append(row)
            print(f"{batch:3} x {heads}/{kv_heads} heads x {dim:3}, {tokens:5} tokens, {name:8} {figure}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"version": torch.__version__, "cases": rows}, file, indent=1)


if __name__ == "__main__":
    main()
