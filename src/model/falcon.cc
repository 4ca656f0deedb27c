// SPDX-License-Identifier: Apache-2.0
// Falcon: attention and MLP read the residual stream in parallel. In Falcon-40B and 180B each has a
// norm of its own; in Falcon-7B, all of whose heads share a KV head, and in Falcon 2 they share it.
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/family.h"
#include "model/metadata_fields.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

// The first entries are the norms of models with two of them in a layer, the last ones those of
// models with one. GGUF calls the MLP's norm attn_norm, and attention's attn_norm_2.
constexpr size_t kTwoNorms = 4, kOneNorm = 2;
constexpr WeightName kGgufNames[] = {
    {"attention_norm", "blk.{}.attn_norm_2.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm_2.bias"},
    {"mlp_norm", "blk.{}.attn_norm.weight"},
    {"mlp_norm.bias", "blk.{}.attn_norm.bias"},
    {"token_embedding", "token_embd.weight"},
    {"final_norm", "output_norm.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"head", "output.weight"},
    {"query", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"key", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"value", "blk.{}.attn_qkv.weight", TensorRows::kStacked},
    {"attention_out", "blk.{}.attn_output.weight"},
    {"mlp_up", "blk.{}.ffn_up.weight"},
    {"mlp_down", "blk.{}.ffn_down.weight"},
    {"attention_norm", "blk.{}.attn_norm.weight"},
    {"attention_norm.bias", "blk.{}.attn_norm.bias"},
};
constexpr WeightName kHuggingFaceNames[] = {
    {"attention_norm", "transformer.h.{}.ln_attn.weight"},
    {"attention_norm.bias", "transformer.h.{}.ln_attn.bias"},
    {"mlp_norm", "transformer.h.{}.ln_mlp.weight"},
    {"mlp_norm.bias", "transformer.h.{}.ln_mlp.bias"},
    {"token_embedding", "transformer.word_embeddings.weight"},
    {"final_norm", "transformer.ln_f.weight"},
    {"final_norm.bias", "transformer.ln_f.bias"},
    {"head", "lm_head.weight"},
    {"query", "transformer.h.{}.self_attention.query_key_value.weight", TensorRows::kPerHead},
    {"key", "transformer.h.{}.self_attention.query_key_value.weight", TensorRows::kPerHead},
    {"value", "transformer.h.{}.self_attention.query_key_value.weight", TensorRows::kPerHead},
    {"attention_out", "transformer.h.{}.self_attention.dense.weight"},
    {"mlp_up", "transformer.h.{}.mlp.dense_h_to_4h.weight"},
    {"mlp_down", "transformer.h.{}.mlp.dense_4h_to_h.weight"},
    {"attention_norm", "transformer.h.{}.input_layernorm.weight"},
    {"attention_norm.bias", "transformer.h.{}.input_layernorm.bias"},
};

// llama.cpp decides by the tensors; `spillway convert` needs to know it before there are any.
constexpr const char* kTwoNormsKey = "falcon.use_two_norms";

constexpr std::string_view kGgufFamilies[] = {"falcon"};
// The last two are what Falcon-7B and Falcon-40B were called at first.
constexpr std::string_view kFolderFamilies[] = {"falcon", "RefinedWebModel", "RefinedWeb"};

bool has_new_layers(const ModelFiles& folder) {
  const bool usual = family_name(folder) == "RefinedWeb";
  return folder.metadata.try_bool("new_decoder_architecture").value_or(usual);
}

bool has_two_norms(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  if (!is_gguf(files))
    return has_new_layers(files) && m.try_int("num_ln_in_parallel_attn", 1, 2).value_or(2) == 2;
  return m.try_bool(kTwoNormsKey).value_or(false) ||
         has_any(files, std::span(kGgufNames).first(kTwoNorms), {"attention_norm"});
}

std::span<const WeightName> names(const ModelFiles& files) {
  const std::span<const WeightName> all =
      is_gguf(files) ? std::span<const WeightName>(kGgufNames) : kHuggingFaceNames;
  return has_two_norms(files) ? all.first(all.size() - kOneNorm) : all.subspan(kTwoNorms);
}

void set_family(TransformerShape& shape, bool two_norms) {
  shape.family = "falcon";
  shape.wiring = two_norms ? ResidualWiring::kParallelTwoNorms : ResidualWiring::kParallel;
  shape.norm = NormKind::kLayer;
  shape.norm_bias = true;
  shape.activation = ActivationKind::kGelu;
  shape.gated_mlp = false;
}

TransformerShape read_shape(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  TransformerShape shape;
  set_family(shape, has_two_norms(files));
  if (is_gguf(files)) return read_usual_gguf(files, names(files), shape, RopeStyle::kHalves);
  const bool is_new = has_new_layers(files);
  constexpr std::pair<const char*, bool> kOnly[] = {
      {"alibi", false}, {"bias", false}, {"parallel_attn", true}, {"multi_query", true}};
  for (const auto& [key, only] : std::span(kOnly).first(is_new ? 3 : 4)) {
    SPW_CHECK(m.try_bool(key).value_or(only) == only, kUnsupported,
              "{}: {} is {}, which is not supported in a model of the family falcon yet; {} is",
              files.name, key, !only, only);
  }
  shape.tied_head = true;
  shape = read_usual_folder(files, names(files), shape, {.ffn_is_4_times = true, .context = 2048});
  const char* const kv_heads = m.contains("num_kv_heads") ? "num_kv_heads" : "n_head_kv";
  shape.kv_heads = is_new ? read_size_or(m, kv_heads, shape.heads) : 1;
  validate(shape, files.name);
  return shape;
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  keys.add(kTwoNormsKey, shape.wiring == ResidualWiring::kParallelTwoNorms);
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"falcon-7b", 32, 4544, 71, 1, 18176, 65024, 2048, true},
    {"falcon-40b", 60, 8192, 128, 8, 32768, 65024, 2048, true},
    {"falcon-180b", 80, 14848, 232, 8, 59392, 65024, 2048, true},
    {"falcon2-11b", 60, 4096, 32, 8, 16384, 65024, 8192, false},
};

void complete(TransformerShape& shape) {
  set_family(shape, shape.name == "falcon-40b" || shape.name == "falcon-180b");
  set_plain_rope(shape.rope, shape.name == "falcon2-11b" ? 500042 : 10000, shape.head_dim);
}

}  // namespace

const Family kFalconFamily{.gguf_names = kGgufFamilies,
                           .folder_names = kFolderFamilies,
                           .read_shape = read_shape,
                           .names = names,
                           .write_gguf_keys = write_gguf_keys,
                           .known = kKnown,
                           .complete = complete};

}  // namespace spillway
