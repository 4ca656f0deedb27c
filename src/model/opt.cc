// SPDX-License-Identifier: Apache-2.0
// OPT: learned positions with an offset of two, biases everywhere, ReLU; opt-350m norms after and
// projects in and out.
#include <string>
#include <string_view>
#include <utility>

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

// In the manner of other families' GGUF files; no other program writes or reads OPT in that format.
constexpr WeightName kGgufNames[] = {
    {kTokenEmbedding, "token_embd.weight"},
    {kPositionEmbedding, "position_embd.weight"},
    {kProjectIn, "project_in.weight"},
    {kProjectOut, "project_out.weight"},
    {kFinalNorm, "output_norm.weight"},
    {kFinalNormBias, "output_norm.bias"},
    {kHead, "output.weight"},
    {kAttentionNorm, "blk.{}.attn_norm.weight"},
    {kAttentionNormBias, "blk.{}.attn_norm.bias"},
    {kQuery, "blk.{}.attn_q.weight"},
    {kQueryBias, "blk.{}.attn_q.bias"},
    {kKey, "blk.{}.attn_k.weight"},
    {kKeyBias, "blk.{}.attn_k.bias"},
    {kValue, "blk.{}.attn_v.weight"},
    {kValueBias, "blk.{}.attn_v.bias"},
    {kAttentionOut, "blk.{}.attn_output.weight"},
    {kAttentionOutBias, "blk.{}.attn_output.bias"},
    {kMlpNorm, "blk.{}.ffn_norm.weight"},
    {kMlpNormBias, "blk.{}.ffn_norm.bias"},
    {kUp, "blk.{}.ffn_up.weight"},
    {kUpBias, "blk.{}.ffn_up.bias"},
    {kDown, "blk.{}.ffn_down.weight"},
    {kDownBias, "blk.{}.ffn_down.bias"},
};

bool is_gguf(const ModelFiles& files) { return files.format == ModelFiles::Format::kGguf; }

bool matches(const ModelFiles& files) {
  const char* key = is_gguf(files) ? "general.architecture" : "model_type";
  return files.format != ModelFiles::Format::kTokenizerFolder &&
         read_string_or(files.metadata, key, "") == "opt";
}

constexpr std::pair<std::string_view, ActivationKind> kActivations[] = {
    {"relu", ActivationKind::kRelu},
    {"gelu", ActivationKind::kGelu},
    {"gelu_new", ActivationKind::kGeluTanh},
};

ActivationKind read_activation(const ModelFiles& files, const char* key) {
  const std::string name = read_string_or(files.metadata, key, "relu");
  for (const auto& [known, kind] : kActivations) {
    if (known == name) return kind;
  }
  fail(ErrorCode::kUnsupported, "{}: {} '{}' is not supported; relu, gelu and gelu_new are",
       files.name, key, printable(name));
}

// What all of them have in common.
ModelSpec plain_spec() {
  ModelSpec spec;
  spec.family = "opt";
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  spec.position = PositionKind::kLearned;
  spec.position_offset = 2;
  spec.gated_mlp = false;
  return spec;
}

// Where a format keeps the sizes.
struct SizeKeys {
  const char* layers;
  const char* hidden;
  const char* embedding_dim;
  const char* ffn;
  const char* heads;
  const char* vocab_size;
  const char* max_context;
};
constexpr SizeKeys kHuggingFaceSizes = {
    "num_hidden_layers",   "hidden_size", "word_embed_proj_dim",    "ffn_dim",
    "num_attention_heads", "vocab_size",  "max_position_embeddings"};
constexpr SizeKeys kGgufSizes = {"opt.block_count",           "opt.embedding_length",
                                 "opt.word_embedding_length", "opt.feed_forward_length",
                                 "opt.attention.head_count",  "opt.vocab_size",
                                 "opt.context_length"};

