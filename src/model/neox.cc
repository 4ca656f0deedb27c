// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX: GPT-NeoX-20B and Pythia. Attention and MLP read the residual stream in parallel, each
// after a norm of its own; a part of each head is rotated.
#include <string_view>

#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

// GGUF has q, k and v one after the other, Hugging Face interleaves them per head.
constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
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
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "gpt_neox.embed_in.weight"},
    {"final_norm", "gpt_neox.final_layer_norm.weight"},
    {"final_norm.bias", "gpt_neox.final_layer_norm.bias"},
    {"head", "embed_out.weight"},
    {"attention_norm", "gpt_neox.layers.{}.input_layernorm.weight"},
    {"attention_norm.bias", "gpt_neox.layers.{}.input_layernorm.bias"},
    {"query", "gpt_neox.layers.{}.attention.query_key_value.weight", TensorRows::kPerHead},
    {"key", "gpt_neox.layers.{}.attention.query_key_value.weight", TensorRows::kPerHead},
    {"value", "gpt_neox.layers.{}.attention.query_key_value.weight", TensorRows::kPerHead},
    {"query.bias", "gpt_neox.layers.{}.attention.query_key_value.bias", TensorRows::kPerHead},
    {"key.bias", "gpt_neox.layers.{}.attention.query_key_value.bias", TensorRows::kPerHead},
    {"value.bias", "gpt_neox.layers.{}.attention.query_key_value.bias", TensorRows::kPerHead},
    {"attention_out", "gpt_neox.layers.{}.attention.dense.weight"},
    {"attention_out.bias", "gpt_neox.layers.{}.attention.dense.bias"},
    {"mlp_norm", "gpt_neox.layers.{}.post_attention_layernorm.weight"},
    {"mlp_norm.bias", "gpt_neox.layers.{}.post_attention_layernorm.bias"},
    {"mlp_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"},
    {"mlp_up.bias", "gpt_neox.layers.{}.mlp.dense_h_to_4h.bias"},
    {"mlp_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h.weight"},
    {"mlp_down.bias", "gpt_neox.layers.{}.mlp.dense_4h_to_h.bias"},
};

constexpr double kUsualRotaryShare = 0.25;

constexpr std::string_view kGgufFamilies[] = {"gptneox"};
constexpr std::string_view kFolderFamilies[] = {"gpt_neox"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "gptneox";
  shape.wiring = ResidualWiring::kParallelTwoNorms;
  shape.norm = NormKind::kLayer;
  shape.norm_bias = shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = true;
  shape.activation = ActivationKind::kGelu;
  shape.gated_mlp = false;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  shape = is_gguf(files) ? read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves)
                         : read_usual_folder(files, kHuggingFaceNames, shape,
                                             {.rotary_share = kUsualRotaryShare});
  const char* const key =
      is_gguf(files) ? "gptneox.use_parallel_residual" : "use_parallel_residual";
  if (!files.metadata.try_bool(key).value_or(true)) shape.wiring = ResidualWiring::kPreNorm;
  return shape;
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  keys.add("gptneox.use_parallel_residual", shape.wiring == ResidualWiring::kParallelTwoNorms);
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"pythia-14m", 6, 128, 4, 4, 512, 50304, 2048, false},
    {"pythia-31m", 6, 256, 8, 8, 1024, 50304, 2048, false},
    {"pythia-70m", 6, 512, 8, 8, 2048, 50304, 2048, false},
    {"pythia-160m", 12, 768, 12, 12, 3072, 50304, 2048, false},
    {"pythia-410m", 24, 1024, 16, 16, 4096, 50304, 2048, false},
    {"pythia-1b", 16, 2048, 8, 8, 8192, 50304, 2048, false},
    {"pythia-1.4b", 24, 2048, 16, 16, 8192, 50304, 2048, false},
    {"pythia-2.8b", 32, 2560, 32, 32, 10240, 50304, 2048, false},
    {"pythia-6.9b", 32, 4096, 32, 32, 16384, 50432, 2048, false},
    {"pythia-12b", 36, 5120, 40, 40, 20480, 50688, 2048, false},
    {"gpt-neox-20b", 44, 6144, 64, 64, 24576, 50432, 2048, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  set_plain_rope(shape.rope, 10000, shape.head_dim / 4);
  if (shape.name == "gpt-neox-20b") shape.activation = ActivationKind::kGeluTanh;
}

}  // namespace

const Family kNeoXFamily{.gguf_names = kGgufFamilies,
                         .folder_names = kFolderFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_gguf_keys,
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
