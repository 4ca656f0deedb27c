// SPDX-License-Identifier: Apache-2.0
// Chooses the type of each tensor of a converted GGUF file: the same as llama-quantize chooses for
// files of the same name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace spillway {

// In "Q4_0" all matrices have one type, except that the head has Q6_K if that is more. In "Q4_K_M"
// the values and the MLP's down projections also have Q6_K, in the layers where errors matter most.
struct TypeMix {
  std::string_view name;
  DType main = DType::kF32;
  bool more_bits_for_some = false;
  uint32_t file_type = 0;  // general.file_type
};
// Accepts F32, F16, BF16, Q8_0, Q6_K, Q4_0, Q4_K_M, Q5_K_M in any case.
[[nodiscard]] std::optional<TypeMix> try_type_mix(std::string_view name);
// Returns "f32, f16, ..." for messages.
std::string type_mix_names();

// Whether a layer is in the first or the last eighth, or is every third one in between.
bool deserves_more_bits(int64_t layer, int64_t layers);
// Returns `type` if rows of `columns` are whole blocks of it. Else returns a type with about as
// many bits in blocks of 32, or F16.
DType type_that_fits(DType type, int64_t columns);

// A matrix whose type is to be chosen.
struct MixTensor {
  std::string_view name;  // its name in GGUF: "blk.3.attn_v.weight"
  DType stored = DType::kF32;
  int64_t columns = 0;
};
struct ChosenType {
  DType type = DType::kF32;
  DType wanted = DType::kF32;  // differs from `type` if the width does not fit
};
// Returns a choice for each tensor. `shared_values` says that eight query heads share a value head
// in a network of 80 layers (Llama 2 and 3 with 70 billion parameters), whose values then get more
// bits in all layers.
std::vector<ChosenType> choose_types(const TypeMix& mix, std::span<const MixTensor> tensors,
                                     bool shared_values);

}  // namespace spillway
