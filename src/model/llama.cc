// SPDX-License-Identifier: Apache-2.0
// Llama 1, 2 and 3, and what is built like them: Mistral, SmolLM2, TinyLlama.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "model/family.h"
#include "model/metadata_fields.h"
#include "model/read_tensor.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"query", "blk.{}.attn_q.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key", "blk.{}.attn_k.weight"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value", "blk.{}.attn_v.weight"},
    {"value.bias", "blk.{}.attn_v.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_gate.bias", "blk.{}.ffn_gate.bias"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_up.bias", "blk.{}.ffn_up.bias"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_down.bias", "blk.{}.ffn_down.bias"},
};

constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight"},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight"},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"query.bias", "model.layers.{}.self_attn.q_proj.bias"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"key.bias", "model.layers.{}.self_attn.k_proj.bias"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"value.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"attention_out.bias", "model.layers.{}.self_attn.o_proj.bias"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_gate.bias", "model.layers.{}.mlp.gate_proj.bias"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_up.bias", "model.layers.{}.mlp.up_proj.bias"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
    {"mlp_down.bias", "model.layers.{}.mlp.down_proj.bias"},
};

// Divides linear scaling into the frequencies, then rounds them once.
void finish_rope(RopeSpec& rope, std::vector<double> frequencies, double linear_factor,
                 const std::string& where) {
  SPW_CHECK(std::isfinite(linear_factor) && linear_factor > 0, kInvalidArgument,
            "{}: rope scaling factor {} makes no sense", where, linear_factor);
  for (const double frequency : frequencies) {
    rope.inverse_frequencies.push_back(static_cast<float>(frequency / linear_factor));
  }
}

void read_gguf_rope(const ModelFiles& files, TransformerShape& shape) {
  const Metadata& m = files.metadata;
  shape.rope.style = RopeStyle::kInterleaved;  // GGUF stores q and k permuted for it
  shape.rope.dims = read_size_or(m, "llama.rope.dimension_count", shape.head_dim);
  shape.rope.theta = m.try_double("llama.rope.freq_base").value_or(10000);
  validate(shape, files.name);

  auto frequencies = base_inverse_frequencies(shape.rope);
  double linear = 1;
  // A factor without a type is linear; files of 2023 have it under another key.
  const std::string scaling = read_string_or(m, "llama.rope.scaling.type", "linear");
  if (scaling == "linear") {
    const auto factor = m.try_double("llama.rope.scaling.factor");
    linear = factor ? *factor : m.try_double("llama.rope.scale_linear").value_or(1);
  } else {
    SPW_CHECK(scaling == "none", kUnsupported,
              "{}: rope scaling '{}' is not supported; none and linear are", files.name,
              printable(scaling));
  }
  // Llama 3.1 and later: the converter wrote the per-frequency divisors as a tensor.
  if (const TensorInfo* tensor = files.try_get("rope_freqs.weight")) {
    const auto divisors = read_tensor_f32(files, *tensor, static_cast<int64_t>(frequencies.size()));
    for (size_t i = 0; i < frequencies.size(); ++i) {
      SPW_CHECK(std::isfinite(divisors[i]) && divisors[i] > 0, kInvalidArgument,
                "{}: tensor 'rope_freqs.weight' has a divisor of {} at {}", files.name, divisors[i],
                i);
      frequencies[i] /= divisors[i];
    }
  }
  finish_rope(shape.rope, std::move(frequencies), linear, files.name);
}

TransformerShape read_gguf_shape(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  TransformerShape shape;
  shape.family = "llama";
  shape.name = printable(read_string_or(m, "general.name", files.name));
  shape.layers = read_size(m, "llama.block_count");
  shape.hidden = shape.embedding_dim = read_size(m, "llama.embedding_length");
  shape.ffn = read_size(m, "llama.feed_forward_length");
  shape.heads = read_size(m, "llama.attention.head_count");
  shape.kv_heads = read_size_or(m, "llama.attention.head_count_kv", shape.heads);
  SPW_CHECK(shape.heads > 0, kInvalidArgument, "{}: llama.attention.head_count is 0", files.name);
  shape.head_dim = read_size_or(m, "llama.attention.key_length", shape.hidden / shape.heads);
  const int value_length = read_size_or(m, "llama.attention.value_length", shape.head_dim);
  SPW_CHECK(value_length == shape.head_dim, kUnsupported,
            "{}: key length {} and value length {} differ, which is not supported", files.name,
            shape.head_dim, value_length);
  shape.max_context = read_size(m, "llama.context_length");
  shape.sliding_window = read_size_or(m, "llama.attention.sliding_window", 0);
  shape.norm_eps =
      static_cast<float>(m.try_double("llama.attention.layer_norm_rms_epsilon").value_or(1e-5));
  SPW_CHECK(!m.try_int("llama.expert_count").value_or(0), kUnsupported,
            "{}: mixture-of-experts models are not supported yet", files.name);

  const TensorInfo* embedding = files.find("token_embd.weight");
  SPW_CHECK(embedding != nullptr, kInvalidArgument,
            "{}: no tensor 'token_embd.weight'; this file has a vocabulary only, or is incomplete",
            files.name);
  shape.vocab_size = embedding->rows();
  shape.tied_head = !has_any(files, kGgufNames, {"head"});
  shape.qkv_bias = has_any(files, kGgufNames, {"query.bias", "key.bias", "value.bias"});
  shape.attention_out_bias = has_any(files, kGgufNames, {"attention_out.bias"});
  shape.mlp_bias = has_any(files, kGgufNames, {"mlp_gate.bias", "mlp_up.bias", "mlp_down.bias"});
  read_gguf_rope(files, shape);
  return shape;
}

