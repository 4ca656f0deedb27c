#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a decode step of OPT-6.7B with random weights in Hugging Face transformers: the peer of gpu_report.py."""
import argparse
import json
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--json", help="writes {step_ms: {batch: milliseconds}} to this file")
    arguments = parser.parse_args()
    config = transformers.OPTConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, ffn_dim=16384,
                                    word_embed_proj_dim=4096, vocab_size=50272, max_position_embeddings=2048)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.OPTForCausalLM(config).eval()
    step_ms = {}
    for batch in map(int, arguments.batches.split(",")):
        ids = torch.randint(10, 50000, (batch, arguments.prompt_len), device="cuda")
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
            token = ids[:, -1:]
            times = []
            for _ in range(arguments.steps):
                torch.cuda.synchronize()
                start = time.time()
                out = model(token, past_key_values=cache, use_cache=True)
                cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
                torch.cuda.synchronize()
                times.append(time.time() - start)
        step_ms[batch] = sorted(times)[len(times) // 2] * 1e3
        print(f"batch {batch}: {step_ms[batch]:.2f} ms", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"version": transformers.__version__, "prompt_len": arguments.prompt_len, "step_ms": step_ms}, file)


if __name__ == "__main__":
    main()
