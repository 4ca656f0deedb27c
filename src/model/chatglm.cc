// SPDX-License-Identifier: Apache-2.0
// ChatGLM2, ChatGLM3 and GLM-4 as their own code saves them. Its switches must have the values that
// the published models have. GGUF files of these models are read in glm.cc.
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/metadata_fields.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr TensorRows kStacked = TensorRows::kStacked;

constexpr WeightName kFolderNames[] = {
    {"token_embedding", "transformer.embedding.word_embeddings.weight"},
    {"final_norm", "transformer.encoder.final_layernorm.weight"},
    {"head", "transformer.output_layer.weight"},
    {"attention_norm", "transformer.encoder.layers.{}.input_layernorm.weight"},
    {"query", "transformer.encoder.layers.{}.self_attention.query_key_value.weight", kStacked},
    {"key", "transformer.encoder.layers.{}.self_attention.query_key_value.weight", kStacked},
    {"value", "transformer.encoder.layers.{}.self_attention.query_key_value.weight", kStacked},
    {"query.bias", "transformer.encoder.layers.{}.self_attention.query_key_value.bias", kStacked},
    {"key.bias", "transformer.encoder.layers.{}.self_attention.query_key_value.bias", kStacked},
    {"value.bias", "transformer.encoder.layers.{}.self_attention.query_key_value.bias", kStacked},
    {"attention_out", "transformer.encoder.layers.{}.self_attention.dense.weight"},
    {"mlp_norm", "transformer.encoder.layers.{}.post_attention_layernorm.weight"},
    {"mlp_gate", "transformer.encoder.layers.{}.mlp.dense_h_to_4h.weight", kStacked},
    {"mlp_up", "transformer.encoder.layers.{}.mlp.dense_h_to_4h.weight", kStacked},
    {"mlp_down", "transformer.encoder.layers.{}.mlp.dense_4h_to_h.weight"},
};

constexpr std::string_view kFolderFamilies[] = {"chatglm"};

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGlmFamily.names(files);
  return kFolderNames;
}

struct Switch {
  const char* key;
  bool usual;  // its value where the file does not have it
  bool runs;   // the value that Spillway runs
};
constexpr Switch kSwitches[] = {
    {"position_encoding_2d", false, false},  // the first ChatGLM
    {"multi_query_attention", false, true},
    {"rmsnorm", true, true},
    {"post_layer_norm", true, true},
    {"apply_residual_connection_post_layernorm", false, false},
    {"add_bias_linear", false, false},
    {"original_rope", true, true},
};

void check_settings(const ModelFiles& files, double rope_ratio) {
  const Metadata& m = files.metadata;
  for (const Switch& one : kSwitches) {
    SPW_CHECK(m.try_bool(one.key).value_or(one.usual) == one.runs, kUnsupported,
              "{}: {} is {}, which is not supported; {} is", files.name, one.key, !one.runs,
              one.runs);
  }
  SPW_CHECK(!m.contains("pre_seq_len"), kUnsupported,
            "{}: pre_seq_len, a learned prefix of keys and values, is not supported", files.name);
  SPW_CHECK(m.try_int("quantization_bit").value_or(0) == 0, kUnsupported,
            "{}: quantization_bit, ChatGLM's own quantization, is not supported; use the "
            "unquantized model, or a GGUF file of it",
            files.name);
  // ChatGLM2's 32K model divides positions by the ratio, later ones multiply rope's base by it; no
  // key tells one from the other.
  SPW_CHECK(rope_ratio == 1 || !read_string_or(m, "transformers_version", "").starts_with("4.27."),
            kUnsupported, "{}: rope_ratio {} as in ChatGLM2-6B-32K is not supported; 1 is",
            files.name, rope_ratio);
}

TransformerShape read_shape(const ModelFiles& files) {
  if (is_gguf(files)) return kGlmFamily.read_shape(files);
  const Metadata& m = files.metadata;
  const double rope_ratio = m.try_double("rope_ratio").value_or(1);
  check_settings(files, rope_ratio);
  TransformerShape shape;
  shape.family = "chatglm";
  shape.qkv_bias = m.try_bool("add_qkv_bias").value_or(false);
  shape = read_usual_folder(files, kFolderNames, shape,
                            {.rotary_share = 0.5,
                             .kv_heads = read_size_or(m, "multi_query_group_num", 1),
                             .head_dim = read_size_or(m, "kv_channels", 128),
                             .norm_eps = 1e-5,
                             .rope_theta = 10000 * rope_ratio});
  shape.rope.style = RopeStyle::kInterleaved;
  shape.tied_head = false;  // The model's code never ties it, whatever the file says.
  return shape;
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"chatglm2-6b", 28, 4096, 32, 2, 13696, 65024, 32768, false},
    {"chatglm3-6b", 28, 4096, 32, 2, 13696, 65024, 8192, false},
};

void complete(TransformerShape& shape) {
  shape.family = "chatglm";
  shape.qkv_bias = true;
  set_plain_rope(shape.rope, 10000, shape.head_dim / 2);
  shape.rope.style = RopeStyle::kInterleaved;
}

}  // namespace

const Family kChatGlmFamily{.gguf_names = {},
                            .folder_names = kFolderFamilies,
                            .read_shape = read_shape,
                            .names = names,
                            .write_gguf_keys = write_usual_keys,
                            .known = kKnown,
                            .complete = complete};

}  // namespace spillway
