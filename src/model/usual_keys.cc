// SPDX-License-Identifier: Apache-2.0
#include "model/usual_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "model/activation_names.h"
#include "model/family.h"
#include "model/metadata_fields.h"
#include "model/read_tensor.h"

namespace spillway {
namespace {

// Defaults for files that have no epsilon.
constexpr double kUsualEpsilon = 1e-5, kRmsEpsilonOfFolders = 1e-6;

const char* epsilon_key(NormKind kind) {
  return kind == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                : "attention.layer_norm_epsilon";
}

// Files name a window also where none is in force; a line says so, since memory follows from it.
int read_window(const ModelFiles& files, const std::string& key, int context) {
  if (!files.metadata.try_bool("use_sliding_window").value_or(true)) return 0;
  const std::optional<int64_t> said = files.metadata.try_int(key);
  const int window = read_size_or(files.metadata, key, 0);
  if (said && window == 0)
    log_info("{}: {} is 0: its layers attend to all tokens", files.name, key);
  if (window >= context && window > 0)
    log_info("{}: {} is {}, not shorter than the context of {}: its layers attend to all tokens",
             files.name, key, window, context);
  return window;
}

void check_yarn(const YarnRopeScaling& yarn, const std::string& where) {
  const auto is_positive = [](double value) { return std::isfinite(value) && value > 0; };
  SPW_CHECK(is_positive(yarn.factor) && is_positive(yarn.slow) &&
                is_positive(yarn.original_context) && std::isfinite(yarn.fast) &&
                yarn.fast >= yarn.slow,
            kInvalidArgument, "{}: the yarn rope scaling makes no sense", where);
}

// `source` is the key or tensor of the divisors, for messages.
void apply_divisors(const ModelFiles& files, const std::string& source,
                    const std::vector<float>& divisors, std::vector<double>& frequencies) {
  SPW_CHECK(divisors.size() == frequencies.size(), kInvalidArgument,
            "{}: {} has {} elements, {} expected", files.name, source, divisors.size(),
            frequencies.size());
  for (size_t i = 0; i < divisors.size(); ++i) {
    SPW_CHECK(std::isfinite(divisors[i]) && divisors[i] > 0, kInvalidArgument,
              "{}: {} has a divisor of {} at {}", files.name, source, divisors[i], i);
  }
  apply_rope_divisors(divisors, frequencies);
}

// LongRoPE has divisors for sequences within the original context, which are applied, and others
// for longer sequences. The context is therefore the original one.
void limit_to_original_context(const ModelFiles& files, double original, TransformerShape& shape) {
  SPW_CHECK(std::isfinite(original) && original > 1, kInvalidArgument,
            "{}: an original context of {} positions makes no sense", files.name, original);
  if (original >= static_cast<double>(shape.max_context)) return;
  const auto limit = static_cast<int64_t>(original);
  log_warning(
      "{}: the context is {} positions, not {}: positions beyond it need the long factors of the "
      "longrope scaling, which are not supported yet",
      files.name, limit, shape.max_context);
  shape.max_context = limit;
}

// Divides the frequencies by a linear scaling factor, then rounds them once.
void finish_rope(RopeSpec& rope, std::vector<double> frequencies, double linear_factor,
                 const std::string& where) {
  SPW_CHECK(std::isfinite(linear_factor) && linear_factor > 0, kInvalidArgument,
            "{}: rope scaling factor {} makes no sense", where, linear_factor);
  SPW_CHECK(std::isfinite(rope.scale) && rope.scale > 0, kInvalidArgument,
            "{}: the rope attention factor {} makes no sense", where, rope.scale);
  for (const double frequency : frequencies) {
    const auto scaled = static_cast<float>(frequency / linear_factor);
    SPW_CHECK(std::isfinite(scaled), kInvalidArgument,
              "{}: with its scaling the rope has a frequency of {}, which makes no sense", where,
              scaled);
    rope.inverse_frequencies.push_back(scaled);
  }
}

// Llama 3.1 and later have the divisors of all frequencies as a tensor, LongRoPE has two tensors.
constexpr const char* kDivisors = "rope_freqs.weight";
constexpr const char* kShortDivisors = "rope_factors_short.weight";
constexpr const char* kLongDivisors = "rope_factors_long.weight";

void read_gguf_rope(const ModelFiles& files, RopeStyle style, TransformerShape& shape) {
  const Metadata& m = files.metadata;
  const auto key = [&](const char* name) { return fmt::format("{}.rope.{}", shape.family, name); };
  shape.rope.style = style;
  shape.rope.dims = read_size_or(m, key("dimension_count"), shape.head_dim);
  shape.rope.theta = m.try_double(key("freq_base")).value_or(10000);
  validate(shape, files.name);

  auto frequencies = base_inverse_frequencies(shape.rope);
  double linear = 1;
  // A factor without a type means linear scaling; files from 2023 have it under another key.
  shape.rope.scale = static_cast<float>(m.try_double(key("scaling.attn_factor")).value_or(1));
  const std::string scaling = read_string_or(m, key("scaling.type"), "linear");
  if (scaling == "yarn") {
    const YarnRopeScaling yarn{.factor = m.try_double(key("scaling.factor")).value_or(1),
                               .fast = m.try_double(key("scaling.yarn_beta_fast")).value_or(32),
                               .slow = m.try_double(key("scaling.yarn_beta_slow")).value_or(1),
                               .original_context = static_cast<double>(read_size_or(
                                   m, key("scaling.original_context_length"), shape.max_context))};
    check_yarn(yarn, files.name);
    frequencies = yarn_inverse_frequencies(yarn, shape.rope);
    shape.rope.scale *= static_cast<float>(yarn_attention_factor(yarn.factor));
  } else if (scaling == "linear") {
    const auto factor = m.try_double(key("scaling.factor"));
    linear = factor ? *factor : m.try_double(key("scale_linear")).value_or(1);
  } else {
    SPW_CHECK(scaling == "none" || scaling == "longrope", kUnsupported,
              "{}: rope scaling '{}' is not supported; none, linear, yarn and longrope are",
              files.name, printable(scaling));
  }
  const auto divide_by = [&](const TensorInfo& tensor) {
    apply_divisors(files, fmt::format("tensor '{}'", tensor.name),
                   read_tensor_f32(files, tensor, static_cast<int64_t>(frequencies.size())),
                   frequencies);
  };
  if (const TensorInfo* tensor = files.try_get(kDivisors)) divide_by(*tensor);
  // Converters of Phi-3 write the tensors and no type.
  if (scaling == "longrope" || files.try_get(kShortDivisors) != nullptr ||
      files.try_get(kLongDivisors) != nullptr) {
    divide_by(files.get(kShortDivisors));
    const char* const original = "scaling.original_context_length";
    limit_to_original_context(files, read_size_or(m, key(original), shape.max_context), shape);
  }
  finish_rope(shape.rope, std::move(frequencies), linear, files.name);
}

// Returns the first of these keys that the file has, or the first one: configurations have several
// names for the same size.
const char* key_of(const Metadata& metadata, std::initializer_list<const char*> keys) {
  const auto* const found =
      std::ranges::find_if(keys, [&](const char* key) { return metadata.contains(key); });
  return found == keys.end() ? *keys.begin() : *found;
}

// transformers 5 writes `rope_parameters`; earlier versions wrote `rope_theta` beside
// `rope_scaling`.
void read_hf_rope(const ModelFiles& files, const FolderDefaults& defaults,
                  TransformerShape& shape) {
  const Metadata& m = files.metadata;
  const auto number = [&](const std::string& key) -> std::optional<double> {
    // In families with a rope of their own for layers that have a window, this one is the others'.
    for (const char* group :
         {"rope_parameters.", "rope_parameters.full_attention.", "rope_scaling."})
      if (const auto value = m.try_double(group + key)) return value;
    return std::nullopt;
  };
  const auto needed = [&](const std::string& key) {
    const auto value = number(key);
    SPW_CHECK(value.has_value(), kInvalidArgument, "{}: rope scaling lacks '{}'", files.name, key);
    return *value;
  };

  // Old GPT-NeoX files have other names for these keys.
  const auto first_of = [&](std::initializer_list<std::optional<double>> values, double otherwise) {
    for (const std::optional<double>& value : values) {
      if (value) return *value;
    }
    return otherwise;
  };
  const double share = first_of({number("partial_rotary_factor"),
                                 m.try_double("partial_rotary_factor"), m.try_double("rotary_pct")},
                                defaults.rotary_share);
  SPW_CHECK(share > 0 && share <= 1, kInvalidArgument,
            "{}: a rotary share of {} makes no sense; it is above 0 and at most 1", files.name,
            share);
  shape.rope.style = RopeStyle::kHalves;
  shape.rope.dims = static_cast<int>(shape.head_dim * share);
  shape.rope.theta =
      first_of({number("rope_theta"), m.try_double("rope_theta"), m.try_double("rotary_emb_base")},
               defaults.rope_theta);
  validate(shape, files.name);

  auto frequencies = base_inverse_frequencies(shape.rope);
  double linear = 1;
  std::string type = "default";
  for (const char* key : {"rope_parameters.rope_type", "rope_parameters.full_attention.rope_type",
                          "rope_scaling.rope_type", "rope_scaling.type"}) {
    if (m.contains(key)) {
      type = m.get_string(key);
      break;
    }
  }
  if (type == "linear") {
    linear = needed("factor");
  } else if (type == "llama3") {
    const Llama3RopeScaling scaling{needed("factor"), needed("low_freq_factor"),
                                    needed("high_freq_factor"),
                                    needed("original_max_position_embeddings")};
    SPW_CHECK(scaling.factor > 0 && scaling.low_freq_factor > 0 && scaling.original_context > 0 &&
                  scaling.high_freq_factor > scaling.low_freq_factor,
              kInvalidArgument, "{}: the llama3 rope scaling makes no sense", files.name);
    apply_llama3_scaling(scaling, frequencies);
  } else if (type == "yarn") {
    const YarnRopeScaling yarn{
        .factor = needed("factor"),
        .fast = number("beta_fast").value_or(32),
        .slow = number("beta_slow").value_or(1),
        .original_context = number("original_max_position_embeddings")
                                .value_or(static_cast<double>(shape.max_context)),
        .whole_pairs = m.try_bool("rope_parameters.truncate").value_or(true)};
    check_yarn(yarn, files.name);
    frequencies = yarn_inverse_frequencies(yarn, shape.rope);
    const auto given = number("attention_factor"), some = number("mscale"),
               all = number("mscale_all_dim");
    double factor = yarn_attention_factor(yarn.factor);
    if (some && all && *some != 0 && *all != 0)
      factor = yarn_attention_factor(yarn.factor, *some) / yarn_attention_factor(yarn.factor, *all);
    shape.rope.scale = static_cast<float>(given.value_or(factor));
  } else if (type == "longrope" || type == "su") {  // Phi-3's first files have the second name
    const auto whole = static_cast<double>(shape.max_context);
    const char* const original_key = "original_max_position_embeddings";
    const double original = first_of(
        {m.try_double(original_key), number(original_key)},
        defaults.original_context > 0 ? static_cast<double>(defaults.original_context) : whole);
    const bool is_new = m.contains("rope_parameters.rope_type");
    for (const char* name : {"long_factor", "short_factor"}) {
      const std::string key =
          fmt::format("{}.{}", is_new ? "rope_parameters" : "rope_scaling", name);
      auto divided = base_inverse_frequencies(shape.rope);
      apply_divisors(files, key, m.get_float_array(key), divided);
      frequencies = std::move(divided);  // the short factors' at the end
    }
    limit_to_original_context(files, original, shape);
    const double factor = number("factor").value_or(whole / original);
    shape.rope.scale = static_cast<float>(
        number("attention_factor").value_or(longrope_attention_factor(factor, original)));
  } else {
    SPW_CHECK(
        type == "default", kUnsupported,
        "{}: rope scaling '{}' is not supported; default, linear, llama3, yarn and longrope are",
        files.name, printable(type));
    // The reference implementation does the same, with a warning.
    if (number("factor").value_or(1) != 1)
      log_warning("{}: the rope scaling factor has no rope_type, so it is left out", files.name);
  }
  finish_rope(shape.rope, std::move(frequencies), linear, files.name);
}

}  // namespace

TransformerShape read_usual_gguf(const ModelFiles& files, std::span<const WeightName> names,
                                 TransformerShape shape, RopeStyle rope) {
  const Metadata& m = files.metadata;
  const auto key = [&](const char* name) { return fmt::format("{}.{}", shape.family, name); };
  shape.name = printable(read_string_or(m, "general.name", files.name));
  shape.layers = read_size(m, key("block_count"));
  shape.hidden = shape.embedding_dim = read_size(m, key("embedding_length"));
  shape.ffn = read_size(m, key("feed_forward_length"));
  shape.heads = read_size(m, key("attention.head_count"));
  shape.kv_heads = read_size_or(m, key("attention.head_count_kv"), shape.heads);
  SPW_CHECK(shape.heads > 0, kInvalidArgument, "{}: {} is 0", files.name,
            key("attention.head_count"));
  shape.head_dim = read_size_or(m, key("attention.key_length"), shape.hidden / shape.heads);
  const int value_length = read_size_or(m, key("attention.value_length"), shape.head_dim);
  SPW_CHECK(value_length == shape.head_dim, kUnsupported,
            "{}: key length {} and value length {} differ, which is not supported", files.name,
            shape.head_dim, value_length);
  shape.max_context = read_size(m, key("context_length"));
  shape.sliding_window = read_window(files, key("attention.sliding_window"), shape.max_context);
  shape.norm_eps =
      static_cast<float>(m.try_double(key(epsilon_key(shape.norm))).value_or(kUsualEpsilon));
  if (!shape.gated_mlp) {
    shape.activation = read_activation(files, key("activation"), activation_name(shape.activation));
  }
  SPW_CHECK(!m.try_int(key("expert_count")).value_or(0), kUnsupported,
            "{}: mixture-of-experts models are not supported yet", files.name);

  const TensorInfo* embedding = files.find("token_embd.weight");
  SPW_CHECK(embedding != nullptr, kInvalidArgument,
            "{}: no tensor 'token_embd.weight'; this file has a vocabulary only, or is incomplete",
            files.name);
  shape.vocab_size = embedding->rows();
  shape.tied_head = !has_any(files, names, {"head", "head.bias"});
  shape.head_bias = has_any(files, names, {"head.bias"});
  shape.qkv_bias = has_any(files, names, {"query.bias", "key.bias", "value.bias"});
  shape.attention_out_bias = has_any(files, names, {"attention_out.bias"});
  shape.mlp_bias = has_any(files, names, {"mlp_gate.bias", "mlp_up.bias", "mlp_down.bias"});
  if (shape.position == PositionKind::kRope) {
    read_gguf_rope(files, rope, shape);
  } else {
    validate(shape, files.name);
  }
  return shape;
}

TransformerShape read_usual_folder(const ModelFiles& files, std::span<const WeightName> names,
                                   TransformerShape shape, const FolderDefaults& defaults) {
  const Metadata& m = files.metadata;
  // A key of something that the family does not have is ignored, as in the reference
  // implementation.
  const auto read_bias = [&](const char* key, std::string_view weight, bool& bias) {
    if (std::ranges::find(names, weight, &WeightName::weight) == names.end()) return;
    bias = m.try_bool(key).value_or(bias);
  };
  shape.name = files.name;
  shape.layers = read_size(m, key_of(m, {"num_hidden_layers", "n_layer", "num_layers"}));
  shape.hidden = shape.embedding_dim =
      read_size(m, key_of(m, {"hidden_size", "n_embd", "n_embed"}));
  const char* const ffn = key_of(m, {"intermediate_size", "n_inner", "ffn_hidden_size"});
  shape.ffn = defaults.ffn_is_4_times ? read_size_or(m, ffn, 4 * shape.hidden) : read_size(m, ffn);
  const char* const heads = key_of(m, {"num_attention_heads", "n_head"});
  shape.heads = read_size(m, heads);
  SPW_CHECK(shape.heads > 0, kInvalidArgument, "{}: {} is 0", files.name, heads);
  shape.kv_heads = read_size_or(m, "num_key_value_heads",
                                defaults.kv_heads > 0 ? defaults.kv_heads : shape.heads);
  shape.head_dim = read_size_or(
      m, "head_dim", defaults.head_dim > 0 ? defaults.head_dim : shape.hidden / shape.heads);
  shape.vocab_size = read_size(m, key_of(m, {"vocab_size", "padded_vocab_size"}));
  const char* const context = key_of(m, {"max_position_embeddings", "n_positions", "seq_length"});
  shape.max_context =
      defaults.context > 0 ? read_size_or(m, context, defaults.context) : read_size(m, context);
  const bool is_rms = shape.norm == NormKind::kRms;
  const char* const eps =
      is_rms ? key_of(m, {"rms_norm_eps", "layernorm_epsilon"})
             : key_of(m, {"layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"});
  const double usual_eps = is_rms ? kRmsEpsilonOfFolders : kUsualEpsilon;
  shape.norm_eps = static_cast<float>(
      m.try_double(eps).value_or(defaults.norm_eps > 0 ? defaults.norm_eps : usual_eps));
  shape.sliding_window = read_window(files, "sliding_window", shape.max_context);
  shape.tied_head = m.try_bool("tie_word_embeddings").value_or(shape.tied_head);
  read_bias("attention_bias", "query.bias", shape.qkv_bias);
  read_bias("attention_bias", "attention_out.bias", shape.attention_out_bias);
  read_bias("mlp_bias", "mlp_up.bias", shape.mlp_bias);
  if (shape.gated_mlp && shape.activation == ActivationKind::kSilu) {
    const std::string activation = read_string_or(m, "hidden_act", "silu");
    SPW_CHECK(activation == "silu", kUnsupported,
              "{}: hidden_act '{}' is not supported in a model of the family {}; silu is",
              files.name, printable(activation), shape.family);
  } else {
    shape.activation = read_activation(
        files, key_of(m, {"hidden_activation", "hidden_act", "activation_function", "activation"}),
        activation_name(shape.activation));
  }
  if (shape.position == PositionKind::kRope) {
    read_hf_rope(files, defaults, shape);
  } else {
    validate(shape, files.name);
  }
  return shape;
}

// Scaling is written as a factor if it is the same for all frequencies; otherwise it is a tensor
// of divisors.
void write_usual_keys(const TransformerShape& shape, Metadata& keys) {
  const auto key = [&](const char* name) { return fmt::format("{}.{}", shape.family, name); };
  const auto size = [&](const char* name, int64_t value) { keys.add(key(name), value); };
  const auto number = [&](const char* name, double value) {
    keys.add(key(name), double{static_cast<float>(value)});
  };
  size("vocab_size", shape.vocab_size);
  size("context_length", shape.max_context);
  size("embedding_length", shape.hidden);
  size("block_count", shape.layers);
  size("feed_forward_length", shape.ffn);
  size("attention.head_count", shape.heads);
  size("attention.head_count_kv", shape.kv_heads);
  size("attention.key_length", shape.head_dim);
  size("attention.value_length", shape.head_dim);
  if (shape.sliding_window != 0) size("attention.sliding_window", shape.sliding_window);
  number(epsilon_key(shape.norm), double{shape.norm_eps});
  if (!shape.gated_mlp) keys.add(key("activation"), std::string(activation_name(shape.activation)));
  if (shape.position != PositionKind::kRope) return;
  size("rope.dimension_count", shape.rope.dims);
  number("rope.freq_base", shape.rope.theta);
  if (rope_scaling_kind(shape.rope) == RopeScalingKind::kLinear) {
    keys.add(key("rope.scaling.type"), std::string("linear"));
    number("rope.scaling.factor", double{rope_divisors(shape.rope).front()});
  }
  if (shape.rope.scale != 1) number("rope.scaling.attn_factor", double{shape.rope.scale});
}

}  // namespace spillway
