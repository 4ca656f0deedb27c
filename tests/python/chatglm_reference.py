# SPDX-License-Identifier: Apache-2.0
"""ChatGLM2, ChatGLM3 and GLM-4 in float64, and small random models of them; transformers does not have these models.

Written from the architecture: RMS norms before attention and MLP, groups of heads that share keys and values, a SwiGLU,
and rotary positions in which adjacent elements of the first half of each head turn together.
"""

import numpy
import reference_models

CONFIG = dict(
    model_type="chatglm", architectures=["ChatGLMForConditionalGeneration"], num_layers=3, hidden_size=64, ffn_hidden_size=144,
    num_attention_heads=4, multi_query_attention=True, multi_query_group_num=2, kv_channels=16, padded_vocab_size=160,
    seq_length=128, layernorm_epsilon=1e-5, rmsnorm=True, post_layer_norm=True, add_bias_linear=False, add_qkv_bias=True,
    apply_residual_connection_post_layernorm=False, original_rope=True, tie_word_embeddings=False, pre_seq_len=None,
)  # fmt: skip


def config(**overrides):
    return CONFIG | overrides


def shapes(config):
    """The shape of each tensor of such a model."""
    hidden, ffn, words = config["hidden_size"], config["ffn_hidden_size"], config["padded_vocab_size"]
    queries = config["num_attention_heads"] * config["kv_channels"]
    stacked = queries + 2 * config["multi_query_group_num"] * config["kv_channels"]
    found = {"transformer.embedding.word_embeddings.weight": (words, hidden)}
    for layer in range(config["num_layers"]):
        parts = {
            "input_layernorm.weight": (hidden,),
            "self_attention.query_key_value.weight": (stacked, hidden),
            "self_attention.dense.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.dense_h_to_4h.weight": (2 * ffn, hidden),
            "mlp.dense_4h_to_h.weight": (hidden, ffn),
        }
        if config["add_qkv_bias"]:
            parts["self_attention.query_key_value.bias"] = (stacked,)
        found |= {f"transformer.encoder.layers.{layer}.{name}": shape for name, shape in parts.items()}
    found["transformer.encoder.final_layernorm.weight"] = (hidden,)
    found["transformer.output_layer.weight"] = (words, hidden)
    return found


def tensors(config):
    return {name: reference_models.weights(name, shape) for name, shape in shapes(config).items()}


def write(folder, config):
    """The model as a folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(reference_models.json_text(config))
    contents = [(name, "F32", values.shape, values.tobytes()) for name, values in tensors(config).items()]
    reference_models.write_safetensors(folder / "model.safetensors", contents)
    return folder


def normed(x, weight, epsilon):
    return weight * x / numpy.sqrt(numpy.square(x).mean(axis=-1, keepdims=True) + epsilon)


def rotated(heads, base):
    """heads: [tokens, heads, width]. A pair of elements is a complex number, which its position turns."""
    tokens, _, width = heads.shape
    pairs = width // 4
    turns = numpy.outer(numpy.arange(tokens), base ** -(numpy.arange(pairs) / pairs))[:, None, :]
    turned = (heads[..., 0 : 2 * pairs : 2] + 1j * heads[..., 1 : 2 * pairs : 2]) * numpy.exp(1j * turns)
    result = heads.copy()
    result[..., 0 : 2 * pairs : 2] = turned.real
    result[..., 1 : 2 * pairs : 2] = turned.imag
    return result


def attended(query, key, value):
    """query: [tokens, heads, width]; key and value have fewer heads, each for as many neighbors of the query's."""
    tokens, heads, width = query.shape
    shared = heads // key.shape[1]
    result = numpy.empty_like(query)
    for head in range(heads):
        scores = query[:, head] @ key[:, head // shared].T / numpy.sqrt(width)
        scores[numpy.triu_indices(tokens, 1)] = -numpy.inf
        weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        result[:, head] = weights / weights.sum(axis=1, keepdims=True) @ value[:, head // shared]
    return result.reshape(tokens, heads * width)


def logits(config, weights, ids):
    """float64 [len(ids), vocabulary]."""
    heads, groups, width = (config[key] for key in ("num_attention_heads", "multi_query_group_num", "kv_channels"))
    ends = numpy.cumsum([heads * width, groups * width])
    base, epsilon = 10000.0 * config.get("rope_ratio", 1), config["layernorm_epsilon"]
    weights = {name.removeprefix("transformer."): values.astype(numpy.float64) for name, values in weights.items()}
    x = weights["embedding.word_embeddings.weight"][ids]
    for layer in range(config["num_layers"]):
        prefix = f"encoder.layers.{layer}."
        own = {name.removeprefix(prefix): values for name, values in weights.items() if name.startswith(prefix)}
        qkv = normed(x, own["input_layernorm.weight"], epsilon) @ own["self_attention.query_key_value.weight"].T
        qkv = qkv + own.get("self_attention.query_key_value.bias", 0)
        query, key, value = (part.reshape(len(ids), -1, width) for part in numpy.split(qkv, ends, axis=1))
        x = x + attended(rotated(query, base), rotated(key, base), value) @ own["self_attention.dense.weight"].T
        up = normed(x, own["post_attention_layernorm.weight"], epsilon) @ own["mlp.dense_h_to_4h.weight"].T
        gate, up = numpy.split(up, 2, axis=1)
        x = x + gate / (1 + numpy.exp(-gate)) * up @ own["mlp.dense_4h_to_h.weight"].T
    return normed(x, weights["encoder.final_layernorm.weight"], epsilon) @ weights["output_layer.weight"].T


def greedy(config, weights, ids, count):
    """(the greedy tokens after ids, the gap between the best two logits at each)."""
    tokens, gaps = [], []
    for _ in range(count):
        row = logits(config, weights, [*ids, *tokens])[-1]
        best = numpy.argsort(row)[:-3:-1]
        tokens.append(int(best[0]))
        gaps.append(float(row[best[0]] - row[best[1]]))
    return tokens, gaps
