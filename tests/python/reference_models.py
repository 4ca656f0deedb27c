# SPDX-License-Identifier: Apache-2.0
"""Small random models of every kind, and transformers' stored results for them, without torch or transformers.

The weights are made here, bit by bit the same on every machine. references/ has the rest: config.json and the names and
shapes of the tensors as transformers saves them, and the logits it computes (make_references.py wrote it all).
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import struct

import numpy

STORED = pathlib.Path(__file__).resolve().parent / "references"
REFERENCES = STORED / "references.json"
LOGITS = STORED / "logits.npz"

GREEDY_TOKENS = 16
PROMPT_TOKENS = 24
LONG_PROMPT_TOKENS = 100
LONG_PROMPT_CASE = "llama gqa"
FP32_TOLERANCE = 1e-3
VOCABULARY = 160
ONE_FILE = "50GB"


@dataclasses.dataclass
class Case:
    """One model: its transformers configuration and how it is saved."""

    family: str
    config: dict
    dtype: str = "float32"
    # Against a float32 reference with the same stored weights, so storing in 16 bits costs the weights nothing; the
    # looser bounds leave room for 16-bit activations and KV.
    tolerance: float = FP32_TOLERANCE
    shard_size: str = ONE_FILE
    # Write config.json as releases before transformers 5 did: torch_dtype, rope_theta and rope_scaling at the top.
    old_config: bool = False

    def hash(self):
        """A hash of all that the reference depends on."""
        described = json.dumps([self.family, self.config, self.dtype, self.shard_size, self.old_config], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def decided(self, gaps):
        """How many greedy tokens cannot change within the tolerated error, by the gaps between the best two logits at each."""
        return next((i for i, gap in enumerate(gaps) if gap < 2 * self.tolerance), len(gaps))


def opt(**overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, ffn_dim=144, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=128, word_embed_proj_dim=64, dropout=0.0, activation_function="relu",
        pad_token_id=1, bos_token_id=2, eos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    return config | overrides


def llama(**overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, rms_norm_eps=1e-5, hidden_act="silu",
        bos_token_id=1, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    return config | overrides


def mistral(**overrides):
    return llama(num_key_value_heads=2, sliding_window=None, head_dim=16) | overrides


def qwen2(**overrides):
    return llama(num_key_value_heads=2, use_sliding_window=False) | overrides


def qwen3(**overrides):
    return qwen2(head_dim=16) | overrides


def neox(share=0.25, **overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=128, layer_norm_eps=1e-5, hidden_act="gelu", use_parallel_residual=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share),
        bos_token_id=0, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    return config | overrides


def stablelm(share=0.25, **overrides):
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share)
    return llama(num_key_value_heads=2, layer_norm_eps=1e-5, rope_parameters=rope) | overrides


def gpt2(**overrides):
    config = dict(
        vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=128, activation_function="gelu_new",
        bos_token_id=0, eos_token_id=None, pad_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return config | overrides


def gptj(**overrides):
    return gpt2(rotary_dim=8, tie_word_embeddings=False) | overrides


def phi3(**overrides):
    return llama(num_key_value_heads=2, sliding_window=None, original_max_position_embeddings=128) | overrides


def smollm3(**overrides):
    config = dict(num_hidden_layers=5, num_key_value_heads=2, no_rope_layer_interval=4, tie_word_embeddings=True)
    return llama(**config) | overrides


def falcon(**overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128,
        bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return config | overrides


def falcon_40b(**overrides):
    return falcon(new_decoder_architecture=True, num_kv_heads=2) | overrides


def phi(share=0.5, **overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=None, pad_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share),
    )  # fmt: skip
    return config | overrides


def cohere(**overrides):
    return llama(layer_norm_eps=1e-5, logit_scale=0.25, tie_word_embeddings=True) | overrides


def glm(share=0.5, **overrides):
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=share)
    return llama(num_key_value_heads=2, head_dim=16, rms_norm_eps=1.5625e-7, rope_parameters=rope) | overrides


def granite(**overrides):
    config = dict(embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=2.5)
    return llama(num_key_value_heads=2, tie_word_embeddings=True) | config | overrides


def gemma(**overrides):
    config = dict(head_dim=32, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6)
    return llama(num_key_value_heads=1, tie_word_embeddings=True) | config | overrides


def gemma3(**overrides):
    ropes = dict(
        full_attention=dict(rope_type="default", rope_theta=1000000.0), sliding_attention=dict(rope_type="default", rope_theta=5000.0)
    )  # fmt: skip
    config = dict(num_hidden_layers=7, sliding_window=8, query_pre_attn_scalar=24, rope_parameters=ropes)
    return gemma(num_key_value_heads=2) | config | overrides


def glm4(**overrides):
    return llama(num_key_value_heads=2, head_dim=16, attention_bias=True) | overrides


GEMMA3_LINEAR = dict(
    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0), sliding_attention=dict(rope_type="default", rope_theta=10000.0)
)  # fmt: skip
LINEAR_ROPE = dict(rope_type="linear", factor=4.0, rope_theta=10000.0)
LLAMA3_ROPE = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32,
    rope_theta=5000.0,
)  # fmt: skip
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)


def longrope(share=1.0, **overrides):
    pairs = int(16 * share) // 2
    return dict(
        rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=share,
        short_factor=[1.0 + 0.25 * i for i in range(pairs)], long_factor=[2.0 + 1.5 * i for i in range(pairs)],
    ) | overrides  # fmt: skip



CASES = {
    "opt pre-norm": Case("OPT", opt()),
    "opt post-norm": Case("OPT", opt(do_layer_norm_before=False)),
    "opt 350m-like": Case("OPT", opt(do_layer_norm_before=False, word_embed_proj_dim=32)),
    "opt projected, pre-norm": Case("OPT", opt(word_embed_proj_dim=32)),
    "opt without bias": Case("OPT", opt(enable_bias=False)),
    "opt without norm weights": Case("OPT", opt(layer_norm_elementwise_affine=False)),
    "opt galactica-like": Case("OPT", opt(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu")),
    "opt untied": Case("OPT", opt(tie_word_embeddings=False)),
    "opt one head": Case("OPT", opt(num_attention_heads=1)),
    "opt old config": Case("OPT", opt(), old_config=True),
    "opt sharded": Case("OPT", opt(), shard_size="60KB"),
    "opt f16": Case("OPT", opt(), dtype="float16", tolerance=3e-2),
    "llama mha": Case("Llama", llama()),
    "llama gqa": Case("Llama", llama(num_key_value_heads=2)),
    "llama mqa": Case("Llama", llama(num_key_value_heads=1)),
    "llama tied": Case("Llama", llama(tie_word_embeddings=True)),
    "llama attention bias": Case("Llama", llama(attention_bias=True, num_key_value_heads=2)),
    "llama mlp bias": Case("Llama", llama(mlp_bias=True)),
    "llama wide heads": Case("Llama", llama(head_dim=32, num_key_value_heads=2)),
    "llama narrow heads": Case("Llama", llama(head_dim=8)),
    "llama odd sizes": Case("Llama", llama(hidden_size=72, intermediate_size=100, num_attention_heads=3, num_key_value_heads=1, vocab_size=157)),
    "llama rope theta": Case("Llama", llama(rope_parameters=dict(rope_type="default", rope_theta=500000.0))),
    "llama rope linear": Case("Llama", llama(rope_parameters=LINEAR_ROPE)),
    "llama rope llama3": Case("Llama", llama(rope_parameters=LLAMA3_ROPE, num_key_value_heads=2)),
    "llama rope yarn": Case("Llama", llama(rope_parameters=YARN_ROPE, num_key_value_heads=2)),
    "llama old config": Case("Llama", llama(num_key_value_heads=2), old_config=True),
    "llama rope linear, old config": Case("Llama", llama(rope_parameters=LINEAR_ROPE), old_config=True),
    "llama rope llama3, old config": Case("Llama", llama(rope_parameters=LLAMA3_ROPE), old_config=True),
    "llama rope yarn, old config": Case("Llama", llama(rope_parameters=YARN_ROPE), old_config=True),
    "llama sharded": Case("Llama", llama(num_key_value_heads=2), shard_size="60KB"),
    "llama bf16": Case("Llama", llama(num_key_value_heads=2), dtype="bfloat16", tolerance=6e-2),
    "llama f16": Case("Llama", llama(num_key_value_heads=2), dtype="float16", tolerance=3e-2),
    "mistral": Case("Mistral", mistral()),
    "mistral sliding window": Case("Mistral", mistral(sliding_window=8)),
    "mistral window not of a block": Case("Mistral", mistral(sliding_window=19)),
    "mistral rope yarn": Case("Mistral", mistral(rope_parameters=YARN_ROPE | dict(beta_fast=4.0, beta_slow=0.5, attention_factor=1.25))),
    "qwen2": Case("Qwen2", qwen2()),
    "qwen2 tied": Case("Qwen2", qwen2(tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen2 bf16": Case("Qwen2", qwen2(), dtype="bfloat16", tolerance=6e-2),
    "qwen3": Case("Qwen3", qwen3()),
    "qwen3 wide heads": Case("Qwen3", qwen3(head_dim=32, tie_word_embeddings=True)),
    "qwen3 attention bias": Case("Qwen3", qwen3(attention_bias=True)),
    "neox": Case("GPTNeoX", neox()),
    "cohere": Case("Cohere", cohere()),
    "cohere gqa, attention bias": Case("Cohere", cohere(num_key_value_heads=2, attention_bias=True)),
    "cohere untied": Case("Cohere", cohere(tie_word_embeddings=False, logit_scale=0.8)),
    "cohere logits not scaled, large epsilon": Case("Cohere", cohere(logit_scale=1.0, layer_norm_eps=1e-2)),
    "cohere rope theta": Case("Cohere", cohere(rope_parameters=dict(rope_type="default", rope_theta=8000000.0))),
    "cohere rope linear": Case("Cohere", cohere(rope_parameters=LINEAR_ROPE)),
    "cohere old config": Case("Cohere", cohere(num_key_value_heads=2), old_config=True),
    "cohere f16": Case("Cohere", cohere(), dtype="float16", tolerance=3e-2),
    "glm": Case("Glm", glm()),
    "glm without attention bias": Case("Glm", glm(attention_bias=False)),
    "glm edge-like": Case("Glm", glm(share=1.0, attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4)),
    "glm wide heads": Case("Glm", glm(head_dim=32)),
    "glm rope linear": Case("Glm", glm(rope_parameters=LINEAR_ROPE | dict(partial_rotary_factor=0.5))),
    "glm old config": Case("Glm", glm(), old_config=True),
    "glm f16": Case("Glm", glm(), dtype="float16", tolerance=3e-2),
    "neox one branch after the other": Case("GPTNeoX", neox(use_parallel_residual=False)),
    "neox without attention bias": Case("GPTNeoX", neox(attention_bias=False)),
    "neox 20b-like": Case("GPTNeoX", neox(hidden_act="gelu_fast", num_attention_heads=8)),
    "neox rotated as a whole": Case("GPTNeoX", neox(share=1.0)),
    "neox old config": Case("GPTNeoX", neox(share=0.5), old_config=True),
    "neox sharded": Case("GPTNeoX", neox(), shard_size="60KB"),
    "neox f16": Case("GPTNeoX", neox(), dtype="float16", tolerance=3e-2),
    "gpt2": Case("GPT2", gpt2()),
    "gpt2 untied, narrow MLP": Case("GPT2", gpt2(tie_word_embeddings=False, n_inner=144, activation_function="gelu")),
    "gpt2 sharded": Case("GPT2", gpt2(), shard_size="60KB"),
    "gpt2 f16": Case("GPT2", gpt2(), dtype="float16", tolerance=3e-2),
    "gptj": Case("GPTJ", gptj()),
    "gptj rotated as a whole": Case("GPTJ", gptj(rotary_dim=16, n_inner=144)),
    "gptj f16": Case("GPTJ", gptj(), dtype="float16", tolerance=3e-2),
    "falcon": Case("Falcon", falcon()),
    "falcon untied, narrow MLP": Case("Falcon", falcon(tie_word_embeddings=False, ffn_hidden_size=144)),
    "falcon 40b-like": Case("Falcon", falcon_40b()),
    "falcon 40b-like, all KV heads": Case("Falcon", falcon_40b(num_kv_heads=4, activation="gelu_pytorch_tanh")),
    "falcon 40b-like, one KV head": Case("Falcon", falcon_40b(num_kv_heads=1)),
    "falcon 2 11b-like": Case("Falcon", falcon_40b(num_ln_in_parallel_attn=1, tie_word_embeddings=False)),
    "falcon rope theta": Case("Falcon", falcon(rope_parameters=dict(rope_type="default", rope_theta=500042.0))),
    "falcon old config": Case("Falcon", falcon_40b(), old_config=True),
    "falcon sharded": Case("Falcon", falcon_40b(), shard_size="60KB"),
    "falcon f16": Case("Falcon", falcon_40b(), dtype="float16", tolerance=3e-2),
    "phi": Case("Phi", phi()),
    "phi rotated by two fifths": Case("Phi", phi(share=0.4)),
    "phi gqa": Case("Phi", phi(num_key_value_heads=2, hidden_act="gelu")),
    "phi old config": Case("Phi", phi(share=0.4), old_config=True),
    "phi sharded": Case("Phi", phi(), shard_size="60KB"),
    "phi f16": Case("Phi", phi(), dtype="float16", tolerance=3e-2),
    "olmo2": Case("Olmo2", llama()),
    "olmo2 gqa, bias": Case("Olmo2", llama(num_key_value_heads=2, attention_bias=True)),
    "olmo2 old config": Case("Olmo2", llama(num_key_value_heads=2), old_config=True),
    "olmo2 f16": Case("Olmo2", llama(num_key_value_heads=2), dtype="float16", tolerance=3e-2),
    "granite": Case("Granite", granite()),
    "granite untied, bias": Case("Granite", granite(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)),
    "granite old config": Case("Granite", granite(), old_config=True),
    "granite f16": Case("Granite", granite(), dtype="float16", tolerance=3e-2),
    "gemma": Case("Gemma", gemma()),
    "gemma several KV heads": Case("Gemma", gemma(num_key_value_heads=4)),
    "gemma f16": Case("Gemma", gemma(tie_word_embeddings=False, num_hidden_layers=1, head_dim=16), dtype="float16", tolerance=3e-2),
    "gemma3": Case("Gemma3Text", gemma3()),
    "gemma3 linear": Case("Gemma3Text", gemma3(rope_parameters=GEMMA3_LINEAR)),
    "gemma3 without a window in force": Case("Gemma3Text", gemma3(sliding_window=256)),
    "gemma3 windows alone": Case("Gemma3Text", gemma3(num_hidden_layers=3)),
    "gemma3 f16": Case("Gemma3Text", gemma3(tie_word_embeddings=False), dtype="float16", tolerance=3e-2),
    "glm4": Case("Glm4", glm4()),
    "glm4 without bias": Case("Glm4", glm4(attention_bias=False)),
    "glm4 f16": Case("Glm4", glm4(), dtype="float16", tolerance=3e-2),
    "stablelm": Case("StableLm", stablelm()),
    "stablelm qkv bias": Case("StableLm", stablelm(use_qkv_bias=True)),
    "stablelm parallel": Case("StableLm", stablelm(use_parallel_residual=True, num_key_value_heads=4)),
    "stablelm rotated by half, tied": Case("StableLm", stablelm(share=0.5, tie_word_embeddings=True)),
    "stablelm old config": Case("StableLm", stablelm(share=0.5, use_qkv_bias=True), old_config=True),
    "stablelm sharded": Case("StableLm", stablelm(), shard_size="60KB"),
    "stablelm f16": Case("StableLm", stablelm(use_qkv_bias=True, use_parallel_residual=True), dtype="float16", tolerance=3e-2),
    "phi3": Case("Phi3", phi3()),
    "phi3 mha": Case("Phi3", phi3(num_key_value_heads=4)),
    "phi3 sliding window": Case("Phi3", phi3(sliding_window=8)),
    "phi3 rotated in part, tied": Case(
        "Phi3",
        phi3(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75), tie_word_embeddings=True),
    ),
    "phi3 longrope": Case("Phi3", phi3(max_position_embeddings=1024, rope_parameters=longrope())),
    "phi3 longrope with its attention factor": Case(
        "Phi3", phi3(max_position_embeddings=1024, rope_parameters=longrope(attention_factor=1.5))
    ),
    "phi3 old config": Case(
        "Phi3", phi3(max_position_embeddings=1024, rope_parameters=longrope(0.75), tie_word_embeddings=True), old_config=True
    ),
    "phi3 f16": Case("Phi3", phi3(), dtype="float16", tolerance=3e-2),
    "smollm3": Case("SmolLM3", smollm3()),
    "smollm3 untied, biases": Case("SmolLM3", smollm3(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)),
    "smollm3 old config": Case(
        "SmolLM3", smollm3(rope_parameters=dict(rope_type="default", rope_theta=5000000.0)), old_config=True
    ),
    "smollm3 f16": Case("SmolLM3", smollm3(), dtype="float16", tolerance=3e-2),
}


# Weights.


def noise(name, count):
    """Bell-shaped numbers of variance 1 that depend on name and index alone.

    Sums of four uniform integers out of a hash (SplitMix64): a library's normal distribution may change with its version,
    and takes logarithms, which differ from machine to machine.
    """
    key = numpy.frombuffer(hashlib.sha256(name.encode()).digest()[:8], "<u8")
    x = key + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    x = x ^ (x >> numpy.uint64(31))
    total = sum((x >> numpy.uint64(shift)) & numpy.uint64(0xFFFF) for shift in (0, 16, 32, 48))
    return (total.astype(numpy.float64) - 2 * 0xFFFF) / math.sqrt((65536.0**2 - 1) / 3)


NORM_WEIGHTS = tuple(f"{norm}.weight" for norm in ("norm", "ln_1", "ln_2", "ln_f", "ln_attn", "ln_mlp"))


def weights(name, shape):
    """A float32 tensor that matters: logits of a few units, every bias and norm weight different."""
    values = noise(name, math.prod(shape)).reshape(shape)
    if len(shape) == 1:
        values = 0.2 * values + (1.0 if name.endswith(NORM_WEIGHTS) else 0.0)
    elif "embed" in name:
        values = 0.5 * values
    else:
        values = values * (1.5 / math.sqrt(shape[1]))
    return values.astype(numpy.float32)


def bfloat16_bits(values):
    """Rounded to the nearest, ties to even."""
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


# The name in safetensors files, and how float32 becomes what they hold.
STORED_TYPES = {
    "float32": ("F32", lambda values: values.astype("<f4")),
    "float16": ("F16", lambda values: values.astype("<f2")),
    "bfloat16": ("BF16", bfloat16_bits),
}


# Files, as save_pretrained() writes them.


def json_text(value):
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def old_config(config):
    """A transformers 5 config.json as the models on the hub have it."""
    config = dict(config)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    rope = dict(config.pop("rope_parameters", None) or {})
    if config["model_type"] == "gpt_neox":
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
        config["rotary_emb_base"] = rope.pop("rope_theta")
        config.pop("rope_scaling", None)
    elif rope:
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_theta"] = rope.pop("rope_theta", 10000.0)
        config["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
        if rope.get("rope_type") in ("linear", "longrope"):
            rope["type"] = rope.pop("rope_type")  # the oldest spelling
        if config["model_type"] == "phi3":
            rope.pop("original_max_position_embeddings", None)  # it is at the top
    return config


def write_safetensors(path, contents):
    """contents: (name, type, shape, bytes) of each tensor."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, kind, shape, data in contents:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, _, data in contents))


