// SPDX-License-Identifier: Apache-2.0
// The first Gemma models are built like Llama, with wide heads and GELU; embeddings are multiplied
// by the square root of their width.
#include <cmath>
#include <string_view>

#include "base/error.h"
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
    {"key", "blk.{}.attn_k.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
};
// Hugging Face's files have the weights of norms less one; GGUF files have them as they are.
constexpr bool kLessOne = true;
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.norm.weight", TensorRows::kOwn, false, kLessOne},
    {"head", "lm_head.weight"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight", TensorRows::kOwn, false, kLessOne},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"mlp_norm", "model.layers.{}.post_attention_layernorm.weight", TensorRows::kOwn, false,
     kLessOne},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
};

constexpr std::string_view kFamilies[] = {"gemma"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "gemma";
  shape.activation = ActivationKind::kGeluTanh;
  shape.tied_head = true;
}

void scale_embeddings(TransformerShape& shape) {
  shape.embedding_scale = std::sqrt(static_cast<float>(shape.hidden));
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  if (is_gguf(files)) {
    shape = read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  } else {
    shape = read_usual_folder(files, kHuggingFaceNames, shape, {.head_dim = 256});
    // Old files say gelu, and the models were trained with its approximation.
    if (shape.activation == ActivationKind::kGelu) shape.activation = ActivationKind::kGeluTanh;
    SPW_CHECK(shape.activation == ActivationKind::kGeluTanh, kUnsupported,
              "{}: hidden_act is not supported in a model of the family gemma unless it is gelu",
              files.name);
  }
  scale_embeddings(shape);
  return shape;
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"gemma-2b", 18, 2048, 8, 1, 16384, 256000, 8192, true},
    {"gemma-7b", 28, 3072, 16, 16, 24576, 256000, 8192, true},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  scale_embeddings(shape);
  shape.head_dim = 256;
  shape.norm_eps = 1e-6F;
  set_plain_rope(shape.rope, 10000, shape.head_dim);
}

}  // namespace

const Family kGemmaFamily{.gguf_names = kFamilies,
                          .folder_names = kFamilies,
                          .read_shape = read_shape,
                          .names = names,
                          .write_gguf_keys = write_usual_keys,
                          .known = kKnown,
                          .complete = complete};

}  // namespace spillway
