// SPDX-License-Identifier: Apache-2.0
// Decode attention over int8 and int4 KV (attention_decode_codes.cuh): which tokens a warp takes,
// and where they lie in shared memory.
#pragma once

#include "cuda/attention/attention_decode_mma.cuh"
#include "cuda/attention/attention_long_place.cuh"

namespace spillway::cuda {

// A warp of int4 takes more tokens at a time: what it does for all of them weighs as much as 32
// tokens' codes.
constexpr int kCodeWarps = 4;
constexpr int code_warp_tokens(KvType type) { return type == KvType::kInt4 ? 64 : 32; }

template <KvType kType, int kDim, int kBufferCount>
requires(is_quantized(kType)) struct DecodeShape<kType, kDim, kBufferCount> {
  static constexpr bool kNibbles = kType == KvType::kInt4;
  static constexpr KvPageLayout kLayout{kType, kDim};
  static constexpr int kGroups = (kDim + 63) / 64;
  static constexpr int kRowBytes = static_cast<int>(kLayout.row_bytes);
  static constexpr int kCodesAt = static_cast<int>(kLayout.codes_at);
  static constexpr int kMinsAt = static_cast<int>(kLayout.mins_at);
  static constexpr int kDimTiles = kDim / 16;

  static constexpr int kWarps = kCodeWarps;
  static constexpr int kWarpTokens = code_warp_tokens(kType);
  static constexpr int kTurnTokens = kWarps * kWarpTokens;
  static constexpr int kSteps = kWarpTokens / 32;
  static constexpr int kTiles = 4 * kSteps;  // of 8 tokens
  static constexpr int kPages = 2 * kSteps;  // of keys, and as many of values
  // All pages at once, or values in the place of keys.
  static constexpr bool kAtOnce = kBufferCount == 4;
  static_assert(kAtOnce || kBufferCount == 2);

  // Neighbouring pages are half a round of banks apart.
  static constexpr int kPageBytes = (static_cast<int>(kLayout.bytes) + 63) / 128 * 128 + 64;
  static constexpr int kPagesBytes = (kAtOnce ? 2 : 1) * kPages * kPageBytes;
  // Outputs of the warp take the place of its pages: [queries][kOutPitch] floats.
  static constexpr int kOutPitch = kDim + 4;
  static constexpr int kOutBytes = 4 * kTileQueries * kOutPitch;
  static constexpr int kWarpBytes = kPagesBytes > kOutBytes ? kPagesBytes : kOutBytes;

  // int8: queries in rows, apart so that lanes hit different banks.
  static constexpr int kQueryPitch = kGroups * 64 + 8;
  // int4: what lanes give to products, in their order. `Sets` of one group or two.
  static constexpr int kSetGroups = kGroups > 1 ? 2 : 1;
  static constexpr int kSets = kGroups / kSetGroups;
  static constexpr int kPieceWords = 2 * kSetGroups;  // of a key, that a lane takes of a set
  static constexpr int kSetProducts = 2 * kPieceWords;

  // What a code becomes: it plus this, in the low half of an int4 byte and in the high one.
  static constexpr float kBias = kNibbles ? 1024 : 1152;
  static constexpr float kHighBias = kNibbles ? 64 : kBias;
  // Products of exponents and scales are rounded to halves, which must not show in a sum over dims:
  // rotating back is one. So they meet codes minus this only; it meets them as they were.
  static constexpr float kMiddle = kNibbles ? 7.5F : 0;

  // The token of column e of a lane's two in score tile i, among its 8.
  __device__ static constexpr int pair_token(int i, int e) {
    return kNibbles ? i / 2 * 4 + i % 2 + 2 * e : 2 * i + e;
  }
  // The dim in row `g` or g + 8 of a tile of values.
  __device__ static constexpr int dim_of(int tile, int upper, int g) {
    if constexpr (!kNibbles) {
      return 16 * tile + 2 * g + upper;
    } else {
      const int load = tile / 2;
      return load / 2 * 64 + tile % 2 * 32 + load % 2 * 16 + 2 * g + upper;
    }
  }
  // Where a 16-byte piece of a page of keys goes.
  __device__ static constexpr int key_place(int piece) {
    constexpr int kFirst = kCodesAt / 16, kRow = kRowBytes / 16;
    if (piece < kFirst) return piece;
    const int row = (piece - kFirst) / kRow, rest = (piece - kFirst) % kRow;
    const int slot = kNibbles ? (row & ~3) | (row & 1) << 1 | (row >> 1 & 1) : row;
    return kFirst + slot * kRow + (kSwapsHalves ? rest ^ (slot & 1) * 4 : rest);
  }
  // Where rows of keys are whole rounds of banks, odd ones have neighbouring halves swapped.
  static constexpr bool kSwapsHalves = kRowBytes % 128 == 0;
  // Places of pieces that are 32 apart are, which spares computing them.
  static_assert(kCodesAt <= 32 * 16 && (!kNibbles || 32 * 16 / kRowBytes % 4 == 0) &&
                (!kSwapsHalves || 32 * 16 / kRowBytes % 2 == 0));
};

// What a block shares.
template <KvType kType, int kDim, int kBuffers>
requires(is_quantized(kType)) struct DecodeShared<kType, kDim, kBuffers> {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  alignas(16) std::byte pages[Shape::kWarps][Shape::kWarpBytes];
  union {
    uint4 operands[Shape::kNibbles ? Shape::kSets * Shape::kSetProducts : 1][kWarpSize];
    alignas(16) __half queries[kTileQueries][Shape::kNibbles ? 8 : Shape::kQueryPitch];
  };
  // int4:
  uint32_t query_sums[4 * kTileQueries];  // of 4 groups, in two halves each: times minima
  float query_offsets[Shape::kGroups][kTileQueries];  // what biases of keys' codes add, negated
  float sums[Shape::kWarps][kTileQueries];
  float references[Shape::kWarps][kTileQueries];

  __device__ __forceinline__ float* out(int warp, int query) {
    return reinterpret_cast<float*>(pages[warp]) + query * Shape::kOutPitch;
  }
};

}  // namespace spillway::cuda
