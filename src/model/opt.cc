// SPDX-License-Identifier: Apache-2.0
// OPT: learned positions with an offset of two, biases everywhere, ReLU. opt-350m normalizes after
// attention and MLP, and projects its embedding to and from a narrower width.
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/activation_names.h"
#include "model/family.h"
#include "model/metadata_fields.h"

namespace spillway {
namespace {

constexpr WeightName kNames[] = {
    {"token_embedding", "model.decoder.embed_tokens.weight"},
    {"position_embedding", "model.decoder.embed_positions.weight"},
    {"project_in", "model.decoder.project_in.weight"},
    {"project_out", "model.decoder.project_out.weight"},
    {"final_norm", "model.decoder.final_layer_norm.weight"},
    {"final_norm.bias", "model.decoder.final_layer_norm.bias"},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.decoder.layers.{}.self_attn_layer_norm.weight"},
    {"attention_norm.bias", "model.decoder.layers.{}.self_attn_layer_norm.bias"},
    {"query", "model.decoder.layers.{}.self_attn.q_proj.weight"},
    {"query.bias", "model.decoder.layers.{}.self_attn.q_proj.bias"},
    {"key", "model.decoder.layers.{}.self_attn.k_proj.weight"},
    {"key.bias", "model.decoder.layers.{}.self_attn.k_proj.bias"},
    {"value", "model.decoder.layers.{}.self_attn.v_proj.weight"},
    {"value.bias", "model.decoder.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.decoder.layers.{}.self_attn.out_proj.weight"},
    {"attention_out.bias", "model.decoder.layers.{}.self_attn.out_proj.bias"},
    {"mlp_norm", "model.decoder.layers.{}.final_layer_norm.weight"},
    {"mlp_norm.bias", "model.decoder.layers.{}.final_layer_norm.bias"},
    {"mlp_up", "model.decoder.layers.{}.fc1.weight"},
    {"mlp_up.bias", "model.decoder.layers.{}.fc1.bias"},
    {"mlp_down", "model.decoder.layers.{}.fc2.weight"},
    {"mlp_down.bias", "model.decoder.layers.{}.fc2.bias"},
};

// Named like other families' GGUF tensors; no other program writes or reads OPT in that format.
constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"position_embedding", "position_embd.weight"},
    {"project_in", "project_in.weight"},
    {"project_out", "project_out.weight"},
    {"final_norm", "output_norm.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm.bias"},
    {"query", "blk.{}.attn_q.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key", "blk.{}.attn_k.weight"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value", "blk.{}.attn_v.weight"},
    {"value.bias", "blk.{}.attn_v.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_norm.bias", "blk.{}.ffn_norm.bias"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_up.bias", "blk.{}.ffn_up.bias"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_down.bias", "blk.{}.ffn_down.bias"},
};

constexpr std::string_view kFamilies[] = {"opt"};

// The shape that all OPT models have in common.
TransformerShape plain_shape() {
  TransformerShape shape;
  shape.family = "opt";
  shape.norm = NormKind::kLayer;
  shape.norm_bias = true;
  shape.position = PositionKind::kLearned;
  shape.position_offset = 2;
  shape.gated_mlp = false;
  return shape;
}

// The keys that a format has for the sizes.
struct SizeKeys {
  const char* layers;
  const char* hidden;
  const char* embedding_dim;
  const char* ffn;
  const char* heads;
  const char* vocab_size;
  const char* max_context;
};
constexpr SizeKeys kHuggingFaceSizes = {
    "num_hidden_layers",   "hidden_size", "word_embed_proj_dim",    "ffn_dim",
    "num_attention_heads", "vocab_size",  "max_position_embeddings"};
constexpr SizeKeys kGgufSizes = {"opt.block_count",           "opt.embedding_length",
                                 "opt.word_embedding_length", "opt.feed_forward_length",
                                 "opt.attention.head_count",  "opt.vocab_size",
                                 "opt.context_length"};

void read_sizes(const ModelFiles& files, const SizeKeys& keys, TransformerShape& shape) {
  const Metadata& m = files.metadata;
  shape.layers = read_size(m, keys.layers);
  shape.hidden = read_size(m, keys.hidden);
  shape.embedding_dim = read_size_or(m, keys.embedding_dim, shape.hidden);
  shape.ffn = read_size(m, keys.ffn);
  shape.heads = shape.kv_heads = static_cast<int>(m.get_int(keys.heads, 1, int64_t{1} << 30));
  SPW_CHECK(shape.hidden % shape.heads == 0, kInvalidArgument,
            "{}: {} {} is not a multiple of {} heads", files.name, keys.hidden, shape.hidden,
            shape.heads);
  shape.head_dim = static_cast<int>(shape.hidden / shape.heads);
  shape.vocab_size = read_size(m, keys.vocab_size);
  shape.max_context = read_size(m, keys.max_context);
}

TransformerShape read_hf_shape(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  TransformerShape shape = plain_shape();
  shape.name = files.name;
  read_sizes(files, kHuggingFaceSizes, shape);

  const bool norm_before = m.try_bool("do_layer_norm_before").value_or(true);
  shape.wiring = norm_before ? ResidualWiring::kPreNorm : ResidualWiring::kPostNorm;
  shape.final_norm = norm_before && !m.try_bool("_remove_final_layer_norm").value_or(false);
  shape.norm_affine = m.try_bool("layer_norm_elementwise_affine").value_or(true);
  shape.activation = read_activation(files, "activation_function", "relu");
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias =
      m.try_bool("enable_bias").value_or(true);
  shape.tied_head = m.try_bool("tie_word_embeddings").value_or(true);
  validate(shape, files.name);
  return shape;
}

TransformerShape read_gguf_shape(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  TransformerShape shape = plain_shape();
  shape.name = printable(read_string_or(m, "general.name", files.name));
  read_sizes(files, kGgufSizes, shape);
  const bool norm_before = m.try_bool("opt.norm_before").value_or(true);
  shape.wiring = norm_before ? ResidualWiring::kPreNorm : ResidualWiring::kPostNorm;
  shape.final_norm = m.try_bool("opt.final_norm").value_or(norm_before);
  shape.norm_affine = m.try_bool("opt.norm_affine").value_or(true);
  shape.norm_eps =
      static_cast<float>(m.try_double("opt.attention.layer_norm_epsilon").value_or(1e-5));
  shape.activation = read_activation(files, "opt.activation", "relu");
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias =
      has_any(files, kGgufNames,
              {"query.bias", "key.bias", "value.bias", "attention_out.bias", "mlp_up.bias",
               "mlp_down.bias"});
  shape.tied_head = !has_any(files, kGgufNames, {"head"});
  validate(shape, files.name);
  return shape;
}

TransformerShape read_shape(const ModelFiles& files) {
  return is_gguf(files) ? read_gguf_shape(files) : read_hf_shape(files);
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  const auto size = [&](const char* key, int64_t value) { keys.add(key, value); };
  size("opt.vocab_size", shape.vocab_size);
  size("opt.context_length", shape.max_context);
  size("opt.embedding_length", shape.hidden);
  size("opt.word_embedding_length", shape.embedding_dim);
  size("opt.block_count", shape.layers);
  size("opt.feed_forward_length", shape.ffn);
  size("opt.attention.head_count", shape.heads);
  keys.add("opt.attention.layer_norm_epsilon", double{shape.norm_eps});
  keys.add("opt.norm_before", shape.wiring == ResidualWiring::kPreNorm);
  keys.add("opt.final_norm", shape.final_norm);
  keys.add("opt.norm_affine", shape.norm_affine);
  keys.add("opt.activation", std::string(activation_name(shape.activation)));
}

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kNames;
}

}  // namespace

const Family kOptFamily{.gguf_names = kFamilies,
                        .folder_names = kFamilies,
                        .read_shape = read_shape,
                        .names = names,
                        .write_gguf_keys = write_gguf_keys,
                        .gguf_caveat = "Spillway reads it; llama.cpp does not know OPT models"};

}  // namespace spillway
