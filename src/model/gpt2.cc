// SPDX-License-Identifier: Apache-2.0
// GPT-2, and GPT-3, which has the same layers in other sizes: learned positions, LayerNorm before
// attention and MLP, biases everywhere, GELU. Hugging Face stores its matrices transposed.
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"position_embedding", "position_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"head", "output.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm.bias"},
    {"query", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"key", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"value", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"query.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"key.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"value.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_norm.bias", "blk.{}.ffn_norm.bias"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_up.bias", "blk.{}.ffn_up.bias"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_down.bias", "blk.{}.ffn_down.bias"},
};
constexpr bool kTransposed = true;
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "transformer.wte.weight"},
    {"position_embedding", "transformer.wpe.weight"},
    {"final_norm", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
    {"head", "lm_head.weight"},
    {"attention_norm", "transformer.h.{}.ln_1.weight"},
    {"attention_norm.bias", "transformer.h.{}.ln_1.bias"},
    {"query", "transformer.h.{}.attn.c_attn.weight", TensorRows::kStacked, kTransposed},
    {"key", "transformer.h.{}.attn.c_attn.weight", TensorRows::kStacked, kTransposed},
    {"value", "transformer.h.{}.attn.c_attn.weight", TensorRows::kStacked, kTransposed},
    {"query.bias", "transformer.h.{}.attn.c_attn.bias", TensorRows::kStacked},
    {"key.bias", "transformer.h.{}.attn.c_attn.bias", TensorRows::kStacked},
    {"value.bias", "transformer.h.{}.attn.c_attn.bias", TensorRows::kStacked},
    {"attention_out", "transformer.h.{}.attn.c_proj.weight", TensorRows::kOwn, kTransposed},
    {"attention_out.bias", "transformer.h.{}.attn.c_proj.bias"},
    {"mlp_norm", "transformer.h.{}.ln_2.weight"},
    {"mlp_norm.bias", "transformer.h.{}.ln_2.bias"},
    {"mlp_up", "transformer.h.{}.mlp.c_fc.weight", TensorRows::kOwn, kTransposed},
    {"mlp_up.bias", "transformer.h.{}.mlp.c_fc.bias"},
    {"mlp_down", "transformer.h.{}.mlp.c_proj.weight", TensorRows::kOwn, kTransposed},
    {"mlp_down.bias", "transformer.h.{}.mlp.c_proj.bias"},
};

constexpr std::string_view kFamilies[] = {"gpt2"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void complete(TransformerShape& shape) {
  shape.family = "gpt2";
  shape.norm = NormKind::kLayer;
  shape.norm_bias = shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.position = PositionKind::kLearned;
  shape.activation = ActivationKind::kGeluTanh;
  shape.gated_mlp = false;
  shape.tied_head = true;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  complete(shape);
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  const auto check = [&](const char* key, bool wanted) {
    SPW_CHECK(files.metadata.try_bool(key).value_or(wanted) == wanted, kUnsupported,
              "{}: {} is {}, which is not supported in a model of the family gpt2", files.name, key,
              !wanted);
  };
  check("scale_attn_weights", true);
  check("scale_attn_by_inverse_layer_idx", false);
  check("add_cross_attention", false);
  return read_usual_folder(files, kHuggingFaceNames, shape, {.ffn_is_4_times = true});
}

// The sizes are from the published configurations; GPT-3's are from its paper (table 2.1).
constexpr KnownSizes kKnown[] = {
    {"gpt2", 12, 768, 12, 12, 3072, 50257, 1024, true},
    {"gpt2-medium", 24, 1024, 16, 16, 4096, 50257, 1024, true},
    {"gpt2-large", 36, 1280, 20, 20, 5120, 50257, 1024, true},
    {"gpt2-xl", 48, 1600, 25, 25, 6400, 50257, 1024, true},
    {"gpt-3", 96, 12288, 96, 96, 49152, 50257, 2048, true},
    {"gpt-3-6.7b", 32, 4096, 32, 32, 16384, 50257, 2048, true},
};

}  // namespace

const Family kGpt2Family{.gguf_names = kFamilies,
                         .folder_names = kFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_usual_keys,
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
