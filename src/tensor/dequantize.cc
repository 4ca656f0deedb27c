// SPDX-License-Identifier: Apache-2.0
#include "tensor/dequantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"
#include "tensor/quant_blocks.h"
#include "tensor/quantize_g4.h"

namespace spillway {
namespace {

// Data in a file may be unaligned, so every block is copied before it is read.
template <class Block, class Fn>
void for_each_block(const std::byte* stored, float* out, int64_t count, Fn&& decode) {
  for (int64_t i = 0; i < count; i += Block::kElements) {
    Block block;
    std::memcpy(&block, stored, sizeof(Block));
    decode(block, out + i);
    stored += sizeof(Block);
  }
}

template <class T>
void decode_plain(const std::byte* stored, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, stored + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = to_float(value);
  }
}

int nibble(const uint8_t* nibbles, int i) {
  return i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
}
int fifth_bit(const uint8_t* high, int i) { return ((high[i / 8] >> (i % 8)) & 1) << 4; }

void decode(const BlockQ4_0& b, float* out) {
  const float d = to_float(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(b.nibbles, i) - 8);
}

void decode(const BlockQ4_1& b, float* out) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(b.nibbles, i)) + m;
}

void decode(const BlockQ5_0& b, float* out) {
  const float d = to_float(b.d);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>((nibble(b.nibbles, i) | fifth_bit(b.high, i)) - 16);
  }
}

void decode(const BlockQ5_1& b, float* out) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(nibble(b.nibbles, i) | fifth_bit(b.high, i)) + m;
  }
}

void decode(const BlockQ8_0& b, float* out) {
  const float d = to_float(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.q[i]);
}

int two_bits(const uint8_t* q, int i) {
  return (q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
}

void decode(const BlockQ2_K& b, float* out) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int i = 0; i < 256; ++i) {
    const uint8_t scale = b.scales[i / 16];
    const float sub = d * static_cast<float>(scale & 15),
                low = dmin * static_cast<float>(scale >> 4);
    out[i] = sub * static_cast<float>(two_bits(b.q, i)) - low;
  }
}

void decode(const BlockQ3_K& b, float* out) {
  const float d = to_float(b.d);
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16;
    const int low = s < 8 ? b.scales[s] & 15 : b.scales[s - 8] >> 4;
    const int top = (b.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    const int third = (b.high[i % 32] >> (i / 32)) & 1;
    const int q = (two_bits(b.q, i) | (third << 2)) - 4;
    out[i] = d * static_cast<float>((low | (top << 4)) - 32) * static_cast<float>(q);
  }
}

template <class Block, class Fifth>
void decode_k45(const Block& b, float* out, Fifth&& fifth) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  uint8_t scales[8], minima[8];
  unpack_k_scales(b.scales, scales, minima);
  for (int i = 0; i < 256; ++i) {
    const int s = i / 32;
    const uint8_t byte = b.q[i / 64 * 32 + i % 32];
    const int q = (s % 2 == 0 ? byte & 15 : byte >> 4) | fifth(i);
    out[i] = d * static_cast<float>(scales[s]) * static_cast<float>(q) -
             dmin * static_cast<float>(minima[s]);
  }
}

void decode(const BlockQ4_K& b, float* out) {
  decode_k45(b, out, [](int) { return 0; });
}

void decode(const BlockQ5_K& b, float* out) {
  decode_k45(b, out, [&](int i) { return ((b.high[i % 32] >> (i / 32)) & 1) << 4; });
}

void decode(const BlockQ6_K& b, float* out) {
  const float d = to_float(b.d);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, j = i % 128;
    const uint8_t byte = b.low[half * 64 + j % 64];
    const int low = j < 64 ? byte & 15 : byte >> 4;
    const int top = (b.high[half * 32 + j % 32] >> (j / 32 * 2)) & 3;
    const float sub = d * static_cast<float>(b.scales[i / 16]);
    out[i] = sub * static_cast<float>((low | (top << 4)) - 32);
  }
}

void decode(const BlockG4& b, float* out) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int i = 0; i < 64; ++i) {
    out[i] = d * static_cast<float>(nibble(b.nibbles + i / 32 * 16, i % 32)) + m;
  }
}

template <class Block>
void decode_blocks(const std::byte* stored, float* out, int64_t count) {
  for_each_block<Block>(stored, out, count, [](const Block& b, float* o) { decode(b, o); });
}

uint8_t clamp_level(float level, int top) {
  return static_cast<uint8_t>(std::clamp(static_cast<int>(std::lround(level)), 0, top));
}

void set_levels(const uint8_t levels[32], uint8_t nibbles[16], uint8_t* high) {
  if (high != nullptr) std::memset(high, 0, 4);
  for (int i = 0; i < 16; ++i)
    nibbles[i] = static_cast<uint8_t>((levels[i] & 15) | ((levels[i + 16] & 15) << 4));
  if (high == nullptr) return;
  for (int i = 0; i < 32; ++i)
    high[i / 8] = static_cast<uint8_t>(high[i / 8] | ((levels[i] >> 4) << (i % 8)));
}

