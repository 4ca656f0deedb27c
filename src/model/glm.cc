// SPDX-License-Identifier: Apache-2.0
// GLM-4 and GLM-Edge as transformers saves them, and GGUF files of these and of ChatGLM: built like
// Llama, with biases on q, k and v; adjacent elements of the first part of each head are rotated.
#include <string_view>

#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr TensorRows kStacked = TensorRows::kStacked;

// The first entries are for q, k and v in one tensor; the last ones are for a tensor of each, as in
// the files that llama.cpp makes of transformers' folders.
constexpr size_t kQkvNames = 6;
constexpr WeightName kGgufNames[] = {
    {"query", "blk.{}.attn_qkv.weight", kStacked},
    {"key", "blk.{}.attn_qkv.weight", kStacked},
    {"value", "blk.{}.attn_qkv.weight", kStacked},
    {"query.bias", "blk.{}.attn_qkv.bias", kStacked},
    {"key.bias", "blk.{}.attn_qkv.bias", kStacked},
    {"value.bias", "blk.{}.attn_qkv.bias", kStacked},
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_up.weight", kStacked},
    {"mlp_up", "blk.{}.ffn_up.weight", kStacked},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"query", "blk.{}.attn_q.weight"},
    {"key", "blk.{}.attn_k.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value.bias", "blk.{}.attn_v.bias"},
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
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_up_proj.weight", kStacked},
    {"mlp_up", "model.layers.{}.mlp.gate_up_proj.weight", kStacked},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
};

constexpr double kUsualEpsilon = 1.5625e-7;

constexpr std::string_view kGgufFamilies[] = {"chatglm"};
constexpr std::string_view kFolderFamilies[] = {"glm"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (!is_gguf(files)) return kHuggingFaceNames;
  const std::span<const WeightName> all = kGgufNames;
  const bool is_separate = has_any(files, all.last(kQkvNames), {"query"});
  return is_separate ? all.subspan(kQkvNames) : all.first(all.size() - kQkvNames);
}

void set_family(TransformerShape& shape) {
  shape.family = "chatglm";
  shape.qkv_bias = true;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  if (is_gguf(files)) return read_usual_gguf(files, names(files), shape, RopeStyle::kInterleaved);
  shape = read_usual_folder(
      files, kHuggingFaceNames, shape,
      {.rotary_share = 0.5, .kv_heads = 2, .head_dim = 128, .norm_eps = kUsualEpsilon});
  shape.rope.style = RopeStyle::kInterleaved;
  return shape;
}

// The sizes are from the published configuration of glm-4-9b-chat.
constexpr KnownSizes kKnown[] = {
    {"glm-4-9b", 40, 4096, 32, 2, 13696, 151552, 131072, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  shape.norm_eps = static_cast<float>(kUsualEpsilon);
  set_plain_rope(shape.rope, 5e6, shape.head_dim / 2);
  shape.rope.style = RopeStyle::kInterleaved;
}

}  // namespace

const Family kGlmFamily{.gguf_names = kGgufFamilies,
                        .folder_names = kFolderFamilies,
                        .read_shape = read_shape,
                        .names = names,
                        .write_gguf_keys = write_usual_keys,
                        .known = kKnown,
                        .complete = complete};

}  // namespace spillway
