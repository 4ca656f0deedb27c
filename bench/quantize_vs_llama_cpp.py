#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of quantized weights beside llama-quantize's, the types that both choose, and whether llama.cpp reads what we write.

    bench/quantize_vs_llama_cpp.py --llama-cpp FOLDER [--load MODEL ...] [--rows 512] [--binary build/release/bin/spillway]
                                   [-o bench/results/NAME.json]

FOLDER has llama-quantize and llama-simple. Random networks with matrices of 4,096 columns (gaussian, Laplace, Student's t
with 4 degrees of freedom) are quantized by both; the ratio is that of the errors (root mean square, against the source), by
type. Networks of other shapes (80 layers with shared values, tied heads, odd widths) show that both choose the same types.
Each --load MODEL, a GGUF or a Hugging Face folder with a tokenizer, is converted to every type, and continued by both
programs; where the texts differ, once more with the quantized weights decoded to F32. Needs numpy and gguf from PyPI. Exit
code 1 where a ratio is above 1.02, a type differs, llama.cpp does not load a file, or even decoded weights give another text.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

import gguf
import keep_result
import numpy

TYPES = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0"]
LIMIT = 1.02
DISTRIBUTIONS = {
    "gaussian": lambda random, shape: random.standard_normal(shape),
    "laplace": lambda random, shape: random.laplace(size=shape),
    "student_t4": lambda random, shape: random.standard_t(4, shape),
}
# layers, hidden, heads, kv_heads, ffn, tied
SHAPES = {
    "1 layer": (1, 256, 4, 2, 512, False),
    "tied": (3, 256, 4, 4, 512, True),
    "24 layers": (24, 256, 4, 4, 256, False),
    "33 layers, tied": (33, 256, 4, 4, 256, True),
    "80 layers, shared values": (80, 256, 8, 1, 256, False),
    "80 layers": (80, 256, 4, 4, 256, False),
    "width 576": (4, 576, 9, 3, 1536, True),
    "width 96 and 160": (4, 96, 3, 3, 160, False),
    "width 264 on the way down": (9, 256, 4, 4, 264, False),
}
PROMPT = "Once upon a time"


def run(command):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout.decode(errors="replace")


