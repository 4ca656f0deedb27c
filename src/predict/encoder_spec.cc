// SPDX-License-Identifier: Apache-2.0
#include "predict/encoder_spec.h"

#include <fmt/core.h>

#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

constexpr int64_t kMaxWidth = 8192, kMaxLayers = 128, kMaxPositions = 65536;

std::optional<ActivationKind> try_activation(std::string_view name) {
  if (name == "gelu") return ActivationKind::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return ActivationKind::kGeluTanh;
  if (name == "relu") return ActivationKind::kRelu;
  if (name == "silu" || name == "swish") return ActivationKind::kSilu;
  return std::nullopt;
}

ActivationKind read_activation(const Metadata& config, std::string_view key,
                               const std::string& where) {
  const std::string* name = config.try_string(key);
  const auto kind = try_activation(name == nullptr ? "gelu" : std::string_view(*name));
  SPW_CHECK(kind.has_value(), kUnsupported, "{}/config.json: {} is {}; gelu, relu or silu works",
            where, key, printable(*name));
  return *kind;
}

void read_sizes(const Metadata& config, EncoderSpec& spec) {
  const bool is_bert = spec.family == EncoderFamily::kBert;
  const auto size = [&](const char* bert, const char* distil, int64_t most) {
    return config.get_int(is_bert ? bert : distil, 1, most);
  };
  spec.layers = size("num_hidden_layers", "n_layers", kMaxLayers);
  spec.width = size("hidden_size", "dim", kMaxWidth);
  spec.heads = size("num_attention_heads", "n_heads", kMaxWidth);
  spec.inner_width = size("intermediate_size", "hidden_dim", 4 * kMaxWidth);
  spec.vocabulary = config.get_int("vocab_size", 1, 4'000'000);
  spec.positions = config.get_int("max_position_embeddings", 2, kMaxPositions);
  if (is_bert) {
    spec.token_types = config.try_int("type_vocab_size", 1, 1024).value_or(2);
    const auto eps = config.try_double("layer_norm_eps", 0, 1);
    if (eps) spec.norm_eps = static_cast<float>(*eps);
  }
}

}  // namespace

EncoderSpec read_encoder_spec(const Metadata& config, const std::string& where) {
  const std::string* type = config.try_string("model_type");
  const std::string name = type == nullptr ? "missing" : *type;
  SPW_CHECK(name == "bert" || name == "distilbert", kUnsupported,
            "{}/config.json: model_type is {}; an encoder for lengths must be bert (MiniLM, too) "
            "or distilbert",
            where, printable(name));
  EncoderSpec spec;
  spec.family = name == "bert" ? EncoderFamily::kBert : EncoderFamily::kDistilBert;
  const std::string* positions = config.try_string("position_embedding_type");
  SPW_CHECK(positions == nullptr || *positions == "absolute", kUnsupported,
            "{}/config.json: position_embedding_type is {}; only absolute works", where,
            printable(*positions));
  SPW_CHECK(!config.try_bool("is_decoder").value_or(false), kUnsupported,
            "{}/config.json: is_decoder is true; its tokens do not see all others", where);
  read_sizes(config, spec);
  SPW_CHECK(spec.width % spec.heads == 0, kInvalidArgument,
            "{}/config.json: a width of {} cannot be shared by {} heads", where, spec.width,
            spec.heads);
  spec.activation = read_activation(
      config, spec.family == EncoderFamily::kBert ? "hidden_act" : "activation", where);
  return spec;
}

EncoderLayerNames encoder_layer_names(EncoderFamily family, int64_t layer) {
  if (family == EncoderFamily::kDistilBert) {
    const std::string at = fmt::format("transformer.layer.{}.", layer);
    return {.query = at + "attention.q_lin",
            .key = at + "attention.k_lin",
            .value = at + "attention.v_lin",
            .attention_out = at + "attention.out_lin",
            .attention_norm = at + "sa_layer_norm",
            .up = at + "ffn.lin1",
            .down = at + "ffn.lin2",
            .out_norm = at + "output_layer_norm"};
  }
  const std::string at = fmt::format("encoder.layer.{}.", layer);
  return {.query = at + "attention.self.query",
          .key = at + "attention.self.key",
          .value = at + "attention.self.value",
          .attention_out = at + "attention.output.dense",
          .attention_norm = at + "attention.output.LayerNorm",
          .up = at + "intermediate.dense",
          .down = at + "output.dense",
          .out_norm = at + "output.LayerNorm"};
}

EncoderTableNames encoder_table_names() {
  return {.tokens = "embeddings.word_embeddings",
          .positions = "embeddings.position_embeddings",
          .types = "embeddings.token_type_embeddings",
          .norm = "embeddings.LayerNorm"};
}

std::string encoder_prefix(EncoderFamily family) {
  return family == EncoderFamily::kBert ? "bert." : "distilbert.";
}

}  // namespace spillway
