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

using enum WeightRole;

constexpr WeightName kGgufNames[] = {
    {kTokenEmbedding, "token_embd.weight"},
    {kFinalNorm, "output_norm.weight"},
    {kHead, "output.weight"},
    {kAttentionNorm, "blk.{}.attn_norm.weight"},
    {kQuery, "blk.{}.attn_q.weight"},
    {kQueryBias, "blk.{}.attn_q.bias"},
    {kKey, "blk.{}.attn_k.weight"},
    {kKeyBias, "blk.{}.attn_k.bias"},
    {kValue, "blk.{}.attn_v.weight"},
    {kValueBias, "blk.{}.attn_v.bias"},
    {kAttentionOut, "blk.{}.attn_output.weight"},
    {kAttentionOutBias, "blk.{}.attn_output.bias"},
    {kMlpNorm, "blk.{}.ffn_norm.weight"},
    {kGate, "blk.{}.ffn_gate.weight"},
    {kGateBias, "blk.{}.ffn_gate.bias"},
    {kUp, "blk.{}.ffn_up.weight"},
    {kUpBias, "blk.{}.ffn_up.bias"},
    {kDown, "blk.{}.ffn_down.weight"},
    {kDownBias, "blk.{}.ffn_down.bias"},
};

constexpr WeightName kHuggingFaceNames[] = {
    {kTokenEmbedding, "model.embed_tokens.weight"},
    {kFinalNorm, "model.norm.weight"},
    {kHead, "lm_head.weight"},
    {kAttentionNorm, "model.layers.{}.input_layernorm.weight"},
    {kQuery, "model.layers.{}.self_attn.q_proj.weight"},
    {kQueryBias, "model.layers.{}.self_attn.q_proj.bias"},
    {kKey, "model.layers.{}.self_attn.k_proj.weight"},
    {kKeyBias, "model.layers.{}.self_attn.k_proj.bias"},
    {kValue, "model.layers.{}.self_attn.v_proj.weight"},
    {kValueBias, "model.layers.{}.self_attn.v_proj.bias"},
    {kAttentionOut, "model.layers.{}.self_attn.o_proj.weight"},
    {kAttentionOutBias, "model.layers.{}.self_attn.o_proj.bias"},
    {kMlpNorm, "model.layers.{}.post_attention_layernorm.weight"},
    {kGate, "model.layers.{}.mlp.gate_proj.weight"},
    {kGateBias, "model.layers.{}.mlp.gate_proj.bias"},
    {kUp, "model.layers.{}.mlp.up_proj.weight"},
    {kUpBias, "model.layers.{}.mlp.up_proj.bias"},
    {kDown, "model.layers.{}.mlp.down_proj.weight"},
    {kDownBias, "model.layers.{}.mlp.down_proj.bias"},
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

void read_gguf_rope(const ModelFiles& files, ModelSpec& spec) {
  const Metadata& m = files.metadata;
  spec.rope.style = RopeStyle::kInterleaved;  // GGUF stores q and k permuted for it
  spec.rope.dims = read_size_or(m, "llama.rope.dimension_count", spec.head_dim);
  spec.rope.theta = m.try_double("llama.rope.freq_base").value_or(10000);
  validate(spec, files.name);

  auto frequencies = base_inverse_frequencies(spec.rope);
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
  finish_rope(spec.rope, std::move(frequencies), linear, files.name);
}

ModelSpec read_gguf_spec(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  ModelSpec spec;
  spec.family = "llama";
  spec.name = printable(read_string_or(m, "general.name", files.name));
  spec.layers = read_size(m, "llama.block_count");
  spec.hidden = spec.embedding_dim = read_size(m, "llama.embedding_length");
  spec.ffn = read_size(m, "llama.feed_forward_length");
  spec.heads = read_size(m, "llama.attention.head_count");
  spec.kv_heads = read_size_or(m, "llama.attention.head_count_kv", spec.heads);
  SPW_CHECK(spec.heads > 0, kInvalidArgument, "{}: llama.attention.head_count is 0", files.name);
  spec.head_dim = read_size_or(m, "llama.attention.key_length", spec.hidden / spec.heads);
  const int value_length = read_size_or(m, "llama.attention.value_length", spec.head_dim);
  SPW_CHECK(value_length == spec.head_dim, kUnsupported,
            "{}: key length {} and value length {} differ, which is not supported", files.name,
            spec.head_dim, value_length);
  spec.max_context = read_size(m, "llama.context_length");
  spec.sliding_window = read_size_or(m, "llama.attention.sliding_window", 0);
  spec.norm_eps =
      static_cast<float>(m.try_double("llama.attention.layer_norm_rms_epsilon").value_or(1e-5));
  SPW_CHECK(!m.try_int("llama.expert_count").value_or(0), kUnsupported,
            "{}: mixture-of-experts models are not supported yet", files.name);

  const TensorInfo* embedding = files.find("token_embd.weight");
  SPW_CHECK(embedding != nullptr, kInvalidArgument,
            "{}: no tensor 'token_embd.weight'; this file has a vocabulary only, or is incomplete",
            files.name);
  spec.vocab_size = embedding->rows();
  spec.tied_head = !has_any(files, kGgufNames, {kHead});
  spec.qkv_bias = has_any(files, kGgufNames, {kQueryBias, kKeyBias, kValueBias});
  spec.attention_out_bias = has_any(files, kGgufNames, {kAttentionOutBias});
  spec.mlp_bias = has_any(files, kGgufNames, {kGateBias, kUpBias, kDownBias});
  read_gguf_rope(files, spec);
  return spec;
}

// transformers 5 writes `rope_parameters`; before, it was `rope_theta` beside `rope_scaling`.
void read_hf_rope(const ModelFiles& files, ModelSpec& spec) {
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

  spec.rope.style = RopeStyle::kHalves;
  spec.rope.dims = spec.head_dim;
  spec.rope.theta = number("rope_theta").value_or(m.try_double("rope_theta").value_or(10000));
  validate(spec, files.name);

  auto frequencies = base_inverse_frequencies(spec.rope);
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
  finish_rope(spec.rope, std::move(frequencies), linear, files.name);
}

ModelSpec read_hf_spec(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  ModelSpec spec;
  spec.family = "llama";
  spec.name = files.name;
  spec.layers = read_size(m, "num_hidden_layers");
  spec.hidden = spec.embedding_dim = read_size(m, "hidden_size");
  spec.ffn = read_size(m, "intermediate_size");
  spec.heads = read_size(m, "num_attention_heads");
  SPW_CHECK(spec.heads > 0, kInvalidArgument, "{}: num_attention_heads is 0", files.name);
  spec.kv_heads = read_size_or(m, "num_key_value_heads", spec.heads);
  spec.head_dim = read_size_or(m, "head_dim", spec.hidden / spec.heads);
  spec.vocab_size = read_size(m, "vocab_size");
  spec.max_context = read_size(m, "max_position_embeddings");
  spec.norm_eps = static_cast<float>(m.try_double("rms_norm_eps").value_or(1e-6));
  spec.sliding_window = read_size_or(m, "sliding_window", 0);
  spec.tied_head = m.try_bool("tie_word_embeddings").value_or(false);
  spec.qkv_bias = spec.attention_out_bias = m.try_bool("attention_bias").value_or(false);
  spec.mlp_bias = m.try_bool("mlp_bias").value_or(false);
  const std::string activation = read_string_or(m, "hidden_act", "silu");
  SPW_CHECK(activation == "silu", kUnsupported,
            "{}: hidden_act '{}' is not supported in a Llama model; silu is", files.name,
            printable(activation));
  read_hf_rope(files, spec);
  return spec;
}

bool is_gguf(const ModelFiles& files) { return files.format == ModelFiles::Format::kGguf; }

bool matches(const ModelFiles& files) {
  if (is_gguf(files)) return read_string_or(files.metadata, "general.architecture", "") == "llama";
  const std::string type = read_string_or(files.metadata, "model_type", "");
  return type == "llama" || type == "mistral";
}

ModelSpec read_spec(const ModelFiles& files) {
  return is_gguf(files) ? read_gguf_spec(files) : read_hf_spec(files);
}

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

// Scaling as a factor where it is the same for all frequencies; else it is a tensor of divisors.
void write_gguf_keys(const ModelSpec& spec, Metadata& keys) {
  const auto size = [&](const char* key, int64_t value) { keys.add(key, value); };
  const auto number = [&](const char* key, double value) {
    keys.add(key, double{static_cast<float>(value)});
  };
  size("llama.vocab_size", spec.vocab_size);
  size("llama.context_length", spec.max_context);
  size("llama.embedding_length", spec.hidden);
  size("llama.block_count", spec.layers);
  size("llama.feed_forward_length", spec.ffn);
  size("llama.attention.head_count", spec.heads);
  size("llama.attention.head_count_kv", spec.kv_heads);
  size("llama.attention.key_length", spec.head_dim);
  size("llama.attention.value_length", spec.head_dim);
  if (spec.sliding_window != 0) size("llama.attention.sliding_window", spec.sliding_window);
  number("llama.attention.layer_norm_rms_epsilon", double{spec.norm_eps});
  size("llama.rope.dimension_count", spec.rope.dims);
  number("llama.rope.freq_base", spec.rope.theta);
  if (rope_scaling_kind(spec.rope) == RopeScalingKind::kLinear) {
    keys.add("llama.rope.scaling.type", std::string("linear"));
    number("llama.rope.scaling.factor", double{rope_divisors(spec.rope).front()});
  }
}

}  // namespace

const Family kLlamaFamily{matches, read_spec, names, write_gguf_keys, ""};

}  // namespace spillway
