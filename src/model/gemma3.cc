// SPDX-License-Identifier: Apache-2.0
// Gemma 3 without its images: norms before and after attention and MLP and of the heads of q and k,
// and a window in all but every sixth layer. Layers with a window have a rope of their own.
#include <cmath>
#include <string>
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
    {"key", "blk.{}.attn_k.weight"},
    {"value", "blk.{}.attn_v.weight"},
    {"query_norm", "blk.{}.attn_q_norm.weight"},
    {"key_norm", "blk.{}.attn_k_norm.weight"},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"attention_post_norm", "blk.{}.post_attention_norm.weight"},
    {"mlp_norm", "blk.{}.ffn_norm.weight"},
    {"mlp_gate", "blk.{}.ffn_gate.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"mlp_post_norm", "blk.{}.post_ffw_norm.weight"},
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
    {"query_norm", "model.layers.{}.self_attn.q_norm.weight", TensorRows::kOwn, false, kLessOne},
    {"key_norm", "model.layers.{}.self_attn.k_norm.weight", TensorRows::kOwn, false, kLessOne},
    {"attention_out", "model.layers.{}.self_attn.o_proj.weight"},
    {"attention_post_norm", "model.layers.{}.post_attention_layernorm.weight", TensorRows::kOwn,
     false, kLessOne},
    {"mlp_norm", "model.layers.{}.pre_feedforward_layernorm.weight", TensorRows::kOwn, false,
     kLessOne},
    {"mlp_gate", "model.layers.{}.mlp.gate_proj.weight"},
    {"mlp_up", "model.layers.{}.mlp.up_proj.weight"},
    {"mlp_down", "model.layers.{}.mlp.down_proj.weight"},
    {"mlp_post_norm", "model.layers.{}.post_feedforward_layernorm.weight", TensorRows::kOwn, false,
     kLessOne},
};

constexpr int kUsualInterval = 6;
constexpr double kUsualTheta = 1e6, kUsualLocalTheta = 10000;
constexpr std::string_view kGgufFamilies[] = {"gemma3"};
constexpr std::string_view kFolderFamilies[] = {"gemma3_text"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kHuggingFaceNames;
}

void set_family(TransformerShape& shape) {
  shape.family = "gemma3";
  shape.wiring = ResidualWiring::kSandwich;
  shape.head_norms = true;
  shape.activation = ActivationKind::kGeluTanh;
  shape.tied_head = true;
}

void finish(TransformerShape& shape, int interval, double local_theta, const std::string& where) {
  shape.embedding_scale = std::sqrt(static_cast<float>(shape.hidden));
  // A model with fewer layers has none that attends to all tokens.
  shape.full_attention_every = interval <= shape.layers ? interval : 0;
  set_plain_rope(shape.local_rope, local_theta, shape.head_dim);
  validate(shape, where);
}

// Among the published sizes, only the one with 62 layers scales scores by its width per head.
float usual_scale(const TransformerShape& shape) {
  const int64_t width = shape.layers == 62 ? shape.hidden / shape.heads : shape.head_dim;
  return 1 / std::sqrt(static_cast<float>(width));
}

TransformerShape read_gguf(const ModelFiles& files, TransformerShape shape) {
  const Metadata& m = files.metadata;
  shape = read_usual_gguf(files, kGgufNames, shape, RopeStyle::kHalves);
  shape.attention_scale = static_cast<float>(
      m.try_double("gemma3.attention.scale").value_or(double{usual_scale(shape)}));
  finish(shape, read_size_or(m, "gemma3.attention.sliding_window_pattern", kUsualInterval),
         m.try_double("gemma3.rope.freq_base_swa").value_or(kUsualLocalTheta), files.name);
  return shape;
}

