// SPDX-License-Identifier: Apache-2.0
// A tile of packed weights, 16 rows by 32 columns, from shared memory to operands of tensor cores.
//
// The rows of a group are the rows of mma.m16n8k16's A; a tile is two such operands, `low` and
// `high`. Codes are not converted but given an exponent: a code of four bits at bit 0 of a half,
// under 0x6400, is the number 1024 + q, and at bit 4, under 0x5400, it is 64 + q. So an operand
// costs one three-input logic instruction per pair. What is added to the codes, zero points
// included, is subtracted again by the number that sums start from: minus offset times the sum of x
// over the columns, computed once when x is stored in shared memory. Products and sums are F32 in
// the tensor core; scales are applied to the sums of a tile, in F32, so weights are not rounded.
//
// With more than 16 tokens (on Hopper, with wgmma, 8) scaling the weights is less work than that:
// the offset is subtracted from the codes, and scale and minimum make them halves, as when a matrix
// is expanded to F16.
//
// Thread (g = lane / 4, t = lane % 4) has rows g and g + 8. Of 2- to 6-bit types it takes columns
// 4t to 4t + 3 (low) and 16 + 4t to 16 + 4t + 3 (high), paired (0, 2) and (1, 3) as they lie in
// bytes of a word; of 8-bit types columns 8t to 8t + 3 (low) and 8t + 4 to 8t + 7 (high), paired in
// order. x is stored in the same order (linear_quant_inl.cuh).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/dequantize/quant_decode.cuh"

namespace spillway::cuda {

// The constants of a packed type that kernels use.
template <class Block>
struct TileFormat {
  static constexpr int kBits = packed_bits<Block>();
  static constexpr int kTiles = Block::kElements / 32;  // tiles of a quantization block
  static constexpr int kUnitBytes = 16 * static_cast<int>(sizeof(Block));
  static constexpr int kHeaderBytes = kPackedHeaderBytes<Block>;
  static constexpr int kSubBytes = kPackedSubBytes<Block>;
  // True if a scale covers 16 columns: `low` and `high` have one each.
  static constexpr bool kSplit = std::is_same_v<Block, BlockQ6_K> ||
                                 std::is_same_v<Block, BlockQ3_K> ||
                                 std::is_same_v<Block, BlockQ2_K>;
  static constexpr bool kMinimum =
      std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockQ5_1> ||
      std::is_same_v<Block, BlockQ4_K> || std::is_same_v<Block, BlockQ5_K> ||
      std::is_same_v<Block, BlockQ2_K> || std::is_same_v<Block, BlockG4>;
  // True if `low` and `high` also have a minimum each.
  static constexpr bool kSplitMinimum = kSplit && kMinimum;
  // True if scales and minima must be computed before use, and the number of their values per group
  // block.
  static constexpr bool kPrepared = Block::kElements == 256;
  static constexpr int kPreparedValues = !kPrepared ? 0 : kSplitMinimum ? 512 : 256;
  // Codes in two's complement become unsigned by flipping their highest bit.
  static constexpr int kFlip = kBits == 4 || kBits == 8 ? 0 : kZero<Block>;
  // The offset that is added to the signed code in `low` and in `high`.
  static constexpr float kLowOffset =
      kBits == 8 ? 1024 + 128 : (kBits == 2 ? 256 : 1024) + kZero<Block>;
  static constexpr float kHighOffset =
      kBits == 8 ? 1024 + 128 : (kBits <= 3 ? 256 : 64) + kZero<Block>;
};

// The offsets in bytes of a thread's words in a tile, for row g; the comments say how much further
// row g + 8 is.
struct TileLane {
  int nibbles;  // row g + 8: + 128
  int high1;    // + 32
  int high2;    // + 64
  int bytes;    // + 256
  int shift1;   // for words of high1
  int shift2;   // for words of high2
  __device__ __forceinline__ explicit TileLane(int lane) {
    const int g = lane / 4, t = lane % 4, p = g / 2, h = t / 2;
    const int within = g % 2 * 8 + t % 2 * 4;
    nibbles = (p * 2 + h) * 16 + within;
    high1 = p / 2 * 16 + within;
    high2 = p * 16 + within;
    bytes = (p * 4 + t) * 16 + g % 2 * 8;
    shift1 = p % 2 * 4 + h * 2;
    shift2 = h * 4;
  }
};

// Computes (word & mask) ^ with in one instruction: left to itself the compiler makes two, since
// only one constant can be part of an instruction.
__device__ __forceinline__ uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t with) {
#ifdef __CUDA_ARCH__
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(word), "r"(mask), "r"(with));
  return out;
#else
  return (word & mask) ^ with;
#endif
}

// One row's pairs of a tile: columns (0, 2) and (1, 3), or (0, 1) and (2, 3), of each operand.
struct RowPairs {
  uint32_t low[2];
  uint32_t high[2];
};

