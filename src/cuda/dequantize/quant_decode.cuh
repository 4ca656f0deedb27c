// SPDX-License-Identifier: Apache-2.0
// Decodes eight neighbouring elements of a stored block to floats, in the file's layout and in
// packed groups of 16 rows (tensor/packed_layout.h). Results equal dequantize_reference() except
// for a fused multiply-add where a minimum is added.
//
// This is the general way to read any type; linear layers over packed groups have a faster one
// (linear_quant_tile.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"
#include "tensor/quant_blocks.h"

namespace spillway::cuda {

// Tags by which kernels name plain types, in place of a block's type.
struct PlainF32 {
  static constexpr int kElements = 8;
  static constexpr int kBytes = 32;
};
struct PlainF16 {
  static constexpr int kElements = 8;
  static constexpr int kBytes = 16;
};
struct PlainBF16 {
  static constexpr int kElements = 8;
  static constexpr int kBytes = 16;
};

template <class Block>
constexpr int block_bytes() {
  if constexpr (requires { Block::kBytes; }) {
    return Block::kBytes;
  } else {
    return static_cast<int>(sizeof(Block));
  }
}

// Calls fn.template operator()<Block>() with the block type of `type`.
template <class Fn>
void with_stored_block(DType type, Fn&& fn) {
  switch (type) {
    case DType::kF32:
      return fn.template operator()<PlainF32>();
    case DType::kF16:
      return fn.template operator()<PlainF16>();
    case DType::kBF16:
      return fn.template operator()<PlainBF16>();
    case DType::kQ4_0:
      return fn.template operator()<BlockQ4_0>();
    case DType::kQ4_1:
      return fn.template operator()<BlockQ4_1>();
    case DType::kQ5_0:
      return fn.template operator()<BlockQ5_0>();
    case DType::kQ5_1:
      return fn.template operator()<BlockQ5_1>();
    case DType::kQ8_0:
      return fn.template operator()<BlockQ8_0>();
    case DType::kQ2_K:
      return fn.template operator()<BlockQ2_K>();
    case DType::kQ3_K:
      return fn.template operator()<BlockQ3_K>();
    case DType::kQ4_K:
      return fn.template operator()<BlockQ4_K>();
    case DType::kQ5_K:
      return fn.template operator()<BlockQ5_K>();
    case DType::kQ6_K:
      return fn.template operator()<BlockQ6_K>();
    case DType::kG4:
      return fn.template operator()<BlockG4>();
  }
}

// Blocks have even sizes and may begin at any even address, so they are read 16 bits at a time.
__device__ __forceinline__ uint32_t load_pair(const uint8_t* from) {
  return __ldg(reinterpret_cast<const unsigned short*>(from));
}
__device__ __forceinline__ uint32_t load_word(const uint8_t* from) {
  return load_pair(from) | load_pair(from + 2) << 16;
}
__device__ __forceinline__ float load_half(const uint8_t* from) {
  return __half2float(__ldg(reinterpret_cast<const __half*>(from)));
}
// Eight bytes: 0-3 and 4-7.
struct Bytes8 {
  uint32_t low, high;
  __device__ __forceinline__ int at(int i) const {
    return static_cast<int>((i < 4 ? low : high) >> (i % 4 * 8) & 0xffU);
  }
  __device__ __forceinline__ Bytes8 bits(int shift, uint32_t mask) const {
    return {low >> shift & mask * 0x01010101U, high >> shift & mask * 0x01010101U};
  }
  __device__ __forceinline__ Bytes8 plus(Bytes8 other, int shift) const {
    return {low | other.low << shift, high | other.high << shift};
  }
};
__device__ __forceinline__ Bytes8 load_bytes(const uint8_t* from) {
  return {load_word(from), load_word(from + 4)};
}
// Loads eight bytes of a packed group, whose chunks are aligned.
__device__ __forceinline__ Bytes8 load_aligned_bytes(const uint8_t* from) {
  const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
  return {both.x, both.y};
}
// Moves bit i of a byte to bit 0 of byte i.
__device__ __forceinline__ Bytes8 spread_bits(uint32_t byte) {
  Bytes8 out{0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.low |= (byte >> i & 1U) << (8 * i);
    out.high |= (byte >> (i + 4) & 1U) << (8 * i);
  }
  return out;
}
// Sets the scale and the minimum of sub-block s of Q4_K and Q5_K (unpack_k_scales).
__device__ __forceinline__ void k_scale(const uint8_t* packed, int s, int& scale, int& minimum) {
  if (s < 4) {
    scale = __ldg(packed + s) & 63;
    minimum = __ldg(packed + s + 4) & 63;
  } else {
    const int both = __ldg(packed + s + 4);
    scale = (both & 15) | __ldg(packed + s - 4) >> 6 << 4;
    minimum = both >> 4 | __ldg(packed + s) >> 6 << 4;
  }
}

// The codes, scale and offset of elements [e, e + 8) of a block: value = scale * (code - zero) +
// offset.
struct Codes8 {
  Bytes8 codes;
  float scale;
  float offset;
};

template <class Block>
constexpr int kZero = 0;
template <>
inline constexpr int kZero<BlockQ4_0> = 8;
template <>
inline constexpr int kZero<BlockQ5_0> = 16;
template <>
inline constexpr int kZero<BlockQ6_K> = 32;
template <>
inline constexpr int kZero<BlockQ3_K> = 4;

template <class Block>
__device__ __forceinline__ Codes8 stored_codes(const uint8_t* b, int e) {
  Codes8 out{};
  if constexpr (std::is_same_v<Block, BlockQ8_0>) {
    out = {load_bytes(b + 2 + e), load_half(b), 0};
  } else if constexpr (std::is_same_v<Block, BlockG4>) {
    out = {load_bytes(b + 4 + e / 32 * 16 + e % 16).bits(e % 32 < 16 ? 0 : 4, 15), load_half(b),
           load_half(b + 2)};
  } else if constexpr (Block::kElements == 32) {
    constexpr bool has_min = std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockQ5_1>;
    constexpr bool has_high = std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>;
    constexpr int high = has_min ? 4 : 2, nibbles = high + (has_high ? 4 : 0);
    out.codes = load_bytes(b + nibbles + e % 16).bits(e < 16 ? 0 : 4, 15);
    if constexpr (has_high) out.codes = out.codes.plus(spread_bits(__ldg(b + high + e / 8)), 4);
    out.scale = load_half(b);
    if constexpr (has_min) out.offset = load_half(b + 2);
  } else if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    const int scale = __ldg(b + e / 16);
    out.codes = load_bytes(b + 16 + e / 128 * 32 + e % 32).bits(e % 128 / 32 * 2, 3);
    out.scale = load_half(b + 80) * static_cast<float>(scale & 15);
    out.offset = -(load_half(b + 82) * static_cast<float>(scale >> 4));
  } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    const uint8_t* scales = b + 96;
    const int s = e / 16;
    const int low = s < 8 ? __ldg(scales + s) & 15 : __ldg(scales + s - 8) >> 4;
    const int top = __ldg(scales + 8 + s % 4) >> (2 * (s / 4)) & 3;
    out.codes = load_bytes(b + 32 + e / 128 * 32 + e % 32)
                    .bits(e % 128 / 32 * 2, 3)
                    .plus(load_bytes(b + e % 32).bits(e / 32, 1), 2);
    out.scale = load_half(b + 108) * static_cast<float>((low | top << 4) - 32);
  } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    const int j = e % 128, half = e / 128;
    out.codes = load_bytes(b + half * 64 + j % 64)
                    .bits(j < 64 ? 0 : 4, 15)
                    .plus(load_bytes(b + 128 + half * 32 + j % 32).bits(j / 32 * 2, 3), 4);
    out.scale =
        load_half(b + 208) * static_cast<float>(static_cast<int8_t>(__ldg(b + 192 + e / 16)));
  } else {
    constexpr bool has_high = std::is_same_v<Block, BlockQ5_K>;
    constexpr int q = has_high ? 48 : 16;
    int scale, minimum;
    k_scale(b + 4, e / 32, scale, minimum);
    out.codes = load_bytes(b + q + e / 64 * 32 + e % 32).bits(e % 64 < 32 ? 0 : 4, 15);
    if constexpr (has_high) {
      out.codes = out.codes.plus(load_bytes(b + 16 + e % 32).bits(e / 32, 1), 4);
    }
    out.scale = load_half(b) * static_cast<float>(scale);
    out.offset = -(load_half(b + 2) * static_cast<float>(minimum));
  }
  return out;
}

