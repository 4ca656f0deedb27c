// SPDX-License-Identifier: Apache-2.0
// Command R and Aya: attention and a gated MLP read one norm of the residual stream in parallel,
// norms have no bias, adjacent elements of a head are rotated, and the logits are scaled.
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
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
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
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
};
// Command R+ has these tensors, and Spillway does not run it.
constexpr WeightName kGgufHeadNorms[] = {
    {"query_norm", "blk.{}.attn_q_norm.weight"},
    {"key_norm", "blk.{}.attn_k_norm.weight"},
};

constexpr const char* kGgufLogitScale = "command-r.logit_scale";
constexpr float kUsualLogitScale = 0.0625F;
constexpr double kUsualTheta = 500000;

constexpr std::string_view kGgufFamilies[] = {"command-r"};
constexpr std::string_view kFolderFamilies[] = {"cohere"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "command-r";
  shape.wiring = ResidualWiring::kParallel;
  shape.norm = NormKind::kLayer;
  shape.tied_head = true;
  shape.logit_scale = kUsualLogitScale;
}

void check_head_norms(const ModelFiles& files, bool has_head_norms) {
  SPW_CHECK(!has_head_norms, kUnsupported,
            "{}: use_qk_norm, a norm of its own for each head of q and k as in Command R+, is not "
            "supported yet",
            files.name);
}

TransformerShape read_gguf(const ModelFiles& files, TransformerShape shape) {
  check_head_norms(files, has_any(files, kGgufHeadNorms, {"query_norm", "key_norm"}));
  // As in llama.cpp, 0 stands for no factor.
  const double scale = files.metadata.try_double(kGgufLogitScale).value_or(0);
  shape.logit_scale = scale == 0 ? 1 : static_cast<float>(scale);
  return read_usual_gguf(files, kGgufNames, shape, RopeStyle::kInterleaved);
}

TransformerShape read_folder(const ModelFiles& files, TransformerShape shape) {
  const Metadata& m = files.metadata;
  check_head_norms(files, m.try_bool("use_qk_norm").value_or(false));
  shape.logit_scale =
      static_cast<float>(m.try_double("logit_scale").value_or(double{kUsualLogitScale}));
  shape = read_usual_folder(files, kHuggingFaceNames, shape, {.rope_theta = kUsualTheta});
  shape.rope.style = RopeStyle::kInterleaved;
  // Command R was trained on far more tokens than its max_position_embeddings.
  shape.max_context = read_size_or(m, "model_max_length", shape.max_context);
  validate(shape, files.name);
  return shape;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  return is_gguf(files) ? read_gguf(files, shape) : read_folder(files, shape);
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  keys.add(kGgufLogitScale, double{shape.logit_scale});
}

// The sizes are from the published configuration.
constexpr KnownSizes kKnown[] = {
    {"command-r", 40, 8192, 64, 64, 22528, 256000, 131072, true},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  set_plain_rope(shape.rope, 8e6, shape.head_dim);
  shape.rope.style = RopeStyle::kInterleaved;
}

}  // namespace

const Family kCommandRFamily{.gguf_names = kGgufFamilies,
                             .folder_names = kFolderFamilies,
                             .read_shape = read_shape,
                             .names = names,
                             .write_gguf_keys = write_gguf_keys,
                             .known = kKnown,
                             .complete = complete};

}  // namespace spillway
