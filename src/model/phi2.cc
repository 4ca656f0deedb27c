// SPDX-License-Identifier: Apache-2.0
// Phi-1, Phi-1.5 and Phi-2: attention and MLP read one norm of the residual stream in parallel, a
// part of each head is rotated, and all matrices have biases, that of the head among them.
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

// The first entries are for GGUF files of Phi-2 as it was published first, with q, k and v in one
// tensor; the last ones for all others.
constexpr size_t kQkv = 6;
constexpr WeightName kGgufNames[] = {
    {"query", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"key", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"value", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"query.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"key.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"value.bias", "blk.{}.attn_qkv.bias", TensorRows::kStacked},
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"head", "output.weight"},
    {"head.bias", "output.bias"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm.bias"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_out.bias", "blk.{}.attn_output.bias"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_up.bias", "blk.{}.ffn_up.bias"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_down.bias", "blk.{}.ffn_down.bias"},
    {"query", "blk.{}.attn_q.weight"},
    {"key", "blk.{}.attn_k.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"query.bias", "blk.{}.attn_q.bias"},
    {"key.bias", "blk.{}.attn_k.bias"},
    {"value.bias", "blk.{}.attn_v.bias"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "model.embed_tokens.weight"},
    {"final_norm", "model.final_layernorm.weight"},
    {"final_norm.bias", "model.final_layernorm.bias"},
    {"head", "lm_head.weight"},
    {"head.bias", "lm_head.bias"},
    {"attention_norm", "model.layers.{}.input_layernorm.weight"},
    {"attention_norm.bias", "model.layers.{}.input_layernorm.bias"},
    {"query", "model.layers.{}.self_attn.q_proj.weight"},
    {"key", "model.layers.{}.self_attn.k_proj.weight"},
    {"value", "model.layers.{}.self_attn.v_proj.weight"},
    {"query.bias", "model.layers.{}.self_attn.q_proj.bias"},
    {"key.bias", "model.layers.{}.self_attn.k_proj.bias"},
    {"value.bias", "model.layers.{}.self_attn.v_proj.bias"},
    {"attention_out", "model.layers.{}.self_attn.dense.weight"},
    {"attention_out.bias", "model.layers.{}.self_attn.dense.bias"},
    {"mlp_up", "model.layers.{}.mlp.fc1.weight"},
    {"mlp_up.bias", "model.layers.{}.mlp.fc1.bias"},
    {"mlp_down", "model.layers.{}.mlp.fc2.weight"},
    {"mlp_down.bias", "model.layers.{}.mlp.fc2.bias"},
};

constexpr std::string_view kGgufFamilies[] = {"phi2"};
constexpr std::string_view kFolderFamilies[] = {"phi"};

std::span<const WeightName> names(const ModelFiles& files) {
  const std::span<const WeightName> gguf = kGgufNames;
  if (!is_gguf(files)) return kHuggingFaceNames;
  const bool is_stacked = has_any(files, gguf.first(kQkv), {"query"});
  return is_stacked ? gguf.first(gguf.size() - kQkv) : gguf.subspan(kQkv);
}

void set_family(TransformerShape& shape) {
  shape.family = "phi2";
  shape.wiring = ResidualWiring::kParallel;
  shape.norm = NormKind::kLayer;
  shape.norm_bias = true;
  shape.activation = ActivationKind::kGeluTanh;
  shape.gated_mlp = false;
}

// Every Phi model has all biases: no key of a configuration and no missing tensor switches them
// off.
void set_biases(TransformerShape& shape) {
  shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = shape.head_bias = true;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  SPW_CHECK(!files.metadata.try_bool("qk_layernorm").value_or(false), kUnsupported,
            "{}: qk_layernorm, a norm with biases for the heads of q and k, is not supported yet",
            files.name);
  shape = is_gguf(files) ? read_usual_gguf(files, names(files), shape, RopeStyle::kHalves)
                         : read_usual_folder(files, names(files), shape,
                                             {.rotary_share = 0.5, .context = 2048});
  set_biases(shape);
  validate(shape, files.name);
  return shape;
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"phi-1", 24, 2048, 32, 32, 8192, 51200, 2048, false},
    {"phi-1.5", 24, 2048, 32, 32, 8192, 51200, 2048, false},
    {"phi-2", 32, 2560, 32, 32, 10240, 51200, 2048, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  set_biases(shape);
  set_plain_rope(shape.rope, 10000, 32);
}

}  // namespace

const Family kPhi2Family{.gguf_names = kGgufFamilies,
                         .folder_names = kFolderFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_usual_keys,
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
