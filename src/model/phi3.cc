// SPDX-License-Identifier: Apache-2.0
// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini are built like Llama. Their files have q, k and v in one
// tensor, and the two matrices before the activation in another.
#include <string_view>

#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"query", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"key", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"value", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_up.weight", TensorRows::kStacked},
    {"mlp_up", "blk.{}.ffn_up.weight", TensorRows::kStacked},
    {"mlp_down", "blk.{}.ffn_down.weight"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight"},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight"},
    {"query", "model.layers.{}.self_attn.qkv_proj.weight", TensorRows::kStacked},
    {"key", "model.layers.{}.self_attn.qkv_proj.weight", TensorRows::kStacked},
    {"value", "model.layers.{}.self_attn.qkv_proj.weight", TensorRows::kStacked},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_up_proj.weight", TensorRows::kStacked},
    {"mlp_up", "model.layers.{}.mlp.gate_up_proj.weight", TensorRows::kStacked},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
};

constexpr std::string_view kFamilies[] = {"phi3"};
constexpr float kUsualEpsilon = 1e-5F;
constexpr int kOriginalContext = 4096;

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  shape.family = "phi3";
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  shape =
      read_usual_folder(files, kHuggingFaceNames, shape, {.original_context = kOriginalContext});
  if (!files.metadata.contains("rms_norm_eps")) shape.norm_eps = kUsualEpsilon;
  return shape;
}

// The sizes are from the published configurations. Phi-4-mini's context is its original one, the
// longest that runs.
constexpr KnownSizes kKnown[] = {
    {"phi-3-mini", 32, 3072, 32, 32, 8192, 32064, 4096, false},
    {"phi-3-medium", 40, 5120, 40, 10, 17920, 32064, 4096, false},
    {"phi-4", 40, 5120, 40, 10, 17920, 100352, 16384, false},
    {"phi-4-mini", 32, 3072, 24, 8, 8192, 200064, kOriginalContext, true},
};
constexpr int kMiniContext = 131072;  // with the long factors

void complete(TransformerShape& shape) {
  shape.family = "phi3";
  if (shape.name == "phi-4-mini") {
    set_plain_rope(shape.rope, 10000, shape.head_dim * 3 / 4);
    shape.rope.scale = static_cast<float>(
        longrope_attention_factor(kMiniContext / kOriginalContext, kOriginalContext));
    return;
  }
  const bool is_fourth = shape.name == "phi-4";
  set_plain_rope(shape.rope, is_fourth ? 250000 : 10000, shape.head_dim);
  if (!is_fourth) shape.sliding_window = 2047;
}

}  // namespace

const Family kPhi3Family{
    .gguf_names = kFamilies,
    .folder_names = kFamilies,
    .read_shape = read_shape,
    .names = names,
    .write_gguf_keys = write_usual_keys,
    .gguf_caveat = "Spillway reads it; llama.cpp may not if the model has a longrope scaling",
    .known = kKnown,
    .complete = complete};

}  // namespace spillway
