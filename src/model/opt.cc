// SPDX-License-Identifier: Apache-2.0
// OPT: learned positions with an offset of two, biases everywhere, ReLU; opt-350m norms after and
// projects in and out.
#include <string>

#include "base/error.h"
#include "base/printable.h"
#include "model/family.h"
#include "model/metadata_fields.h"

namespace spillway {
namespace {

using enum WeightRole;

constexpr WeightName kNames[] = {
    {kTokenEmbedding, "model.decoder.embed_tokens.weight"},
    {kPositionEmbedding, "model.decoder.embed_positions.weight"},
    {kProjectIn, "model.decoder.project_in.weight"},
    {kProjectOut, "model.decoder.project_out.weight"},
    {kFinalNorm, "model.decoder.final_layer_norm.weight"},
    {kFinalNormBias, "model.decoder.final_layer_norm.bias"},
    {kHead, "lm_head.weight"},
    {kAttentionNorm, "model.decoder.layers.{}.self_attn_layer_norm.weight"},
    {kAttentionNormBias, "model.decoder.layers.{}.self_attn_layer_norm.bias"},
    {kQuery, "model.decoder.layers.{}.self_attn.q_proj.weight"},
    {kQueryBias, "model.decoder.layers.{}.self_attn.q_proj.bias"},
    {kKey, "model.decoder.layers.{}.self_attn.k_proj.weight"},
    {kKeyBias, "model.decoder.layers.{}.self_attn.k_proj.bias"},
    {kValue, "model.decoder.layers.{}.self_attn.v_proj.weight"},
    {kValueBias, "model.decoder.layers.{}.self_attn.v_proj.bias"},
    {kAttentionOut, "model.decoder.layers.{}.self_attn.out_proj.weight"},
    {kAttentionOutBias, "model.decoder.layers.{}.self_attn.out_proj.bias"},
    {kMlpNorm, "model.decoder.layers.{}.final_layer_norm.weight"},
    {kMlpNormBias, "model.decoder.layers.{}.final_layer_norm.bias"},
    {kUp, "model.decoder.layers.{}.fc1.weight"},
    {kUpBias, "model.decoder.layers.{}.fc1.bias"},
    {kDown, "model.decoder.layers.{}.fc2.weight"},
    {kDownBias, "model.decoder.layers.{}.fc2.bias"},
};

bool matches(const ModelFiles& files) {
  return files.format == ModelFiles::Format::kHuggingFace &&
         read_string_or(files.metadata, "model_type", "") == "opt";
}

ActivationKind read_activation(const ModelFiles& files) {
  const std::string name = read_string_or(files.metadata, "activation_function", "relu");
  if (name == "relu") return ActivationKind::kRelu;
  if (name == "gelu") return ActivationKind::kGelu;
  if (name == "gelu_new") return ActivationKind::kGeluTanh;
  fail(ErrorCode::kUnsupported,
       "{}: activation_function '{}' is not supported; relu, gelu and gelu_new are", files.name,
       printable(name));
}

ModelSpec read_spec(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  ModelSpec spec;
  spec.family = "opt";
  spec.name = files.name;
  spec.layers = read_size(m, "num_hidden_layers");
  spec.hidden = read_size(m, "hidden_size");
  spec.embedding_dim = read_size_or(m, "word_embed_proj_dim", spec.hidden);
  spec.ffn = read_size(m, "ffn_dim");
  spec.heads = spec.kv_heads =
      static_cast<int>(m.get_int("num_attention_heads", 1, int64_t{1} << 30));
  SPW_CHECK(spec.hidden % spec.heads == 0, kInvalidArgument,
            "{}: hidden_size {} is not a multiple of {} heads", files.name, spec.hidden,
            spec.heads);
  spec.head_dim = static_cast<int>(spec.hidden / spec.heads);
  spec.vocab_size = read_size(m, "vocab_size");
  spec.max_context = read_size(m, "max_position_embeddings");

  spec.norm = NormKind::kLayer;
  const bool norm_before = m.try_bool("do_layer_norm_before").value_or(true);
  spec.norm_place = norm_before ? NormPlace::kPre : NormPlace::kPost;
  spec.final_norm = norm_before && !m.try_bool("_remove_final_layer_norm").value_or(false);
  spec.norm_affine = m.try_bool("layer_norm_elementwise_affine").value_or(true);
  spec.norm_bias = true;
  spec.position = PositionKind::kLearned;
  spec.position_offset = 2;
  spec.activation = read_activation(files);
  spec.gated_mlp = false;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias =
      m.try_bool("enable_bias").value_or(true);
  spec.tied_head = m.try_bool("tie_word_embeddings").value_or(true);
  validate(spec, files.name);
  return spec;
}

std::span<const WeightName> names(const ModelFiles&) { return kNames; }

}  // namespace

const Family kOptFamily{matches, read_spec, names};

}  // namespace spillway
