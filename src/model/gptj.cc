// SPDX-License-Identifier: Apache-2.0
// GPT-J: attention and MLP read one norm of the residual stream in parallel, adjacent elements of
// the first part of each head are rotated, and the head has a bias.
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/metadata_fields.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr WeightName kGgufNames[] = {
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"head", "output.weight"},
    {"head.bias", "output.bias"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm.bias"},
    {"query", "blk.{}.attn_q.weight"},
    {"key", "blk.{}.attn_k.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_up.bias", "blk.{}.ffn_up.bias"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_down.bias", "blk.{}.ffn_down.bias"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"token_embedding", "transformer.wte.weight"},
    {"final_norm", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
    {"head", "lm_head.weight"},
    {"head.bias", "lm_head.bias"},
    {"attention_norm", "transformer.h.{}.ln_1.weight"},
    {"attention_norm.bias", "transformer.h.{}.ln_1.bias"},
    {"query", "transformer.h.{}.attn.q_proj.weight"},
    {"key", "transformer.h.{}.attn.k_proj.weight"},
    {"value", "transformer.h.{}.attn.v_proj.weight"},
    {"attention_out", "transformer.h.{}.attn.out_proj.weight"},
    {"mlp_up", "transformer.h.{}.mlp.fc_in.weight"},
    {"mlp_up.bias", "transformer.h.{}.mlp.fc_in.bias"},
    {"mlp_down", "transformer.h.{}.mlp.fc_out.weight"},
    {"mlp_down.bias", "transformer.h.{}.mlp.fc_out.bias"},
};

constexpr int kUsualRotaryDims = 64;
constexpr std::string_view kFamilies[] = {"gptj"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "gptj";
  shape.norm = NormKind::kLayer;
  shape.norm_bias = shape.mlp_bias = shape.head_bias = true;
  shape.wiring = ResidualWiring::kParallel;
  shape.activation = ActivationKind::kGeluTanh;
  shape.gated_mlp = false;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  if (is_gguf(files)) return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kInterleaved);
  const Metadata& m = files.metadata;
  const int heads = read_size(m, "n_head"), hidden = read_size(m, "n_embd");
  SPW_CHECK(heads > 0 && hidden >= heads, kInvalidArgument,
            "{}: n_embd is {} and n_head {}, which makes no sense", files.name, hidden, heads);
  const int rotated = read_size_or(m, "rotary_dim", kUsualRotaryDims);
  shape = read_usual_folder(
      files, kHuggingFaceNames, shape,
      {.rotary_share = static_cast<double>(rotated) * heads / hidden, .ffn_is_4_times = true});
  shape.rope.style = RopeStyle::kInterleaved;
  return shape;
}

// The sizes are from the published configuration.
constexpr KnownSizes kKnown[] = {
    {"gpt-j-6b", 28, 4096, 16, 16, 16384, 50400, 2048, false},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  set_plain_rope(shape.rope, 10000, kUsualRotaryDims);
  shape.rope.style = RopeStyle::kInterleaved;
}

}  // namespace

const Family kGptJFamily{.gguf_names = kFamilies,
                         .folder_names = kFamilies,
                         .read_shape = read_shape,
                         .names = names,
                         .write_gguf_keys = write_usual_keys,
                         .gguf_caveat = "Spillway reads it; llama.cpp does not run GPT-J models",
                         .known = kKnown,
                         .complete = complete};

}  // namespace spillway
