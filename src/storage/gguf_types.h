// SPDX-License-Identifier: Apache-2.0
// Maps GGUF's numbers for value types and tensor types to ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "storage/value_array.h"
#include "tensor/dtype.h"

namespace spillway {

inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr uint32_t kGgufString = 8;
inline constexpr uint32_t kGgufArray = 9;
inline constexpr uint32_t kGgufDefaultAlignment = 32;

// Maps value types except string and array; returns nullopt for those and for unknown numbers.
[[nodiscard]] std::optional<NumberType> try_number_from_gguf(uint32_t gguf_type);
uint32_t gguf_number_type(NumberType type);

// Returns nullopt for types that are unknown or not supported.
[[nodiscard]] std::optional<DType> try_dtype_from_gguf(uint32_t gguf_type);
// Throws kUnsupported for types that exist in memory only.
uint32_t gguf_tensor_type(DType type);
// Returns a name such as "IQ4_XS"; empty for a number without a name.
std::string_view gguf_tensor_type_name(uint32_t gguf_type);

}  // namespace spillway
