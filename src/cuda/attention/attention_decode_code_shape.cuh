// SPDX-License-Identifier: Apache-2.0
// Decode attention over int8 and int4 KV (attention_decode_codes.cuh): which tokens a warp takes,
// and where they lie in shared memory.
#pragma once

#include "cuda/attention/attention_decode_mma.cuh"
#include "cuda/attention/attention_long_place.cuh"

namespace spillway::cuda {

// An int4 warp takes more tokens at a time: the work that it does once for all of them takes as
// long as the codes of 32 tokens.
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
  static constexpr int kPages = 2 * kSteps;  // pages of keys, and as many of values
  // True if shared memory holds all pages at a time; otherwise values replace keys.
  static constexpr bool kLoadsBoth = kBufferCount == 4;
  static_assert(kLoadsBoth || kBufferCount == 2);

  // Neighbouring pages are offset by half of the banks.
  static constexpr int kPageBytes = (static_cast<int>(kLayout.bytes) + 63) / 128 * 128 + 64;
  static constexpr int kPagesBytes = (kLoadsBoth ? 2 : 1) * kPages * kPageBytes;
  // Outputs of the warp reuse the memory of its pages: [queries][kOutPitch] floats.
  static constexpr int kOutPitch = kDim + 4;
  static constexpr int kOutBytes = 4 * kTileQueries * kOutPitch;
  static constexpr int kWarpBytes = kPagesBytes > kOutBytes ? kPagesBytes : kOutBytes;

  // int8: rows of queries are padded so that lanes hit different banks.
  static constexpr int kQueryPitch = kGroups * 64 + 8;
  // int4: the operands that lanes pass to products, in their order. A set is one group or two.
  static constexpr int kSetGroups = kGroups > 1 ? 2 : 1;
  static constexpr int kSets = kGroups / kSetGroups;
  static constexpr int kPieceWords = 2 * kSetGroups;  // words of a key that a lane takes of a set
  static constexpr int kSetProducts = 2 * kPieceWords;

  // The constants that are added to a code in the low and in the high half of an int4 byte when it
  // becomes a half.
  static constexpr float kBias = kNibbles ? 1024 : 1152;
  static constexpr float kHighBias = kNibbles ? 64 : kBias;
  // Products of exponentials and scales are rounded to halves. The rounding must not add up in a
  // sum over dims, such as rotating back is. So the rounded products multiply codes minus this
  // constant, and the constant is multiplied with the products as they were before rounding.
  static constexpr float kMiddle = kNibbles ? 7.5F : 0;

  // Returns which of a lane's 8 tokens is in column e of its two columns in score tile i.
  __device__ static constexpr int pair_token(int i, int e) {
    return kNibbles ? i / 2 * 4 + i % 2 + 2 * e : 2 * i + e;
  }
  // Returns the dim in row `g` (upper = 0) or g + 8 (upper = 1) of a tile of values.
  __device__ static constexpr int dim_of(int tile, int upper, int g) {
    if constexpr (!kNibbles) {
      return 16 * tile + 2 * g + upper;
    } else {
      const int load = tile / 2;
      return load / 2 * 64 + tile % 2 * 32 + load % 2 * 16 + 2 * g + upper;
    }
  }
  // Returns the place of a 16-byte chunk of a page of keys.
  __device__ static constexpr int key_place(int piece) {
    constexpr int kFirst = kCodesAt / 16, kRow = kRowBytes / 16;
    if (piece < kFirst) return piece;
    const int row = (piece - kFirst) / kRow, rest = (piece - kFirst) % kRow;
    const int slot = kNibbles ? (row & ~3) | (row & 1) << 1 | (row >> 1 & 1) : row;
    return kFirst + slot * kRow + (kSwapsHalves ? rest ^ (slot & 1) * 4 : rest);
  }
  // If rows of keys take whole rounds of banks, odd rows have neighbouring halves swapped.
  static constexpr bool kSwapsHalves = kRowBytes % 128 == 0;
  // The places of chunks that are 32 apart are 32 apart, too, which spares computing them.
  static_assert(kCodesAt <= 32 * 16 && (!kNibbles || 32 * 16 / kRowBytes % 4 == 0) &&
                (!kSwapsHalves || 32 * 16 / kRowBytes % 2 == 0));
};

// The shared memory of a thread block.
template <KvType kType, int kDim, int kBuffers>
requires(is_quantized(kType)) struct DecodeShared<kType, kDim, kBuffers> {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  alignas(16) std::byte pages[Shape::kWarps][Shape::kWarpBytes];
  union {
    uint4 operands[Shape::kNibbles ? Shape::kSets * Shape::kSetProducts : 1][kWarpSize];
    alignas(16) __half queries[kTileQueries][Shape::kNibbles ? 8 : Shape::kQueryPitch];
  };
  // The next two fields are for int4 only.
  uint32_t query_sums[4 * kTileQueries];  // of 4 groups, as two halves each; factors of minima
  float query_offsets[Shape::kGroups][kTileQueries];  // -(what codes' biases add)
  float sums[Shape::kWarps][kTileQueries];
  float references[Shape::kWarps][kTileQueries];

  __device__ __forceinline__ float* out(int warp, int query) {
    return reinterpret_cast<float*>(pages[warp]) + query * Shape::kOutPitch;
  }
};

}  // namespace spillway::cuda
