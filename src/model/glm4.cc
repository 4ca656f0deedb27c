// SPDX-License-Identifier: Apache-2.0
// GLM-4-0414: as GLM-4 before it (glm.cc), with norms also after attention and after the MLP.
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
    {"query", "blk.{}.attn_q.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key", "blk.{}.attn_k.weight"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value", "blk.{}.attn_v.weight"},
    {"value.bias", "blk.{}.attn_v.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_post_norm", "blk.{}.post_attention_norm.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_up.weight", TensorRows::kStacked},
    {"mlp_up", "blk.{}.ffn_up.weight", TensorRows::kStacked},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_post_norm", "blk.{}.post_ffw_norm.weight"},
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
    {"attention_post_norm", "model.layers.{}.post_self_attn_layernorm.weight"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_up_proj.weight", TensorRows::kStacked},
    {"mlp_up", "model.layers.{}.mlp.gate_up_proj.weight", TensorRows::kStacked},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
    {"mlp_post_norm", "model.layers.{}.post_mlp_layernorm.weight"},
};

constexpr double kUsualEpsilon = 1.5625e-7;
constexpr std::string_view kFamilies[] = {"glm4"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "glm4";
  shape.wiring = ResidualWiring::kSandwich;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kInterleaved);
  shape.qkv_bias = true;  // unless config.json says otherwise
  shape = read_usual_folder(
      files, kHuggingFaceNames, shape,
      {.rotary_share = 0.5, .kv_heads = 2, .head_dim = 128, .norm_eps = kUsualEpsilon});
  shape.rope.style = RopeStyle::kInterleaved;
  return shape;
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"glm-4-9b-0414", 40, 4096, 32, 2, 13696, 151552, 32768, false},
    {"glm-4-32b-0414", 61, 6144, 48, 8, 23040, 151552, 32768, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  shape.qkv_bias = shape.layers == 40;
  shape.norm_eps = 1e-5F;
  set_plain_rope(shape.rope, 10000, shape.head_dim / 2);
  shape.rope.style = RopeStyle::kInterleaved;
}

}  // namespace

const Family kGlm4Family{.gguf_names = kFamilies,
                         .folder_names = kFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_usual_keys,
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
