// SPDX-License-Identifier: Apache-2.0
// Which type each tensor of a converted GGUF file gets: the same choices that llama-quantize makes
// for files of the same name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace spillway {

// "Q4_0": all matrices in one type, but the head in Q6_K where that is more. "Q4_K_M": the values
// and the MLP's way down in Q6_K as well, in the layers where errors hurt most.
struct TypeMix {
  std::string_view name;
  DType main = DType::kF32;
  bool more_bits_for_some = false;
  uint32_t file_type = 0;  // general.file_type
};
// F32, F16, BF16, Q8_0, Q6_K, Q4_0, Q4_K_M, Q5_K_M; case does not matter.
[[nodiscard]] std::optional<TypeMix> try_type_mix(std::string_view name);
// "f32, f16, ..." for messages.
std::string type_mix_names();

// The first and the last eighth of the layers, and every third layer between.
bool deserves_more_bits(int64_t layer, int64_t layers);
// Another type where rows of `columns` are no whole number of blocks: one of about as many bits in
// blocks of 32, or F16.
DType type_that_fits(DType type, int64_t columns);

// A matrix about to be written.
struct MixTensor {
  std::string_view name;  // GGUF's: "blk.3.attn_v.weight"
  DType stored = DType::kF32;
  int64_t columns = 0;
};
struct ChosenType {
  DType type = DType::kF32;
  DType wanted = DType::kF32;  // differs from `type` where the width does not allow it
};
// One for each tensor. `shared_values`: eight query heads share a value head in a network of 80
// layers (Llama 2 and 3 with 70 billion parameters), whose values then get more bits everywhere.
std::vector<ChosenType> choose_types(const TypeMix& mix, std::span<const MixTensor> tensors,
                                     bool shared_values);

}  // namespace spillway
