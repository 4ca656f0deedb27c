// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize_g4.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"
#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

constexpr int kGroup = BlockG4::kElements;
constexpr int32_t kInfinityBits = 0x7f800000;

// Maps a float's bits to an integer of the same order, and back. Compilers vectorize integer
// minima, but float minima only when told that there are no NaNs; in this order NaNs are the
// largest and smallest.
int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

struct Range {
  float low, peak;
  bool finite;
};

Range range_of(const float* v) {
  int32_t keys[kGroup];
  std::memcpy(keys, v, sizeof(keys));
  int32_t low = ordered(keys[0]), peak = low;
  for (int i = 0; i < kGroup; ++i) {
    const int32_t key = ordered(keys[i]);
    low = std::min(low, key);
    peak = std::max(peak, key);
  }
  return {std::bit_cast<float>(ordered(low)), std::bit_cast<float>(ordered(peak)),
          peak < kInfinityBits && low > ~kInfinityBits};
}

bool is_finite(Half value) { return (value.bits & 0x7c00U) != 0x7c00U; }

bool encode(const float* v, BlockG4& b) {
  const Range range = range_of(v);
  b.m = to_half(range.low);
  const float m = to_float(b.m);
  // A minimum that was rounded up may be above all values.
  b.d = to_half(std::max(range.peak - m, 0.0F) / 15);
  if (!range.finite || !is_finite(b.m) || !is_finite(b.d)) {
    b = {{0x7e00}, {0x7e00}, {}};
    return false;
  }
  const float d = to_float(b.d), inverse = d == 0 ? 0 : 1 / d;
  uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    // The level's magnitude is at most some thousands, since d is not far below a fifteenth of the
    // range.
    const auto level = static_cast<int32_t>((v[i] - m) * inverse + 0.5F);
    codes[i] = static_cast<uint8_t>(std::min(std::max(level, 0), 15));
  }
  for (int i = 0; i < 16; ++i) {
    b.nibbles[i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
    b.nibbles[i + 16] = static_cast<uint8_t>(codes[i + 32] | codes[i + 48] << 4);
  }
  return true;
}

float to_float(float value) { return value; }

template <class T>
bool quantize(const std::byte* stored, std::byte* out, int64_t count) {
  bool good = true;
  for (int64_t i = 0; i < count; i += kGroup) {
    T group[kGroup];
    std::memcpy(group, stored + i * static_cast<int64_t>(sizeof(T)), sizeof(group));
    float values[kGroup];
    for (int k = 0; k < kGroup; ++k) values[k] = to_float(group[k]);
    BlockG4 block;
    good = encode(values, block) && good;
    std::memcpy(out, &block, sizeof(block));
    out += sizeof(block);
  }
  return good;
}

}  // namespace

bool quantize_g4(const float* values, std::byte* out, int64_t count) {
  return quantize_g4(DType::kF32, reinterpret_cast<const std::byte*>(values), out, count);
}

bool quantize_g4(DType from, const std::byte* stored, std::byte* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % kGroup == 0);
  switch (from) {
    case DType::kF32:
      return quantize<float>(stored, out, count);
    case DType::kF16:
      return quantize<Half>(stored, out, count);
    case DType::kBF16:
      return quantize<BFloat16>(stored, out, count);
    default:
      fail(ErrorCode::kUnsupported, "{} is not made from {}", dtype_name(DType::kG4),
           dtype_name(from));
  }
}

}  // namespace spillway