// Builds pairs from the bits of four columns and of the four that are 16 further: `four` has them
// in nibbles (8-bit types: four columns, and in `two` the four after them); `two` has two bits and
// `one` one more bit at bits 0 and 1, 2 and 3 of each byte.
template <int kBits, int kFlip>
__device__ __forceinline__ RowPairs word_pairs(uint32_t four, uint32_t two, uint32_t one) {
  RowPairs out;
  constexpr uint32_t kLow = (0x6400U ^ kFlip) * 0x00010001U;
  if constexpr (kBits == 8) {
    four ^= 0x80808080U;
    two ^= 0x80808080U;
    out.low[0] = __byte_perm(four, 0x64646464U, 0x4140);
    out.low[1] = __byte_perm(four, 0x64646464U, 0x4342);
    out.high[0] = __byte_perm(two, 0x64646464U, 0x4140);
    out.high[1] = __byte_perm(two, 0x64646464U, 0x4342);
  } else if constexpr (kBits == 2) {
    // Both get the same exponent: the larger one would leave few digits to sums of these small
    // codes.
    constexpr uint32_t kBoth = 0x5c005c00U;
    out.low[0] = and_xor(two << 2, 0x000c000cU, kBoth);
    out.low[1] = and_xor(two >> 6, 0x000c000cU, kBoth);
    out.high[0] = and_xor(two, 0x000c000cU, kBoth);
    out.high[1] = and_xor(two >> 8, 0x000c000cU, kBoth);
  } else if constexpr (kBits == 3) {
    constexpr uint32_t kHigh = (0x5c00U ^ kFlip << 2) * 0x00010001U;
    out.low[0] = and_xor(one << 2, 0x00040004U, and_xor(two, 0x00030003U, kLow));
    out.low[1] = and_xor(one >> 6, 0x00040004U, and_xor(two >> 8, 0x00030003U, kLow));
    out.high[0] = and_xor(one << 3, 0x00100010U, and_xor(two, 0x000c000cU, kHigh));
    out.high[1] = and_xor(one >> 5, 0x00100010U, and_xor(two >> 8, 0x000c000cU, kHigh));
  } else {
    constexpr uint32_t kHigh = (0x5400U ^ kFlip << 4) * 0x00010001U;
    out.low[0] = and_xor(four, 0x000f000fU, kLow);
    out.low[1] = and_xor(four >> 8, 0x000f000fU, kLow);
    out.high[0] = and_xor(four, 0x00f000f0U, kHigh);
    out.high[1] = and_xor(four >> 8, 0x00f000f0U, kHigh);
    if constexpr (kBits == 5) {
      out.low[0] = and_xor(one << 4, 0x00100010U, out.low[0]);
      out.low[1] = and_xor(one >> 4, 0x00100010U, out.low[1]);
      out.high[0] = and_xor(one << 7, 0x01000100U, out.high[0]);
      out.high[1] = and_xor(one >> 1, 0x01000100U, out.high[1]);
    } else if constexpr (kBits == 6) {
      out.low[0] = and_xor(two << 4, 0x00300030U, out.low[0]);
      out.low[1] = and_xor(two >> 4, 0x00300030U, out.low[1]);
      out.high[0] = and_xor(two << 6, 0x03000300U, out.high[0]);
      out.high[1] = and_xor(two >> 2, 0x03000300U, out.high[1]);
    }
  }
  return out;
}

// A lane's words of a tile as they lie in memory, for rows g and g + 8: see word_pairs().
struct TileWords {
  uint32_t four[2];
  uint32_t two[2];
  uint32_t one[2];
};

template <class Block>
__device__ __forceinline__ TileWords tile_words(const uint8_t* sub, const TileLane& at) {
  constexpr int kBits = TileFormat<Block>::kBits;
  TileWords out{};
  const auto word = [&](int offset) { return *reinterpret_cast<const uint32_t*>(sub + offset); };
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    if constexpr (kBits == 8) {
      const uint2 both = *reinterpret_cast<const uint2*>(sub + at.bytes + second * 256);
      out.four[second] = both.x;
      out.two[second] = both.y;
    } else if constexpr (kBits <= 3) {
      out.two[second] = word(at.high2 + second * 64);
      if constexpr (kBits == 3) out.one[second] = word(128 + at.high1 + second * 32);
    } else {
      out.four[second] = word(at.nibbles + second * 128);
      if constexpr (kBits == 5) out.one[second] = word(256 + at.high1 + second * 32);
      if constexpr (kBits == 6) out.two[second] = word(256 + at.high2 + second * 64);
    }
  }
  return out;
}

// The operands of a tile, in the order of mma's registers.
struct TileOperands {
  uint32_t low[4];
  uint32_t high[4];
};

template <class Block>
__device__ __forceinline__ TileOperands tile_operands(const TileWords& words, const TileLane& at) {
  using Format = TileFormat<Block>;
  const auto pairs = [&](int second) {
    const bool whole = Format::kBits == 8;  // the second word has whole codes, not single bits
    return word_pairs<Format::kBits, Format::kFlip>(
        words.four[second], whole ? words.two[second] : words.two[second] >> at.shift2,
        words.one[second] >> at.shift1);
  };
  const RowPairs first = pairs(0), second = pairs(1);
  return {{first.low[0], second.low[0], first.low[1], second.low[1]},
          {first.high[0], second.high[0], first.high[1], second.high[1]}};
}

// d = a * b + c on tensor cores: a is [16 rows, 16], b is [16, 8 tokens].
__device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4], uint32_t b0,
                                             uint32_t b1, const float c[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  float half[4];
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=f"(half[0]), "=f"(half[1]), "=f"(half[2]), "=f"(half[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1), "f"(half[0]), "f"(half[1]), "f"(half[2]), "f"(half[3]));
#endif
}

}  // namespace spillway::cuda
