// SPDX-License-Identifier: Apache-2.0
// StableLM-3B-4E1T and StableLM 2 are built like Llama, with LayerNorm, and rotate a part of each
// head.
#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
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
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_norm.bias", "blk.{}.ffn_norm.bias"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight"},
    {"final_norm.bias", "model.norm.bias"},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight"},
    {"attention_norm.bias", "model.layers.{}.input_layernorm.bias"},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"query.bias", "model.layers.{}.self_attn.q_proj.bias"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"key.bias", "model.layers.{}.self_attn.k_proj.bias"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"value.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_norm.bias", "model.layers.{}.post_attention_layernorm.bias"},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
};
// StableLM 2 12B has these tensors, and Spillway does not run it.
constexpr WeightName kGgufHeadNorms[] = {
    {"query_norm", "blk.{}.attn_q_norm.weight"},
    {"key_norm", "blk.{}.attn_k_norm.weight"},
};

constexpr double kUsualRotaryShare = 0.25;

constexpr std::string_view kFamilies[] = {"stablelm"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "stablelm";
  shape.norm = NormKind::kLayer;
  shape.norm_bias = true;
}

void check_head_norms(const ModelFiles& files, bool has_head_norms) {
  SPW_CHECK(!has_head_norms, kUnsupported,
            "{}: qk_layernorm, a norm of its own for each head of q and k, is not supported yet",
            files.name);
}

TransformerShape read_gguf(const ModelFiles& files, TransformerShape shape) {
  check_head_norms(files, has_any(files, kGgufHeadNorms, {"query_norm", "key_norm"}));
  shape = read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  // If config.json lacks the key, llama.cpp's converter writes true, and llama.cpp decides by
  // whether the norm exists.
  const bool is_parallel =
      files.metadata.try_bool("stablelm.use_parallel_residual").value_or(true) &&
      !has_any(files, kGgufNames, {"mlp_norm", "mlp_norm.bias"});
  if (is_parallel) shape.wiring = ResidualWiring::kParallel;
  return shape;
}

TransformerShape read_folder(const ModelFiles& files, TransformerShape shape) {
  const Metadata& m = files.metadata;
  check_head_norms(files, m.try_bool("qk_layernorm").value_or(false));
  shape = read_usual_folder(files, kHuggingFaceNames, shape, {.rotary_share = kUsualRotaryShare});
  shape.qkv_bias = m.try_bool("use_qkv_bias").value_or(false);
  if (m.try_bool("use_parallel_residual").value_or(false)) shape.wiring = ResidualWiring::kParallel;
  return shape;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  return is_gguf(files) ? read_gguf(files, shape) : read_folder(files, shape);
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  keys.add("stablelm.use_parallel_residual", shape.wiring == ResidualWiring::kParallel);
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"stablelm-3b-4e1t", 32, 2560, 32, 32, 6912, 50304, 4096, false},
    {"stablelm-zephyr-3b", 32, 2560, 32, 32, 6912, 50304, 4096, false},
    {"stablelm-2-1.6b", 24, 2048, 32, 32, 5632, 100352, 4096, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  shape.qkv_bias = shape.name == "stablelm-2-1.6b";
  set_plain_rope(shape.rope, 10000, shape.head_dim / 4);
}

}  // namespace

const Family kStableLmFamily{.gguf_names = kFamilies,
                             .folder_names = kFamilies,
                             .read_shape = read_shape,
                             .names = names,
                             .write_gguf_keys = write_gguf_keys,
                             .known = kKnown,
                             .complete = complete};

}  // namespace spillway
