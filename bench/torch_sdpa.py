#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention for the prefill cases of gpu_attention_bench, every backend that it has.

usage: bench/torch_sdpa.py
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = [(1, 32, 128, 2048), (1, 32, 128, 8192), (4, 32, 128, 2048), (1, 32, 64, 2048), (1, 32, 64, 8192), (1, 16, 256, 2048)]
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


def main():
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for batch, heads, dim, tokens in CASES:
        q, k, v = (torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.float16) for _ in range(3))
        flops = 4 * batch * heads * dim * 0.5 * tokens * tokens
        for name, backend in BACKENDS.items():

            def attend():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

            try:
                if backend is None:
                    seconds = seconds_per_call(attend)
                else:
                    with sdpa_kernel(backend):
                        seconds = seconds_per_call(attend)
                print(f"{batch:3} x {heads} heads x {dim:3}, {tokens:5} tokens, {name:8} {seconds * 1e6:9.1f} us {flops / seconds * 1e-12:7.1f} TFLOP/s")
            except RuntimeError as error:
                print(f"{batch:3} x {heads} heads x {dim:3}, {tokens:5} tokens, {name:8} {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
