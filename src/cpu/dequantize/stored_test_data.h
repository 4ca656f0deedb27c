// SPDX-License-Identifier: Apache-2.0
// Stored blocks for tests: random bits with scales of every finite kind.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/quant_blocks.h"

namespace spillway {

// Returns random bytes for `count` elements. Every 16-bit scale is finite: zero, negative zero,
// subnormal, the largest, negative, or anything.
inline std::vector<std::byte> awkward_blocks(DType type, int64_t count, uint32_t seed) {
  std::mt19937 generator(seed + 1);
  const auto any = [&] { return static_cast<uint16_t>(generator()); };
  const auto scale = [&]() -> uint16_t {
    constexpr uint16_t kSpecial[] = {0, 0x8000, 1, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
    const size_t kind = generator() % 16;
    if (kind < std::size(kSpecial)) return kSpecial[kind];
    const uint16_t bits = any();
    return (bits & 0x7c00) == 0x7c00 ? static_cast<uint16_t>(bits ^ 0x4000) : bits;
  };
  const DTypeInfo& info = dtype_info(type);
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, count)));
  for (std::byte& byte : stored) byte = static_cast<std::byte>(generator());
  const auto put_scales = [&](size_t offset, size_t scales) {
    for (size_t at = offset; at < stored.size(); at += static_cast<size_t>(info.block_bytes)) {
      for (size_t i = 0; i < scales; ++i) {
        const uint16_t bits = scale();
        std::memcpy(stored.data() + at + 2 * i, &bits, 2);
      }
    }
  };
  switch (type) {
    case DType::kF32:
      for (size_t i = 0; i < stored.size(); i += 4) {  // finite: an exponent below the largest
        float value = 0;
        std::memcpy(&value, stored.data() + i, 4);
        if (!(value - value == 0)) stored[i + 3] ^= std::byte{0x40};
      }
      break;
    case DType::kF16:
    case DType::kBF16:
      put_scales(0, 1);
      break;
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      put_scales(0, 1);
      break;
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kG4:
      put_scales(0, 2);
      break;
    case DType::kQ2_K:
      put_scales(offsetof(BlockQ2_K, d), 2);
      break;
    case DType::kQ3_K:
      put_scales(offsetof(BlockQ3_K, d), 1);
      break;
    case DType::kQ6_K:
      put_scales(offsetof(BlockQ6_K, d), 1);
      break;
  }
  return stored;
}

}  // namespace spillway
