// SPDX-License-Identifier: Apache-2.0
// Two neighbouring tiles of packed weights (linear_quant_tile.cuh) for products with few tokens: 16
// bytes per lane at a time, and scales once per eight tiles.
//
// With one token seven of the eight columns of mma's B would be empty. Here column c is the x of
// tile c: a product with the weights of any tile leaves in column c the sum over that tile's
// columns if it is tile c, and otherwise a number that is not used. So the sums of eight tiles lie
// side by side, and each thread scales two of them, instead of all threads scaling every tile. With
// two (four) tokens a column is one of four (two) tiles and a token.
//
// Thread (g, t) has rows 2p and 2p + 1 of the group, where p is PairLane::p, one 16-byte chunk of
// the layout. Threads t < 2 take columns of the first tile, t >= 2 of the second (where their x is
// zero in columns of the other tile); with 8-bit types they take both tiles one after the other.
#pragma once

#include "cuda/linear/linear_quant_scales.cuh"
#include "cuda/linear/linear_quant_tile.cuh"

namespace spillway::cuda {

inline constexpr int kPairTiles = 8;  // tiles per chunk: 256 columns

template <class Block>
struct PairFormat {
  using Format = TileFormat<Block>;
  static constexpr int kChunkBlocks = kPairTiles * 32 / Block::kElements;
  static constexpr int kChunkBytes = kChunkBlocks * Format::kUnitBytes;
  // The distance from a tile to the next one, in the same block or in the next block.
  static constexpr int kTileStride =
      Block::kElements == 32 ? Format::kUnitBytes : Format::kSubBytes;
  static constexpr int kPairStride = Block::kElements == 64 ? Format::kUnitBytes : 2 * kTileStride;
  // Whether the pairs of rows are dealt to threads in another order, so that loads of eight threads
  // use no bank twice (where tiles are a multiple of 128 bytes apart they do not anyhow).
  static constexpr bool kSwapPairs = kTileStride % 64 == 32 && Format::kBits != 8;
};

// A lane's place in pairs of tiles.
template <class Block>
struct PairLane {
  int p;       // rows 2p and 2p + 1
  int pieces;  // offset of nibbles or bytes
  int high1;   // offsets of the other bits, and their shifts
  int high2;
  int shift1;
  int shift2;
  __device__ __forceinline__ explicit PairLane(int lane) {
    using Format = TileFormat<Block>;
    using Pair = PairFormat<Block>;
    const int g = lane / 4, t = lane % 4, h = t % 2;
    p = Pair::kSwapPairs ? (g & 4) | (g & 1) << 1 | (g >> 1 & 1) : g;
    const int tile = Format::kHeaderBytes + t / 2 * Pair::kTileStride;
    pieces = Format::kBits == 8 ? Format::kHeaderBytes + p * 64 + t * 16 : tile + p * 32 + h * 16;
    high1 = tile + (Format::kBits <= 3 ? 128 : 256) + p / 2 * 16;
    high2 = tile + (Format::kBits <= 3 ? 0 : 256) + p * 16;
    shift1 = p % 2 * 4 + h * 2;
    shift2 = h * 4;
  }
};

// Loads the four operands of pair `pair` of a chunk: first words low and high, second words low and
// high; for 8-bit types first tile low and high, second tile low and high.
template <class Block>
__device__ __forceinline__ void pair_operands(const uint8_t* chunk, int pair,
                                              const PairLane<Block>& at, uint32_t out[4][4]) {
  using Format = TileFormat<Block>;
  using Pair = PairFormat<Block>;
  constexpr int kBits = Format::kBits;
  const uint8_t* base = chunk + pair * Pair::kPairStride;
  const auto load = [&](int offset) { return *reinterpret_cast<const uint4*>(base + offset); };
  const auto put = [&](int word, const RowPairs& first, const RowPairs& second) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out[word * 2][i * 2] = first.low[i];
      out[word * 2][i * 2 + 1] = second.low[i];
      out[word * 2 + 1][i * 2] = first.high[i];
      out[word * 2 + 1][i * 2 + 1] = second.high[i];
    }
  };
  if constexpr (kBits == 8) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint4 v = load(at.pieces + tile * Pair::kTileStride);
      put(tile, word_pairs<8, 0>(v.x, v.y, 0), word_pairs<8, 0>(v.z, v.w, 0));
    }
  } else {
    uint4 four{0, 0, 0, 0}, two{0, 0, 0, 0}, one{0, 0, 0, 0};
    if constexpr (kBits > 3) four = load(at.pieces);
    if constexpr (kBits <= 3 || kBits == 6) two = load(at.high2);
    if constexpr (kBits == 3 || kBits == 5) one = load(at.high1);
    const auto pairs = [&](uint32_t f, uint32_t w, uint32_t o) {
      return word_pairs<kBits, Format::kFlip>(f, w >> at.shift2, o >> at.shift1);
    };
    put(0, pairs(four.x, two.x, one.x), pairs(four.z, two.z, one.z));
    put(1, pairs(four.y, two.y, one.y), pairs(four.w, two.w, one.w));
  }
}

