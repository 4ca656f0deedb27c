// SPDX-License-Identifier: Apache-2.0
// Defines element types, plain and block-quantized, and their sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kG4,  // FlexGen's groups of 64 in 4 bits, made while loading; no file has it
};
inline constexpr int kDTypeCount = 14;

struct DTypeInfo {
  std::string_view name;  // "Q4_K"
  int block_elements;     // elements that share one block; 1 for plain types
  int block_bytes;        // bytes of one block
};

const DTypeInfo& dtype_info(DType type);
inline std::string_view dtype_name(DType type) { return dtype_info(type).name; }
// Finds a type by name in any case: "q4_k", "F16".
[[nodiscard]] std::optional<DType> try_dtype_from_name(std::string_view name);

inline bool is_quantized(DType type) { return dtype_info(type).block_elements > 1; }
// Whether no file format stores the type: readers do not know it and writers refuse it.
inline bool is_memory_only(DType type) { return type == DType::kG4; }

// Returns the bytes of `columns` contiguous elements. `columns` must be a whole number of blocks.
int64_t row_bytes(DType type, int64_t columns);

// All types, in the order of the enumeration.
inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                       DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                       DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                                       DType::kQ6_K, DType::kG4};

}  // namespace spillway