void read_sizes(const ModelFiles& files, const SizeKeys& keys, ModelSpec& spec) {
  const Metadata& m = files.metadata;
  spec.layers = read_size(m, keys.layers);
  spec.hidden = read_size(m, keys.hidden);
  spec.embedding_dim = read_size_or(m, keys.embedding_dim, spec.hidden);
  spec.ffn = read_size(m, keys.ffn);
  spec.heads = spec.kv_heads = static_cast<int>(m.get_int(keys.heads, 1, int64_t{1} << 30));
  SPW_CHECK(spec.hidden % spec.heads == 0, kInvalidArgument,
            "{}: {} {} is not a multiple of {} heads", files.name, keys.hidden, spec.hidden,
            spec.heads);
  spec.head_dim = static_cast<int>(spec.hidden / spec.heads);
  spec.vocab_size = read_size(m, keys.vocab_size);
  spec.max_context = read_size(m, keys.max_context);
}

ModelSpec read_hf_spec(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  ModelSpec spec = plain_spec();
  spec.name = files.name;
  read_sizes(files, kHuggingFaceSizes, spec);

  const bool norm_before = m.try_bool("do_layer_norm_before").value_or(true);
  spec.norm_place = norm_before ? NormPlace::kPre : NormPlace::kPost;
  spec.final_norm = norm_before && !m.try_bool("_remove_final_layer_norm").value_or(false);
  spec.norm_affine = m.try_bool("layer_norm_elementwise_affine").value_or(true);
  spec.activation = read_activation(files, "activation_function");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias =
      m.try_bool("enable_bias").value_or(true);
  spec.tied_head = m.try_bool("tie_word_embeddings").value_or(true);
  validate(spec, files.name);
  return spec;
}

ModelSpec read_gguf_spec(const ModelFiles& files) {
  const Metadata& m = files.metadata;
  ModelSpec spec = plain_spec();
  spec.name = printable(read_string_or(m, "general.name", files.name));
  read_sizes(files, kGgufSizes, spec);
  const bool norm_before = m.try_bool("opt.norm_before").value_or(true);
  spec.norm_place = norm_before ? NormPlace::kPre : NormPlace::kPost;
  spec.final_norm = m.try_bool("opt.final_norm").value_or(norm_before);
  spec.norm_affine = m.try_bool("opt.norm_affine").value_or(true);
  spec.norm_eps =
      static_cast<float>(m.try_double("opt.attention.layer_norm_epsilon").value_or(1e-5));
  spec.activation = read_activation(files, "opt.activation");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = has_any(
      files, kGgufNames, {kQueryBias, kKeyBias, kValueBias, kAttentionOutBias, kUpBias, kDownBias});
  spec.tied_head = !has_any(files, kGgufNames, {kHead});
  validate(spec, files.name);
  return spec;
}

ModelSpec read_spec(const ModelFiles& files) {
  return is_gguf(files) ? read_gguf_spec(files) : read_hf_spec(files);
}

void write_gguf_keys(const ModelSpec& spec, Metadata& keys) {
  const auto size = [&](const char* key, int64_t value) { keys.add(key, value); };
  size("opt.vocab_size", spec.vocab_size);
  size("opt.context_length", spec.max_context);
  size("opt.embedding_length", spec.hidden);
  size("opt.word_embedding_length", spec.embedding_dim);
  size("opt.block_count", spec.layers);
  size("opt.feed_forward_length", spec.ffn);
  size("opt.attention.head_count", spec.heads);
  keys.add("opt.attention.layer_norm_epsilon", double{spec.norm_eps});
  keys.add("opt.norm_before", spec.norm_place == NormPlace::kPre);
  keys.add("opt.final_norm", spec.final_norm);
  keys.add("opt.norm_affine", spec.norm_affine);
  for (const auto& [name, kind] : kActivations) {
    if (kind == spec.activation) keys.add("opt.activation", std::string(name));
  }
}

std::span<const WeightName> names(const ModelFiles& files) {
  if (is_gguf(files)) return kGgufNames;
  return kNames;
}

}  // namespace

const Family kOptFamily{matches, read_spec, names, write_gguf_keys,
                        "Spillway reads it; llama.cpp does not know OPT models"};

}  // namespace spillway