// The bits per element in a packed group, and below the sizes that say where the columns of a group
// block begin.
template <class Block>
constexpr int packed_bits() {
  if constexpr (std::is_same_v<Block, BlockQ8_0>) return 8;
  if constexpr (std::is_same_v<Block, BlockQ6_K>) return 6;
  if constexpr (std::is_same_v<Block, BlockQ3_K>) return 3;
  if constexpr (std::is_same_v<Block, BlockQ2_K>) return 2;
  if constexpr (std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1> ||
                std::is_same_v<Block, BlockQ5_K>) {
    return 5;
  }
  return 4;
}
template <class Block>
inline constexpr int kPackedSubBytes = 64 * packed_bits<Block>();
template <class Block>
inline constexpr int kPackedHeaderBytes =
    16 * static_cast<int>(sizeof(Block)) - Block::kElements / 32 * kPackedSubBytes<Block>;

// Returns value s of the eight six-bit values of a row: `six` of the layout.
__device__ __forceinline__ int packed_six(const uint8_t* six, int row, int s) {
  const int low = __ldg(six + s % 4 * 16 + row) >> (s / 4 * 4) & 15;
  return low | (__ldg(six + 64 + s / 4 * 16 + row) >> (s % 4 * 2) & 3) << 4;
}

// Does the same for row `row` of the group block at `b`.
template <class Block>
__device__ __forceinline__ Codes8 packed_codes(const uint8_t* b, int row, int e) {
  Codes8 out{};
  const int p = row / 2, lane = row % 2 * 8, h = e / 8 % 2;
  const bool second = e % 32 >= 16;
  const uint8_t* sub = b + kPackedHeaderBytes<Block> + e / 32 * kPackedSubBytes<Block>;
  constexpr int bits = packed_bits<Block>();
  const auto one_bit = [&](const uint8_t* high1) {
    return load_aligned_bytes(high1 + p / 2 * 16 + lane).bits(p % 2 * 4 + h * 2 + second, 1);
  };
  const auto two_bits = [&](const uint8_t* high2) {
    return load_aligned_bytes(high2 + p * 16 + lane).bits(h * 4 + second * 2, 3);
  };
  if constexpr (bits == 8) {
    out.codes = load_aligned_bytes(sub + (p * 4 + e % 32 / 8) * 16 + lane);
  } else if constexpr (bits == 2 || bits == 3) {
    out.codes = two_bits(sub);
    if constexpr (bits == 3) out.codes = out.codes.plus(one_bit(sub + 128), 2);
  } else {
    out.codes = load_aligned_bytes(sub + (p * 2 + h) * 16 + lane).bits(second ? 4 : 0, 15);
    if constexpr (bits == 5) out.codes = out.codes.plus(one_bit(sub + 256), 4);
    if constexpr (bits == 6) out.codes = out.codes.plus(two_bits(sub + 256), 4);
  }
  if constexpr (kZero<Block> != 0 && bits != 4) {  // stored in two's complement
    constexpr uint32_t flip = kZero<Block> * 0x01010101U;
    out.codes = {out.codes.low ^ flip, out.codes.high ^ flip};
  }
  out.scale = load_half(b + 2 * row);
  if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    out.scale *= static_cast<float>(static_cast<int8_t>(__ldg(b + 32 + e / 16 * 16 + row)));
  } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    const int s = e / 16;
    out.scale *= static_cast<float>(packed_six(b + 32 + s / 8 * 96, row, s % 8) - 32);
  } else if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    const int both = __ldg(b + 64 + e / 16 * 16 + row);
    out.scale *= static_cast<float>(both & 15);
    out.offset = -(load_half(b + 32 + 2 * row) * static_cast<float>(both >> 4));
  } else if constexpr (Block::kElements == 256) {
    out.scale *= static_cast<float>(packed_six(b + 64, row, e / 32));
    out.offset =
        -(load_half(b + 32 + 2 * row) * static_cast<float>(packed_six(b + 160, row, e / 32)));
  } else if constexpr (requires(Block block) { block.m; }) {
    out.offset = load_half(b + 32 + 2 * row);
  }
  return out;
}