@dataclasses.dataclass
class Reference:
    """A case's model, and transformers' results for it."""

    case: Case
    case_hash: str
    config: dict
    generation_config: dict
    tensors: dict  # name: shape, in the order of the files
    shards: list  # the number of the file of each tensor, from 1
    weights_sha256: str
    prompt: list
    tokens: list  # the GREEDY_TOKENS tokens after the prompt
    gaps: list  # the gap between the best two logits at each token
    logits: numpy.ndarray  # [tokens of the prompt, vocabulary]

    def contents(self):
        kind, store = STORED_TYPES[self.case.dtype]
        return [(name, kind, shape, store(weights(name, shape)).tobytes()) for name, shape in self.tensors.items()]

    def write(self, folder):
        """The model as a folder, byte by byte what transformers saves."""
        assert self.case_hash == self.case.hash(), "the case was changed: run make_references.py"
        folder.mkdir(parents=True)
        config = old_config(self.config) if self.case.old_config else self.config
        (folder / "config.json").write_text(json_text(config))
        (folder / "generation_config.json").write_text(json_text(self.generation_config))
        contents = self.contents()
        assert weights_sha256(contents) == self.weights_sha256, "the weights are not those of the reference"
        count = max(self.shards)
        assert (count > 1) == (self.case.shard_size != ONE_FILE)
        if count == 1:
            write_safetensors(folder / "model.safetensors", contents)
            return folder
        names = [f"model-{number:05}-of-{count:05}.safetensors" for number in self.shards]
        for shard in set(names):
            write_safetensors(folder / shard, [one for one, name in zip(contents, names) if name == shard])
        metadata = {
            "total_parameters": sum(math.prod(shape) for shape in self.tensors.values()),
            "total_size": sum(len(data) for _, _, _, data in contents),
        }
        index = {"metadata": metadata, "weight_map": dict(zip(self.tensors, names))}
        (folder / "model.safetensors.index.json").write_text(json_text(index))
        return folder


