// SPDX-License-Identifier: Apache-2.0
#include "storage/type_mix.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace spillway {
namespace {

constexpr std::array kMixes = {
    TypeMix{"F32", DType::kF32, false, 0},     TypeMix{"F16", DType::kF16, false, 1},
    TypeMix{"BF16", DType::kBF16, false, 32},  TypeMix{"Q8_0", DType::kQ8_0, false, 7},
    TypeMix{"Q6_K", DType::kQ6_K, false, 18},  TypeMix{"Q5_K_M", DType::kQ5_K, true, 17},
    TypeMix{"Q4_K_M", DType::kQ4_K, true, 15}, TypeMix{"Q4_0", DType::kQ4_0, false, 2},
};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::toupper(x) == std::toupper(y); });
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns 17 for "blk.17.attn_v.weight".
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = 0;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

bool is_value(std::string_view name) { return name.ends_with(".attn_v.weight"); }
bool is_down(std::string_view name) { return contains(name, ".ffn_down"); }

// Lookup tables, expert routers and tensors that are no weights are small or sensitive, so a
// quantized file keeps them unchanged.
bool stays(std::string_view name) {
  return !name.ends_with("weight") || contains(name, "_norm.weight") ||
         contains(name, "position_embd") || contains(name, "token_types") ||
         contains(name, "ffn_gate_inp");
}

bool fits(DType type, int64_t columns) { return columns % dtype_info(type).block_elements == 0; }

}  // namespace

std::optional<TypeMix> try_type_mix(std::string_view name) {
  for (const TypeMix& mix : kMixes) {
    if (equal_ignoring_case(mix.name, name)) return mix;
  }
  return std::nullopt;
}

std::string type_mix_names() {
  std::string names;
  for (const TypeMix& mix : kMixes) {
    if (!names.empty()) names += ", ";
    for (const char c : mix.name)
      names.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return names;
}

bool deserves_more_bits(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

DType type_that_fits(DType type, int64_t columns) {
  if (fits(type, columns)) return type;
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      type = DType::kQ4_0;
      break;
    case DType::kQ4_K:
      type = DType::kQ5_0;
      break;
    case DType::kQ5_K:
      type = DType::kQ5_1;
      break;
    case DType::kQ6_K:
      type = DType::kQ8_0;
      break;
    default:
      break;
  }
  return fits(type, columns) ? type : DType::kF16;
}

std::vector<ChosenType> choose_types(const TypeMix& mix, std::span<const MixTensor> tensors,
                                     bool shared_values) {
  const auto count = [&](bool (*is)(std::string_view)) {
    return std::ranges::count_if(tensors, is, &MixTensor::name);
  };
  const int64_t values = count(is_value), downs = count(is_down);
  const bool tied = std::ranges::find(tensors, "output.weight", &MixTensor::name) == tensors.end();
  const std::string_view head = tied ? "token_embd.weight" : "output.weight";

  const auto wanted_for = [&](std::string_view name) {
    // The head gets more bits because every output token depends on it.
    if (name == head) return mix.main == DType::kQ8_0 ? mix.main : DType::kQ6_K;
    if (!mix.more_bits_for_some) return mix.main;
    const int64_t layer = layer_of(name);
    if (is_value(name)) {
      if (deserves_more_bits(layer, values)) return DType::kQ6_K;
      return shared_values && mix.main == DType::kQ4_K ? DType::kQ5_K : mix.main;
    }
    if (is_down(name) && deserves_more_bits(layer, downs)) return DType::kQ6_K;
    if (contains(name, "attn_qkv.weight"))
      return mix.main == DType::kQ4_K ? DType::kQ5_K : DType::kQ6_K;
    return mix.main;
  };

  std::vector<ChosenType> chosen;
  chosen.reserve(tensors.size());
  for (const MixTensor& tensor : tensors) {
    if (!is_quantized(mix.main)) {
      chosen.push_back({mix.main, mix.main});
    } else if (stays(tensor.name)) {
      chosen.push_back({tensor.stored, tensor.stored});
    } else {
      const DType wanted = wanted_for(tensor.name);
      chosen.push_back({type_that_fits(wanted, tensor.columns), wanted});
    }
  }
  return chosen;
}

}  // namespace spillway
