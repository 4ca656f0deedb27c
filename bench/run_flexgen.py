#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FlexGen's own benchmark where there is no network: its source folder, random weights, a tokenizer that makes prompts of any length.

    bench/run_flexgen.py --source FOLDER --gpu-memory-gib 16 --json OUT -- --model facebook/opt-30b --percent 20 80 0 100 0 100 ...

What stands behind -- goes to FlexGen. It has no budget for the GPU's memory: PyTorch is told to refuse more. Without
--warm-up its first, short generation is left out: it takes minutes where weights come over the bus.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile


class AnyPrompt:
    """Replaces a tokenizer that pads to max_length: FlexGen needs nothing else of it, since random weights' text is not shown."""

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def __call__(self, prompts, padding=None, max_length=1):
        return argparse.Namespace(input_ids=[[2 + i % 1000 for i in range(max_length)] for _ in prompts])


def find_package(source):
    """The name of FlexGen's package in this version."""
    for name in ("flexllmgen", "flexgen"):
        if os.path.exists(os.path.join(source, name, "flex_opt.py")):
            return name
    sys.exit(f"{source} has neither flexllmgen/flex_opt.py nor flexgen/flex_opt.py; give FlexGen's source folder")


def limit_gpu_memory(gib):
    torch = importlib.import_module("torch")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total))


def leave_out_warm_up(model):
    generate = model.generate

    def without_warm_up(self, inputs, max_new_tokens=32, **options):
        return None if max_new_tokens == 1 else generate(self, inputs, max_new_tokens=max_new_tokens, **options)

    model.generate = without_warm_up


def run(arguments, options):
    sys.path.insert(0, arguments.source)
    package = find_package(arguments.source)
    if arguments.gpu_memory_gib:
        limit_gpu_memory(arguments.gpu_memory_gib)
    program = importlib.import_module(f"{package}.flex_opt")
    program.AutoTokenizer = AnyPrompt
    if not arguments.warm_up:
        leave_out_warm_up(program.OptLM)
    parser = argparse.ArgumentParser()
    program.add_parser_arguments(parser)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        chosen = parser.parse_args([*options, "--path", "_DUMMY_", "--offload-dir", folder, "--log-file", log])
        (getattr(program, "run_flexllmgen", None) or program.run_flexgen)(chosen)
        with open(log) as lines:
            return chosen, lines.read()


def read_log(text):
    """FlexGen's fields are "name: number unit", separated by tabs and lines."""
    fields = {}
    for field in text.replace("\n", "\t").split("\t"):
        name, _, value = field.partition(": ")
        fields[name.strip()] = value.split()[0] if value else ""
    return fields


def main():
    own, options = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--gpu-memory-gib", type=float, default=0, help="0: all there is")
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args(own)
    chosen, text = run(arguments, options)
    fields = read_log(text)
    result = {
        "prefill_s": float(fields["prefill latency"]), "decode_s": float(fields["decode latency"]),
        "prefill_tokens_per_s": float(fields["prefill throughput"]), "decode_tokens_per_s": float(fields["decode throughput"]),
        "generated_tokens_per_s": float(fields["total throughput"]), "peak_gpu_gib": float(fields["peak gpu mem"]),
        "batch": chosen.gpu_batch_size * chosen.num_gpu_batches, "projected": fields["projected"] == "True",
    }  # fmt: skip
    with open(arguments.json, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