def weights_sha256(contents):
    return hashlib.sha256(b"".join(data for _, _, _, data in contents)).hexdigest()


# Stored logits: whole steps of 2^-16, an error of at most 7.6e-6. A number takes three bytes, and the bytes of all
# numbers are stored plane by plane: the highest bytes vary little, and compress well by themselves.
STEPS = 65536.0
MIDDLE = 1 << 23


def packed_logits(logits):
    """float32 [rows, vocabulary] as uint8 [3, rows, vocabulary]."""
    steps = numpy.rint(logits.astype(numpy.float64) * STEPS).astype(numpy.int64) + MIDDLE
    assert steps.min() >= 0 and steps.max() < 1 << 24, "logits above 128"
    return numpy.stack([(steps >> shift) & 0xFF for shift in (0, 8, 16)]).astype(numpy.uint8)


def unpacked_logits(planes):
    low, middle, high = planes.astype(numpy.int64)
    return ((low + (middle << 8) + (high << 16) - MIDDLE) / STEPS).astype(numpy.float32)


@functools.cache
def stored():
    """(references.json, the arrays of logits.npz by name)."""
    document = json.loads(REFERENCES.read_text())
    found = hashlib.sha256(LOGITS.read_bytes()).hexdigest()
    assert found == document["logits_sha256"], f"{LOGITS} is not the one that {REFERENCES.name} is about"
    with numpy.load(LOGITS) as file:
        return document, {name: unpacked_logits(file[name]) for name in file.files}


def reference(name):
    document, logits = stored()
    assert name in document["cases"], f"no reference for {name}: run make_references.py"
    values = document["cases"][name]
    # Arrays that several cases share are stored under the first one's name.
    shared = {"tensors": document["tensors"][values["tensors"]], "logits": logits[values["logits"]]}
    return Reference(CASES[name], **values | shared)


def long_prompt():
    """(the ids of LONG_PROMPT_TOKENS, their logits), for the model of LONG_PROMPT_CASE."""
    document, logits = stored()
    return document["long_prompt"], logits["long prompt"]