__device__ __forceinline__ float2 load_half_pair(const uint8_t* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}

// Converts two integers below 256, in bytes 0 and 1, and subtracts `bias`.
__device__ __forceinline__ float2 small_numbers(uint32_t bytes, float bias) {
  return __half22float2(take_off(__byte_perm(bytes, 0x64646464U, 0x4140), 1024 + bias));
}

// Returns the scales of rows 2p and 2p + 1 in tile `tile` of a chunk (see TileScales).
template <class Block>
__device__ __forceinline__ TileScales<float> pair_scales(const uint8_t* chunk, int tile, int p) {
  using Format = TileFormat<Block>;
  const auto bytes = [&](int offset) -> uint32_t {
    return *reinterpret_cast<const uint16_t*>(chunk + offset + 2 * p);
  };
  // Returns number s of eight six-bit ones, for both rows.
  const auto six = [&](int offset, int s) {
    return (bytes(offset + s % 4 * 16) >> (s / 4 * 4) & 0x0f0fU) |
           (bytes(offset + 64 + s / 4 * 16) >> (s % 4 * 2) & 0x0303U) << 4;
  };
  TileScales<float> out{};
  if constexpr (!Format::kPrepared) {
    const uint8_t* header = chunk + tile / Format::kTiles * Format::kUnitBytes + 4 * p;
    const float2 d = load_half_pair(header);
    out.scale[0] = d.x, out.scale[1] = d.y;
    if constexpr (Format::kMinimum) {
      const float2 m = load_half_pair(header + 32);
      out.other[0] = m.x, out.other[1] = m.y;
    }
  } else {
    const float2 d = load_half_pair(chunk + 4 * p);
    float2 scale, other, factor = d;
    if constexpr (std::is_same_v<Block, BlockQ2_K>) {
      const uint32_t low = bytes(64 + 2 * tile * 16), high = bytes(80 + 2 * tile * 16);
      scale = small_numbers(low & 0x0f0fU, 0);
      other = small_numbers(high & 0x0f0fU, 0);
      const float2 dmin = load_half_pair(chunk + 32 + 4 * p);
      const float minimum[2] = {split_minimum<Block>(dmin.x), split_minimum<Block>(dmin.y)};
      const float2 of_low = small_numbers(low >> 4 & 0x0f0fU, 0);
      const float2 of_high = small_numbers(high >> 4 & 0x0f0fU, 0);
      out.low_minimum[0] = minimum[0] * of_low.x, out.low_minimum[1] = minimum[1] * of_low.y;
      out.high_minimum[0] = minimum[0] * of_high.x, out.high_minimum[1] = minimum[1] * of_high.y;
    } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
      scale = small_numbers(bytes(32 + 2 * tile * 16) ^ 0x8080U, 128);
      other = small_numbers(bytes(48 + 2 * tile * 16) ^ 0x8080U, 128);
    } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
      scale = small_numbers(six(32 + tile / 4 * 96, 2 * tile % 8), 32);
      other = small_numbers(six(32 + tile / 4 * 96, 2 * tile % 8 + 1), 32);
    } else {
      scale = small_numbers(six(64, tile), 0);
      other = small_numbers(six(160, tile), 0);
      const float2 minimum = load_half_pair(chunk + 32 + 4 * p);
      factor = {-minimum.x, -minimum.y};
    }
    out.scale[0] = d.x * scale.x, out.scale[1] = d.y * scale.y;
    out.other[0] = factor.x * other.x, out.other[1] = factor.y * other.y;
  }
  return out;
}

}  // namespace spillway::cuda
