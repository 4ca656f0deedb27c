// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize_blocks.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tensor/dequantize.h"
#include "tensor/quantize_fit.h"
#include "tensor/quantize_k.h"

namespace spillway {
namespace {

// No block type has a scale for larger values, and sums of squares do not overflow below it.
constexpr float kMaxValue = 1e9F;
constexpr float kMaxHalf = 65504;

bool in_range(const float* x, int64_t count) {
  bool good = true;
  for (int64_t i = 0; i < count; ++i) good = good && std::fabs(x[i]) <= kMaxValue;  // NaN is not
  return good;
}

bool try_half(float value, Half& out) {
  if (!(std::fabs(value) <= kMaxHalf)) return false;
  out = to_half(value);
  return true;
}

// Levels are 0 and up after the shift; `high` gets the fifth bits, for types that have them.
void pack_levels(const float levels[32], int shift, uint8_t nibbles[16], uint8_t* high) {
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(static_cast<int>(levels[i]) + shift);
  for (int i = 0; i < 16; ++i)
    nibbles[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
  if (high == nullptr) return;
  std::memset(high, 0, 4);
  for (int i = 0; i < 32; ++i)
    high[i / 8] = static_cast<uint8_t>(high[i / 8] | (q[i] >> 4) << (i % 8));
}

template <class Block>
bool quantize_symmetric(const float* x, int half_range, Block& block, uint8_t* high) {
  const auto half = static_cast<float>(half_range);
  if (!try_half(fit_scale<32>(x, half), block.d)) return false;
  float levels[32];
  set_levels<32>(x, to_float(block.d), 0, -half, half - 1, levels);
  pack_levels(levels, half_range, block.nibbles, high);
  return true;
}

template <class Block>
bool quantize_affine(const float* x, float top, Block& block, uint8_t* high) {
  const AffineFit fit = fit_affine<32>(x, top, false);
  if (!try_half(fit.scale, block.d) || !try_half(fit.offset, block.m)) return false;
  float levels[32];
  set_levels<32>(x, to_float(block.d), to_float(block.m), 0, top, levels);
  pack_levels(levels, 0, block.nibbles, high);
  return true;
}

bool quantize_block(const float* x, BlockQ4_0& b) { return quantize_symmetric(x, 8, b, nullptr); }
bool quantize_block(const float* x, BlockQ4_1& b) { return quantize_affine(x, 15, b, nullptr); }
bool quantize_block(const float* x, BlockQ5_0& b) { return quantize_symmetric(x, 16, b, b.high); }
bool quantize_block(const float* x, BlockQ5_1& b) { return quantize_affine(x, 31, b, b.high); }

// The steps are so fine that only the range matters: a search would gain less than a percent.
bool quantize_block(const float* x, BlockQ8_0& b) {
  const float peak = std::fabs(range_of<32>(x).peak());
  if (!try_half(peak / 127, b.d)) return false;
  float levels[32];
  set_levels<32>(x, to_float(b.d), 0, -127, 127, levels);
  for (int i = 0; i < 32; ++i) b.q[i] = static_cast<int8_t>(levels[i]);
  return true;
}

template <class Block>
bool quantize_all(const float* values, std::byte* out, int64_t count) {
  for (int64_t i = 0; i < count; i += Block::kElements) {
    Block block;
    if (!in_range(values + i, Block::kElements) || !quantize_block(values + i, block)) return false;
    std::memcpy(out, &block, sizeof(Block));
    out += sizeof(Block);
  }
  return true;
}

// NaN and infinity are kept; a finite value that rounds to infinity is out of range.
bool round_all(DType type, const float* values, std::byte* out, int64_t count) {
  quantize_reference(type, values, out, count);
  const float limit = type == DType::kF16   ? 65519.996F
                      : type == DType::kF32 ? std::numeric_limits<float>::max()
                                            : 3.3961775e38F;
  bool good = true;
  for (int64_t i = 0; i < count; ++i)
    good = good && (!(std::fabs(values[i]) > limit) || std::isinf(values[i]));
  return good;
}

}  // namespace

bool quantize_blocks(DType type, const float* values, std::byte* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % dtype_info(type).block_elements == 0);
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return round_all(type, values, out, count);
    case DType::kQ4_0:
      return quantize_all<BlockQ4_0>(values, out, count);
    case DType::kQ4_1:
      return quantize_all<BlockQ4_1>(values, out, count);
    case DType::kQ5_0:
      return quantize_all<BlockQ5_0>(values, out, count);
    case DType::kQ5_1:
      return quantize_all<BlockQ5_1>(values, out, count);
    case DType::kQ8_0:
      return quantize_all<BlockQ8_0>(values, out, count);
    case DType::kQ4_K:
      return quantize_all<BlockQ4_K>(values, out, count);
    case DType::kQ5_K:
      return quantize_all<BlockQ5_K>(values, out, count);
    case DType::kQ6_K:
      return quantize_all<BlockQ6_K>(values, out, count);
    default:
      fail(ErrorCode::kUnsupported, "no quantizer for type {}", dtype_name(type));
  }
}

}  // namespace spillway