// Returns n if every n-th layer, and no other, attends to all tokens.
int read_interval(const ModelFiles& files, int layers) {
  const Metadata& m = files.metadata;
  const StringArray* const types = m.try_string_array("layer_types");
  if (types == nullptr)
    return read_size_or(m, "sliding_window_pattern",
                        read_size_or(m, "_sliding_window_pattern", kUsualInterval));
  SPW_CHECK(types->size() == static_cast<size_t>(layers), kInvalidArgument,
            "{}: layer_types has {} elements for {} layers", files.name, types->size(), layers);
  const auto sees_all = [&](int layer) {
    return (*types)[static_cast<size_t>(layer)] == "full_attention";
  };
  int interval = 1;
  while (interval <= layers && !sees_all(interval - 1)) ++interval;
  for (int layer = 0; layer < layers; ++layer) {
    SPW_CHECK(sees_all(layer) == ((layer + 1) % interval == 0), kUnsupported,
              "{}: layer_types is not supported unless it has full_attention for every n-th layer "
              "alone",
              files.name);
  }
  return interval;
}

TransformerShape read_folder(const ModelFiles& files, TransformerShape shape) {
  const Metadata& m = files.metadata;
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    SPW_CHECK(!m.contains(key), kUnsupported, "{}: {} is not supported yet", files.name, key);
  SPW_CHECK(!m.try_bool("use_bidirectional_attention").value_or(false), kUnsupported,
            "{}: use_bidirectional_attention is not supported", files.name);
  shape = read_usual_folder(files, kHuggingFaceNames, shape,
                            {.context = 131072, .head_dim = 256, .rope_theta = kUsualTheta});
  const double scalar = m.try_double("query_pre_attn_scalar").value_or(256);
  SPW_CHECK(std::isfinite(scalar) && scalar > 0, kInvalidArgument,
            "{}: query_pre_attn_scalar is {}, which makes no sense", files.name, scalar);
  shape.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  const std::string local = "rope_parameters.sliding_attention.";
  SPW_CHECK(read_string_or(m, local + "rope_type", "default") == "default", kUnsupported,
            "{}: {}rope_type is not supported unless it is default", files.name, local);
  const auto local_theta = m.try_double(local + "rope_theta");
  const double old_key = m.try_double("rope_local_base_freq").value_or(kUsualLocalTheta);
  finish(shape, read_interval(files, shape.layers), local_theta.value_or(old_key), files.name);
  return shape;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  set_family(shape);
  return is_gguf(files) ? read_gguf(files, shape) : read_folder(files, shape);
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  keys.add("gemma3.attention.scale", double{shape.attention_scale});
  keys.add("gemma3.attention.sliding_window_pattern",
           int64_t{shape.full_attention_every > 0 ? shape.full_attention_every : shape.layers + 1});
  keys.add("gemma3.rope.freq_base_swa", shape.local_rope.theta);
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"gemma-3-270m", 18, 640, 4, 1, 2048, 262144, 32768, true},
    {"gemma-3-1b", 26, 1152, 4, 1, 6912, 262144, 32768, true},
    {"gemma-3-4b", 34, 2560, 8, 4, 10240, 262208, 131072, true},
    {"gemma-3-12b", 48, 3840, 16, 8, 15360, 262208, 131072, true},
    {"gemma-3-27b", 62, 5376, 32, 16, 21504, 262208, 131072, true},
};

void complete(TransformerShape& shape) {
  set_family(shape);
  shape.head_dim = shape.layers == 62 ? 128 : 256;
  shape.norm_eps = 1e-6F;
  shape.sliding_window = shape.hidden < 2560 ? 512 : 1024;
  shape.attention_scale = usual_scale(shape);
  set_plain_rope(shape.rope, kUsualTheta, shape.head_dim);
  if (shape.hidden >= 2560)
    for (float& frequency : shape.rope.inverse_frequencies) frequency /= 8;
  finish(shape, kUsualInterval, kUsualLocalTheta, shape.name);
}

}  // namespace

const Family kGemma3Family{.gguf_names = kGgufFamilies,
                           .folder_names = kFolderFamilies,
                           .read_shape = read_shape,
                           .names = names,
                           .write_gguf_keys = write_gguf_keys,
                           .known = kKnown,
                           .complete = complete};

}  // namespace spillway
