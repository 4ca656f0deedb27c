# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny Llama with a tokenizer, as a Hugging Face folder and as a GGUF file, with the standard library alone.

The weights are pseudo-random and the same everywhere. The head makes printable text likely and control tokens never the
most likely ones, so greedy answers are readable and end only where they are told to.
"""

import array
import dataclasses
import json
import math
import random
import struct
import sys

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2
HEAD_DIM = HIDDEN // HEADS
CONTEXT = 512
ROPE_THETA = 10000.0
NORM_EPS = 1e-5

MERGES = [
    pair.split()
    for pair in (
        "Ġ t,h e,Ġt he,i n,e r,Ġ a,o n,r e,Ġ s,Ġ w,o u,a t,n d,Ġa nd,i s,Ġ o,Ġo f,e n,i t,o r,e s,a n,in g,Ġ c,Ġ b,Ġ f,"
        "a r,e d,l l,Ġt o,i c,o m,Ġ d,Ġs a,Ġ h,Ġh e,Ã ©,Ġ 1,t h,r i,ri v"
    ).split(",")
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_letters():
    """GPT-2's letter for each byte: printable ones stand for themselves, the others get the letters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        letters.setdefault(byte, chr(0x100 + len(letters) - len(plain)))
    return [letters[byte] for byte in range(256)]


TOKENS = byte_letters() + ["".join(pair) for pair in MERGES] + SPECIAL  # a byte's id is its value
VOCABULARY = len(TOKENS)
BOS = TOKENS.index("<|endoftext|>")
IM_START = TOKENS.index("<|im_start|>")
EOS = TOKENS.index("<|im_end|>")


@dataclasses.dataclass
class Options:
    """The ways in which a model may differ from the plain one."""

    context: int = CONTEXT
    add_bos: bool = True
    name: str = "tiny"
    embedding_rows: int = VOCABULARY  # with fewer rows than tokens, model and tokenizer do not belong together
    damage: float | None = None  # NaN or infinity: one value of the final norm becomes this
    factors: dict = dataclasses.field(default_factory=dict)  # factors of tensors, by their Hugging Face names; may be NaN
    metadata: dict = dataclasses.field(default_factory=dict)  # keys of the GGUF file, besides its own
    permute: bool = True  # False writes a wrong GGUF: rows of q and k in the folder's order


class Weights:
    """Draws uniform values of a given standard deviation; random() is the same in every Python."""

    def __init__(self):
        self.random = random.Random(20240229).random

    def draw(self, rows, columns, deviation):
        width = 2 * math.sqrt(3) * deviation
        return [[width * (self.random() - 0.5) for _ in range(columns)] for _ in range(rows)]

    def norm(self):
        return [1 + value for value in self.draw(1, HIDDEN, 0.2)[0]]


def is_likely(token):
    letters = TOKENS[token].replace("Ġ", " ")
    return TOKENS[token] not in SPECIAL and (letters.isascii() and letters.isprintable())


def tensors(options):
    """[(Hugging Face name, rows)]: rows is a list of lists, or of numbers for a vector."""
    weights = Weights()
    kv = KV_HEADS * HEAD_DIM
    made = [("model.embed_tokens.weight", weights.draw(VOCABULARY, HIDDEN, 1.0))]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made.append((at + "input_layernorm.weight", weights.norm()))
        for name, rows, columns in (
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", kv, HIDDEN),
            ("self_attn.v_proj", kv, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", FFN, HIDDEN),
            ("mlp.up_proj", FFN, HIDDEN),
            ("mlp.down_proj", HIDDEN, FFN),
        ):
            made.append((f"{at}{name}.weight", weights.draw(rows, columns, 1.5 / math.sqrt(columns))))
        made.append((at + "post_attention_layernorm.weight", weights.norm()))
    final_norm = weights.norm()
    if options.damage is not None:
        final_norm[7] = options.damage
    made.append(("model.norm.weight", final_norm))
    head = weights.draw(VOCABULARY, HIDDEN, 0.4)
    for token, row in enumerate(head):
        if not is_likely(token):
            head[token] = [0.1 * value for value in row]
    made.append(("lm_head.weight", head))
    for at, (name, rows) in enumerate(made):
        if name in options.factors:
            made[at] = (name, [[value * options.factors[name] for value in row] for row in rows])
    cut = {"model.embed_tokens.weight", "lm_head.weight"}
    return [(name, rows[: options.embedding_rows] if name in cut else rows) for name, rows in made]


def shape_of(rows):
    return [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]


def f32_bytes(rows):
    values = array.array("f", (value for row in rows for value in row) if isinstance(rows[0], list) else rows)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def config_json(options):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": options.embedding_rows, "max_position_embeddings": options.context, "rms_norm_eps": NORM_EPS,
        "hidden_act": "silu", "rope_theta": ROPE_THETA, "tie_word_embeddings": False, "torch_dtype": "float32",
        "bos_token_id": BOS, "eos_token_id": EOS,
    }  # fmt: skip


