// SPDX-License-Identifier: Apache-2.0
// OLMo 2 is built like Llama, but normalizes the results of attention and MLP instead of their
// inputs, and all of q and of k as one row each.
#include <string_view>

#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"head", "output.weight"},
    {"query", "blk.{}.attn_q.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"query_norm", "blk.{}.attn_q_norm.weight"},
    {"key", "blk.{}.attn_k.weight"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"key_norm", "blk.{}.attn_k_norm.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"value.bias", "blk.{}.attn_v.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"attention_post_norm", "blk.{}.post_attention_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_post_norm", "blk.{}.post_ffw_norm.weight"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight"},
    {"head", "lm_head.weight"},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"query.bias", "model.layers.{}.self_attn.q_proj.bias"},
    {"query_norm", "model.layers.{}.self_attn.q_norm.weight"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"key.bias", "model.layers.{}.self_attn.k_proj.bias"},
    {"key_norm", "model.layers.{}.self_attn.k_norm.weight"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"value.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"attention_out.bias", "model.layers.{}.self_attn.o_proj.bias"},
    {"attention_post_norm", "model.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
    {"mlp_post_norm", "model.layers.{}.post_feedforward_layernorm.weight"},
};

constexpr std::string_view kFamilies[] = {"olmo2"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "olmo2";
  shape.wiring = ResidualWiring::kBranchNorm;
  shape.row_norms = true;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  return read_usual_folder(files, kHuggingFaceNames, shape, {.norm_eps = 1e-5});
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"olmo-2-1b", 16, 2048, 16, 16, 8192, 100352, 4096, false},
    {"olmo-2-7b", 32, 4096, 32, 32, 11008, 100352, 4096, false},
    {"olmo-2-13b", 40, 5120, 40, 40, 13824, 100352, 4096, false},
    {"olmo-2-32b", 64, 5120, 40, 8, 27648, 100352, 4096, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  shape.norm_eps = 1e-6F;
  set_plain_rope(shape.rope, 500000, shape.head_dim);
}

}  // namespace

const Family kOlmo2Family{.gguf_names = kFamilies,
                          .folder_names = kFamilies,
                          .read_shape = read_shape,
                          .names = names,
                          .write_gguf_keys = write_usual_keys,
                          .known = kKnown,
                          .complete = complete};

}  // namespace spillway