// transformers 5 writes `rope_parameters`; before, it was `rope_theta` beside `rope_scaling`.
void read_hf_rope(const ModelFiles& files, TransformerShape& shape) {
  const Metadata& m = files.metadata;
  const auto number = [&](const std::string& key) -> std::optional<double> {
    if (const auto value = m.try_double("rope_parameters." + key)) return value;
    return m.try_double("rope_scaling." + key);
  };
  const auto needed = [&](const std::string& key) {
    const auto value = number(key);
    SPW_CHECK(value.has_value(), kInvalidArgument, "{}: rope scaling lacks '{}'", files.name, key);
    return *value;
  };

  shape.rope.style = RopeStyle::kHalves;
  shape.rope.dims = shape.head_dim;
  shape.rope.theta = number("rope_theta").value_or(m.try_double("rope_theta").value_or(10000));
  validate(shape, files.name);

  auto frequencies = base_inverse_frequencies(shape.rope);
  double linear = 1;
  std::string type = "default";
  for (const char* key :
       {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"}) {
    if (m.contains(key)) {
      type = m.get_string(key);
      break;
    }
  }
  if (type == "linear") {
    linear = needed("factor");
  } else if (type == "llama3") {
    const Llama3RopeScaling scaling{needed("factor"), needed("low_freq_factor"),
                                    needed("high_freq_factor"),
                                    needed("original_max_position_embeddings")};
    SPW_CHECK(scaling.factor > 0 && scaling.low_freq_factor > 0 && scaling.original_context > 0 &&
                  scaling.high_freq_factor > scaling.low_freq_factor,
              kInvalidArgument, "{}: the llama3 rope scaling makes no sense", files.name);
    apply_llama3_scaling(scaling, frequencies);
  } else {
    SPW_CHECK(type == "default", kUnsupported,
              "{}: rope scaling '{}' is not supported; default, linear and llama3 are", files.name,
              printable(type));
    // As in the reference, which says so too.
    if (number("factor").value_or(1) != 1)
      log_warning("{}: the rope scaling factor has no rope_type, so it is left out", files.name);
  }
  finish_rope(shape.rope, std::move(frequencies), linear, files.name);
}

TransformerShape read_hf_shape(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  TransformerShape shape;
  shape.family = "llama";
  shape.name = files.name;
  shape.layers = read_size(m, "num_hidden_layers");
  shape.hidden = shape.embedding_dim = read_size(m, "hidden_size");
  shape.ffn = read_size(m, "intermediate_size");
  shape.heads = read_size(m, "num_attention_heads");
  SPW_CHECK(shape.heads > 0, kInvalidArgument, "{}: num_attention_heads is 0", files.name);
  shape.kv_heads = read_size_or(m, "num_key_value_heads", shape.heads);
  shape.head_dim = read_size_or(m, "head_dim", shape.hidden / shape.heads);
  shape.vocab_size = read_size(m, "vocab_size");
  shape.max_context = read_size(m, "max_position_embeddings");
  shape.norm_eps = static_cast<float>(m.try_double("rms_norm_eps").value_or(1e-6));
  shape.sliding_window = read_size_or(m, "sliding_window", 0);
  shape.tied_head = m.try_bool("tie_word_embeddings").value_or(false);
  shape.qkv_bias = shape.attention_out_bias = m.try_bool("attention_bias").value_or(false);
  shape.mlp_bias = m.try_bool("mlp_bias").value_or(false);
  const std::string activation = read_string_or(m, "hidden_act", "silu");
  SPW_CHECK(activation == "silu", kUnsupported,
            "{}: hidden_act '{}' is not supported in a Llama model; silu is", files.name,
            printable(activation));
  read_hf_rope(files, shape);
  return shape;
}

bool is_gguf(const ModelFiles& files) { return files.format == ModelFiles::Format::kGguf; }

bool matches(const ModelFiles& files) {
  if (is_gguf(files)) return read_string_or(files.metadata, "general.architecture", "") == "llama";
  const std::string type = read_string_or(files.metadata, "model_type", "");
  return type == "llama" || type == "mistral";
}

TransformerShape read_shape(const ModelFiles& files) {
  return is_gguf(files) ? read_gguf_shape(files) : read_hf_shape(files);
}

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

// Scaling as a factor where it is the same for all frequencies; else it is a tensor of divisors.
void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  const auto size = [&](const char* key, int64_t value) { keys.add(key, value); };
  const auto number = [&](const char* key, double value) {
    keys.add(key, double{static_cast<float>(value)});
  };
  size("llama.vocab_size", shape.vocab_size);
  size("llama.context_length", shape.max_context);
  size("llama.embedding_length", shape.hidden);
  size("llama.block_count", shape.layers);
  size("llama.feed_forward_length", shape.ffn);
  size("llama.attention.head_count", shape.heads);
  size("llama.attention.head_count_kv", shape.kv_heads);
  size("llama.attention.key_length", shape.head_dim);
  size("llama.attention.value_length", shape.head_dim);
  if (shape.sliding_window != 0) size("llama.attention.sliding_window", shape.sliding_window);
  number("llama.attention.layer_norm_rms_epsilon", double{shape.norm_eps});
  size("llama.rope.dimension_count", shape.rope.dims);
  number("llama.rope.freq_base", shape.rope.theta);
  if (rope_scaling_kind(shape.rope) == RopeScalingKind::kLinear) {
    keys.add("llama.rope.scaling.type", std::string("linear"));
    number("llama.rope.scaling.factor", double{rope_divisors(shape.rope).front()});
  }
}

}  // namespace

const Family kLlamaFamily{matches, read_shape, names, write_gguf_keys, /*gguf_pairs_rope=*/true,
                          ""};

}  // namespace spillway