def tokenizer_json():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": TOKENS.index(text), "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for text in SPECIAL
    ]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {text: id for id, text in enumerate(TOKENS) if text not in SPECIAL},
            "merges": [" ".join(pair) for pair in MERGES],
        },
    }  # fmt: skip


def tokenizer_config_json(options):
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": options.add_bos, "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    } | ({"bos_token": "<|endoftext|>"} if options.add_bos else {})  # fmt: skip


def write_safetensors(path, named):
    header, data = {}, bytearray()
    for name, rows in named:
        content = f32_bytes(rows)
        header[name] = {"dtype": "F32", "shape": shape_of(rows), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(folder, shards=1, **changes):
    """A Hugging Face folder, in `shards` safetensors files; returns its path."""
    options = Options(**changes)
    folder.mkdir(parents=True)
    named = tensors(options)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", named)
    else:
        names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, name in enumerate(names):
            write_safetensors(folder / name, named[i::shards])
        index = {"metadata": {}, "weight_map": {name: names[i % shards] for i, (name, _) in enumerate(named)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config_json(options)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config_json(options)))
    return folder


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_ALIGNMENT = 32


def gguf_name(name):
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def interleaved(rows):
    """The rows of each head as rotary pairs side by side: a folder has row i's partner half a head further on."""
    half = HEAD_DIM // 2
    return [
        rows[head + (i % 2) * half + i // 2] for head in range(0, len(rows), HEAD_DIM) for i in range(HEAD_DIM)
    ]  # fmt: skip


def gguf_string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value):
    """The type's number and the value: bool, unsigned, float, string, or a list of one of them."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    kind = gguf_value(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(gguf_value(item)[1] for item in value)


def gguf_metadata(options):
    normal, control = 1, 3
    return {
        "general.architecture": "llama", "general.name": options.name, "llama.block_count": LAYERS,
        "llama.context_length": options.context, "llama.embedding_length": HIDDEN, "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": NORM_EPS, "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": ROPE_THETA, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [control if text in SPECIAL else normal for text in TOKENS],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES], "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": options.add_bos, "tokenizer.chat_template": CHAT_TEMPLATE,
    } | ({"tokenizer.ggml.bos_token_id": BOS} if options.add_bos else {})  # fmt: skip


def write_gguf_file(path, metadata, named):
    header = b"GGUF" + struct.pack("<IQQ", 3, len(named), len(metadata))
    for key, value in metadata.items():
        kind, content = gguf_value(value)
        header += gguf_string(key) + struct.pack("<I", kind) + content
    data = bytearray()
    for name, rows in named:
        shape = shape_of(rows)
        header += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data))
        data += f32_bytes(rows)
        data += bytes(-len(data) % GGUF_ALIGNMENT)
    path.write_bytes(header + bytes(-len(header) % GGUF_ALIGNMENT) + data)


def write_gguf(path, shards=1, **changes):
    """A GGUF file; returns its path. With shards, `path` is without ending and the first file's path is returned."""
    options = Options(**changes)
    named = []
    for name, rows in tensors(options):
        if options.permute and ("q_proj" in name or "k_proj" in name):
            rows = interleaved(rows)
        named.append((gguf_name(name), rows))
    metadata = gguf_metadata(options) | options.metadata
    if shards == 1:
        write_gguf_file(path, metadata, named)
        return path
    paths = [path.with_name(f"{path.name}-{i + 1:05}-of-{shards:05}.gguf") for i in range(shards)]
    for i, shard in enumerate(paths):
        split = {"split.no": i, "split.count": shards, "split.tensors.count": len(named)}
        write_gguf_file(shard, (metadata if i == 0 else {}) | split, named[i::shards])
    return paths[0]