// For types without a minimum: the value of largest magnitude becomes -2^(bits-1), which the range
// includes.
template <class Block>
void encode_symmetric(const float* values, Block& b, int half_range, uint8_t* high) {
  float peak = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(values[i]) > std::fabs(peak)) peak = values[i];
  }
  b.d = to_half(peak / static_cast<float>(-half_range));
  const float d = to_float(b.d), inverse = d == 0 ? 0 : 1 / d;
  uint8_t levels[32];
  for (int i = 0; i < 32; ++i) {
    levels[i] =
        clamp_level(values[i] * inverse + static_cast<float>(half_range), 2 * half_range - 1);
  }
  set_levels(levels, b.nibbles, high);
}

template <class Block>
void encode_affine(const float* values, Block& b, int top, uint8_t* high) {
  const auto [low, peak] = std::minmax_element(values, values + 32);
  b.m = to_half(*low);
  b.d = to_half((*peak - *low) / static_cast<float>(top));
  const float m = to_float(b.m), d = to_float(b.d), inverse = d == 0 ? 0 : 1 / d;
  uint8_t levels[32];
  for (int i = 0; i < 32; ++i) levels[i] = clamp_level((values[i] - m) * inverse, top);
  set_levels(levels, b.nibbles, high);
}

void encode(const float* v, BlockQ4_0& b) { encode_symmetric(v, b, 8, nullptr); }
void encode(const float* v, BlockQ5_0& b) { encode_symmetric(v, b, 16, b.high); }
void encode(const float* v, BlockQ4_1& b) { encode_affine(v, b, 15, nullptr); }
void encode(const float* v, BlockQ5_1& b) { encode_affine(v, b, 31, b.high); }

void encode(const float* v, BlockQ8_0& b) {
  float peak = 0;
  for (int i = 0; i < 32; ++i) peak = std::max(peak, std::fabs(v[i]));
  b.d = to_half(peak / 127);
  const float d = to_float(b.d), inverse = d == 0 ? 0 : 1 / d;
  for (int i = 0; i < 32; ++i) {
    b.q[i] =
        static_cast<int8_t>(std::clamp(static_cast<int>(std::lround(v[i] * inverse)), -127, 127));
  }
}

template <class Block>
void encode_blocks(const float* values, std::byte* out, int64_t count) {
  for (int64_t i = 0; i < count; i += Block::kElements) {
    Block block;
    encode(values + i, block);
    std::memcpy(out, &block, sizeof(Block));
    out += sizeof(Block);
  }
}

}  // namespace

void dequantize_reference(DType type, const std::byte* stored, float* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % dtype_info(type).block_elements == 0);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, stored, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return decode_plain<Half>(stored, out, count);
    case DType::kBF16:
      return decode_plain<BFloat16>(stored, out, count);
    case DType::kQ4_0:
      return decode_blocks<BlockQ4_0>(stored, out, count);
    case DType::kQ4_1:
      return decode_blocks<BlockQ4_1>(stored, out, count);
    case DType::kQ5_0:
      return decode_blocks<BlockQ5_0>(stored, out, count);
    case DType::kQ5_1:
      return decode_blocks<BlockQ5_1>(stored, out, count);
    case DType::kQ8_0:
      return decode_blocks<BlockQ8_0>(stored, out, count);
    case DType::kQ2_K:
      return decode_blocks<BlockQ2_K>(stored, out, count);
    case DType::kQ3_K:
      return decode_blocks<BlockQ3_K>(stored, out, count);
    case DType::kQ4_K:
      return decode_blocks<BlockQ4_K>(stored, out, count);
    case DType::kQ5_K:
      return decode_blocks<BlockQ5_K>(stored, out, count);
    case DType::kQ6_K:
      return decode_blocks<BlockQ6_K>(stored, out, count);
    case DType::kG4:
      return decode_blocks<BlockG4>(stored, out, count);
  }
  SPW_ASSERT(false);
}

void quantize_reference(DType type, const float* values, std::byte* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % dtype_info(type).block_elements == 0);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        const Half half = to_half(values[i]);
        std::memcpy(out + 2 * i, &half, 2);
      }
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        const BFloat16 half = to_bfloat16(values[i]);
        std::memcpy(out + 2 * i, &half, 2);
      }
      return;
    case DType::kQ4_0:
      return encode_blocks<BlockQ4_0>(values, out, count);
    case DType::kQ4_1:
      return encode_blocks<BlockQ4_1>(values, out, count);
    case DType::kQ5_0:
      return encode_blocks<BlockQ5_0>(values, out, count);
    case DType::kQ5_1:
      return encode_blocks<BlockQ5_1>(values, out, count);
    case DType::kQ8_0:
      return encode_blocks<BlockQ8_0>(values, out, count);
    case DType::kG4:
      quantize_g4(values, out, count);
      return;
    default:
      fail(ErrorCode::kUnsupported, "no quantizer for type {}", dtype_name(type));
  }
}

}  // namespace spillway