def write_network(path, shape, draw, rows=None):
    """A GGUF in F32; with `rows`, matrices have that many, where the network does not prescribe another number."""
    layers, hidden, heads, kv_heads, ffn, tied = shape
    head_dim = hidden // heads if rows is None else rows // heads
    letters = ["▁"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + letters
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(letters))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name, rows, columns):
        writer.add_tensor(name, (draw((rows, columns)) / numpy.sqrt(columns)).astype(numpy.float32))

    add("token_embd.weight", len(tokens), hidden)
    if not tied:
        add("output.weight", len(tokens), hidden)
    writer.add_tensor("output_norm.weight", numpy.ones(hidden, numpy.float32))
    for layer in range(layers):
        at = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}{name}.weight", numpy.ones(hidden, numpy.float32))
        add(at + "attn_q.weight", heads * head_dim, hidden)
        add(at + "attn_k.weight", kv_heads * head_dim, hidden)
        add(at + "attn_v.weight", kv_heads * head_dim, hidden)
        add(at + "attn_output.weight", hidden, heads * head_dim)
        add(at + "ffn_gate.weight", ffn, hidden)
        add(at + "ffn_up.weight", ffn, hidden)
        add(at + "ffn_down.weight", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def both(args, source, name, folder):
    """The tensors of a file quantized to type `name` by Spillway and by llama-quantize (None if it refuses)."""
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    run([args.binary, "convert", source, ours, "--type", name.lower(), "--json"])
    done = subprocess.run([args.llama_cpp / "llama-quantize", source, theirs, name], capture_output=True, check=False)
    # llama-quantize refuses some widths, for which Spillway stores F16.
    return tensors_of(ours), tensors_of(theirs) if done.returncode == 0 else None


def differing_types(ours, theirs):
    """{tensor: both types}"""
    return {
        name: f"{ours[name].tensor_type.name if name in ours else None}, llama-quantize {tensor.tensor_type.name}"
        for name, tensor in theirs.items()
        if name not in ours or ours[name].tensor_type != tensor.tensor_type
    }


def values_of(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64)


def squared_error(tensor, source):
    return float(((values_of(tensor) - values_of(source)) ** 2).sum())


def compare_errors(args, folder):
    """{type: {distribution: ...}}, over all matrices of 4,096 columns that both store in that type."""
    figures, differences = {}, {}
    for number, (distribution, draw) in enumerate(DISTRIBUTIONS.items()):
        # The odd width makes fallback types appear.
        for hidden in (4096, 4128):
            random = numpy.random.default_rng(20261116 + number)
            source = folder / "source.gguf"
            write_network(source, (1, hidden, 8, 8, args.rows, False), lambda shape: draw(random, shape), args.rows)
            plain = tensors_of(source)
            for name in TYPES:
                ours, theirs = both(args, source, name, folder)
                if theirs is None:
                    sys.exit(f"llama-quantize does not make {name} of a network of width {hidden}")
                if different := differing_types(ours, theirs):
                    differences[f"{name}, {hidden} columns"] = different
                for key, tensor in theirs.items():
                    kind = tensor.tensor_type.name
                    if tensor.shape[0] != hidden or key not in ours or ours[key].tensor_type.name != kind or kind in ("F32", "F16"):
                        continue
                    entry = figures.setdefault(kind, {}).setdefault(distribution, {"ours": 0.0, "theirs": 0.0, "elements": 0})
                    entry["ours"] += squared_error(ours[key], plain[key])
                    entry["theirs"] += squared_error(tensor, plain[key])
                    entry["elements"] += int(tensor.n_elements)
    for distributions in figures.values():
        for entry in distributions.values():
            elements = entry.pop("elements")
            entry["ours"], entry["theirs"] = ((entry[key] / elements) ** 0.5 for key in ("ours", "theirs"))
            entry["ratio"] = round(entry["ours"] / entry["theirs"], 4)
    return figures, differences


def compare_types(args, folder):
    """({shape and type: {tensor: both types}} where they differ, how many were compared, what llama-quantize refused)"""
    differences, compared, refused = {}, 0, []
    random = numpy.random.default_rng(1)
    for title, shape in SHAPES.items():
        source = folder / "shape.gguf"
        write_network(source, shape, random.standard_normal)
        for name in TYPES:
            ours, theirs = both(args, source, name, folder)
            if theirs is None:
                refused.append(f"{title}, {name}")
                continue
            compared += 1
            if different := differing_types(ours, theirs):
                differences[f"{title}, {name}"] = different
    return differences, compared, refused


def continue_text(args, path):
    """The texts with which both programs continue the prompt."""
    simple = run([args.llama_cpp / "llama-simple", "-m", path, "-n", 32, "-ngl", 0, PROMPT])
    theirs = re.sub(r"^\s*<[^>]*>", "", simple.strip()).strip()
    ours = json.loads(run([args.binary, "run", path, "-p", PROMPT, "-n", 32, "--temp", 0, "--json"]))["text"]
    return (PROMPT + ours).strip(), theirs


def are_alike(ours, theirs):
    """Compares two texts up to the shorter one's end: llama.cpp stops after 32 tokens or an end token."""
    return ours[: len(theirs)] == theirs[: len(ours)]


def alike_when_decoded(args, path, folder):
    """Whether both agree with the weights decoded to F32. For quantized weights each rounds activations to 8 bits in its own way, for F32 neither does."""
    decoded = folder / "decoded.gguf"
    run([args.binary, "convert", path, decoded, "--type", "f32"])
    return are_alike(*continue_text(args, decoded))


def compare_loading(args, folder):
    found = {}
    for model in args.load:
        title = pathlib.Path(model).name
        for name in ["F32", "F16", *TYPES]:
            path = folder / "loaded.gguf"
            report = json.loads(run([args.binary, "convert", model, path, "--type", name.lower(), "--json"]))
            ours, theirs = continue_text(args, path)
            alike = are_alike(ours, theirs)
            found.setdefault(title, {})[name] = {
                "tensors": report["tensors"], "fallbacks": len(report["fallbacks"]), "notes": report["notes"],
                "same_text": alike, "same_characters": len(os.path.commonprefix([ours, theirs])),
                "same_text_decoded": alike or alike_when_decoded(args, path, folder), "llama_cpp_text": theirs,
            }  # fmt: skip
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=pathlib.Path, required=True)
    parser.add_argument("--load", action="append", default=[])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--binary", default="build/release/bin/spillway")
    parser.add_argument("--llama-cpp-version", default="unknown")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        figures, differences = compare_errors(args, folder)
        different_shapes, compared, refused = compare_types(args, folder)
        differences |= different_shapes
        loaded = compare_loading(args, folder)

    print(f"{'type':6}" + "".join(f"{name:>34}" for name in DISTRIBUTIONS))
    worst = 0.0
    for kind in sorted(figures):
        line = f"{kind:6}"
        for distribution in DISTRIBUTIONS:
            entry = figures[kind].get(distribution)
            if entry is None:
                line += f"{'':>34}"
                continue
            worst = max(worst, entry["ratio"])
            line += f"{entry['ours']:>12.3e} /{entry['theirs']:>10.3e} ={entry['ratio']:>7.4f}"
        print(line)
    print(f"worst ratio {worst:.4f} (at most {LIMIT}); {compared} networks' types compared, {len(differences)} differ")
    for title, different in differences.items():
        print(f"  {title}: {different}")
    for title, types in loaded.items():
        for kind, entry in types.items():
            how = "same text" if entry["same_text"] else "same text once decoded to F32" if entry["same_text_decoded"] else "DIFFERENT TEXT"
            print(f"{title} as {kind}: {how} ({entry['same_characters']} characters)")
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": f"bench/quantize_vs_llama_cpp.py --llama-cpp FOLDER --rows {args.rows}"
        + "".join(f" --load {pathlib.Path(model).name}" for model in args.load),
        "llama_cpp": args.llama_cpp_version,
        "root_mean_square_errors": figures,
        "worst_ratio": worst,
        "choices_compared": compared + len(DISTRIBUTIONS) * 2 * len(TYPES),
        "different_choices": differences,
        "refused_by_llama_quantize": refused,
        "continued_by_both": loaded,
    }
    keep_result.keep(result, args.output)
    good = worst <= LIMIT and not differences and all(e["same_text_decoded"] for types in loaded.values() for e in types.values())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
