#!/usr/bin/env python3
"""Milliseconds of a decode step of OPT-6.7B with random weights in Hugging Face transformers: the peer of gpu_report.py."""
import argparse
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    config = transformers.OPTConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, ffn_dim=16384,
                                    word_embed_proj_dim=4096, vocab_size=50272, max_position_embeddings=2048)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.OPTForCausalLM(config).eval()
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
        print(f"batch {batch}: {sorted(times)[len(times) // 2] * 1e3:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
