// SPDX-License-Identifier: Apache-2.0
// Llama 1, 2 and 3, and models that are built like them: Mistral, SmolLM2, TinyLlama.
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

constexpr std::string_view kGgufFamilies[] = {"llama"};
constexpr std::string_view kFolderFamilies[] = {"llama", "mistral"};

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  shape.family = "llama";
  // GGUF has the rows of q and k in an order in which rotary pairs are adjacent.
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kInterleaved);
  return read_usual_folder(files, kHuggingFaceNames, shape);
}

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

}  // namespace

const Family kLlamaFamily{.gguf_names = kGgufFamilies,
                          .folder_names = kFolderFamilies,
                          .read_shape = read_shape,
                          .names = names,
                          .write_gguf_keys = write_usual_keys,
                          .gguf_pairs_rope = true};

}  // namespace spillway
