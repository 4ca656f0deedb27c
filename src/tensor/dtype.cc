// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

template <class Block>
constexpr DTypeInfo block_info(std::string_view name) {
  return {name, Block::kElements, static_cast<int>(sizeof(Block))};
}

constexpr std::array<DTypeInfo, kDTypeCount> kInfos{{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    block_info<BlockQ4_0>("Q4_0"),
    block_info<BlockQ4_1>("Q4_1"),
    block_info<BlockQ5_0>("Q5_0"),
    block_info<BlockQ5_1>("Q5_1"),
    block_info<BlockQ8_0>("Q8_0"),
    block_info<BlockQ2_K>("Q2_K"),
    block_info<BlockQ3_K>("Q3_K"),
    block_info<BlockQ4_K>("Q4_K"),
    block_info<BlockQ5_K>("Q5_K"),
    block_info<BlockQ6_K>("Q6_K"),
    block_info<BlockG4>("G4"),
}};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::toupper(static_cast<unsigned char>(x)) ==
           std::toupper(static_cast<unsigned char>(y));
  });
}

}  // namespace

const DTypeInfo& dtype_info(DType type) { return kInfos.at(static_cast<size_t>(type)); }

std::optional<DType> try_dtype_from_name(std::string_view name) {
  for (const DType type : kAllDTypes) {
    if (equal_ignoring_case(name, dtype_name(type))) return type;
  }
  return std::nullopt;
}

int64_t row_bytes(DType type, int64_t columns) {
  const DTypeInfo& info = dtype_info(type);
  if (info.block_elements == 1) return columns * info.block_bytes;
  SPW_ASSERT(columns >= 0 && columns % info.block_elements == 0);
  return columns / info.block_elements * info.block_bytes;
}

}  // namespace spillway