template <class Block>
__device__ __forceinline__ void values_of(const Codes8& c, float out[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = c.codes.at(i);
    if constexpr (std::is_same_v<Block, BlockQ8_0>) {
      out[i] = c.scale * static_cast<float>(static_cast<int8_t>(code));
    } else {
      out[i] = fmaf(c.scale, static_cast<float>(code - kZero<Block>), c.offset);
    }
  }
}

// Sets `out` to elements [e, e + 8) of the block at `b` in the file's layout; e is a multiple of 8.
// Plain types are "blocks" of eight elements with the alignment of an element.
template <class Block>
__device__ __forceinline__ void decode8(const uint8_t* b, int e, float out[8]) {
  if constexpr (std::is_same_v<Block, PlainF32>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __ldg(reinterpret_cast<const float*>(b) + i);
  } else if constexpr (std::is_same_v<Block, PlainF16>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = load_half(b + 2 * i);
  } else if constexpr (std::is_same_v<Block, PlainBF16>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __uint_as_float(load_pair(b + 2 * i) << 16);
  } else {
    values_of<Block>(stored_codes<Block>(b, e), out);
  }
}

// Sets `out` to elements [column, column + 8) of row `row` of a matrix whose first `grouped_rows`
// rows lie in packed groups. All eight elements must exist.
template <class Block>
__device__ __forceinline__ void decode8_of_row(const uint8_t* matrix, int64_t row_bytes,
                                               int64_t row, int64_t grouped_rows, int64_t column,
                                               float out[8]) {
  const int64_t block = column / Block::kElements;
  const int e = static_cast<int>(column % Block::kElements);
  if constexpr (!requires { Block::kBytes; }) {
    if (row < grouped_rows) {
      const uint8_t* group = matrix + row / 16 * 16 * row_bytes + block * 16 * block_bytes<Block>();
      values_of<Block>(packed_codes<Block>(group, static_cast<int>(row % 16), e), out);
      return;
    }
  }
  decode8<Block>(matrix + row * row_bytes + block * block_bytes<Block>(), e, out);
}

}  // namespace spillway::cuda
