// SPDX-License-Identifier: Apache-2.0
// Computes one warp's 32 tokens of decode attention over F16 or BF16 KV on tensor cores. Long
// partitions are in attention_decode_turns.cuh, int8 and int4 KV in attention_decode_codes.cuh.
//
// The warp's two pages of keys and two of values are copied to shared memory asynchronously, all
// together where there is room, so that a thread block has its whole partition in flight before it
// computes anything; with fewer buffers, the last pages replace the first. No other warp uses them,
// so the only barriers are the warp's own.
//
// Scores: queries are the rows of A (8 of its 16), tokens the columns of B. Outputs: dims are the
// rows of A, tokens its columns, queries the columns of B, which is the order in which the first
// product leaves scores. A tile of ones in place of dims gives the sums of exponentials.
//
// Exponentials have the type of the KV. Those of F16 are relative to a reference that puts the
// largest of them near the upper end of the range: a value that is rounded to zero is then 2^-39 of
// the largest (with a unified maximum, 2^-23 at worst).
#pragma once

#include "cuda/attention/attention_elements.cuh"
#include "cuda/attention/attention_merge.cuh"

namespace spillway::cuda {

constexpr int kWarpTokens = 32;
constexpr int kTiles = 4;              // of 8 tokens
constexpr float kTopExponent = 15.0F;  // F16 exponentials are at most 2^15, also rounded up

// Returns how many of a warp's pages are in shared memory at a time. `much`: thread blocks may have
// much of it (Hopper, data center Ampere).
constexpr int decode_buffers(KvType type, int dim, bool much) {
  if (is_half(type) && dim > 64) return much || dim < 128 ? 3 : dim > 128 ? 1 : 2;
  return type == KvType::kInt8 && dim > 128 && !much ? 2 : 4;
}

template <KvType kType, int kDim, int kBufferCount>
struct DecodeShape;

template <KvType kType, int kDim, int kBufferCount>
requires(is_half(kType)) struct DecodeShape<kType, kDim, kBufferCount> {
  static constexpr int kWarps = kDecodeWarps;
  static constexpr int kWarpTokens = 32;
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kQueryDims = (kDim + 31) / 32 * 32;
  // Rows of queries in shared memory are padded so that lanes hit different banks.
  static constexpr int kQueryPitch = kQueryDims + 8;
  static constexpr int kDimTiles = kDim / 16;

  // Rows are an odd number of 16-byte chunks apart, so loading matrices hits no bank twice.
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kPageBytes = kKvBlockTokens * kPitch;
  static constexpr int kBuffers = kBufferCount;
  // Outputs of the warp reuse the memory of its pages: [queries][kOutPitch] floats.
  static constexpr int kOutPitch = kDim + 4;
  static constexpr int kWarpBytes = kBuffers * kPageBytes > 4 * kTileQueries* kOutPitch
                                        ? kBuffers* kPageBytes
                                        : 4 * kTileQueries* kOutPitch;
};

// The shared memory of a thread block.
template <KvType kType, int kDim, int kBuffers>
struct DecodeShared;

template <KvType kType, int kDim, int kBuffers>
requires(is_half(kType)) struct DecodeShared<kType, kDim, kBuffers> {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  alignas(16) std::byte pages[kDecodeWarps][Shape::kWarpBytes];
  alignas(16) __half queries[kTileQueries][Shape::kQueryPitch];  // bits of MmaElements' type
  float sums[kDecodeWarps][kTileQueries];
  float references[kDecodeWarps][kTileQueries];

  __device__ __forceinline__ float* out(int warp, int query) {
    return reinterpret_cast<float*>(pages[warp]) + query * Shape::kOutPitch;
  }
};

__device__ __forceinline__ float half_of(const Bytes16& x, int i) {
  const float2 pair = unpack_half2(x.r[i / 2]);
  return i % 2 == 0 ? pair.x : pair.y;
}

// Returns whether, for all queries, the largest of a warp's scores is in the range of the unified
// maximum. `largest` is the largest of the scores that this lane has, which are of query lane / 4.
__device__ __forceinline__ bool in_unified_range(const DecodeArgs& a, const PartPlace& p,
                                                 float largest) {
  const unsigned rows = p.queries == kTileQueries ? kAllLanes : (1U << (4 * p.queries)) - 1;
  const unsigned above = __ballot_sync(kAllLanes, !(largest < a.high));
  unsigned reach = __ballot_sync(kAllLanes, largest > a.low);
  reach |= reach >> 1;
  reach |= reach >> 2;
  return ((above | (~reach & 0x11111111U)) & rows) == 0;
}

// Sets what exponentials of query lane / 4 are relative to: the unified maximum or, where scores
// leave its range, the warp's own largest score. Returns whether it is the latter.
template <bool kUnified>
__device__ __forceinline__ bool choose_reference(const DecodeArgs& a, const PartPlace& p,
                                                 float largest, float& reference) {
  reference = a.reference;
  if (kUnified && in_unified_range(a, p, largest)) return false;
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  reference = largest - kTopExponent;
  return true;
}

// kLong: for partitions that may be long; those of F16 and BF16 are in attention_decode_turns.cuh.
template <KvType kType, int kDim, int kBuffers, bool kUnified, bool kLong>
struct WarpPart;

template <KvType kType, int kDim, int kBuffers, bool kUnified>
requires(is_half(kType)) struct WarpPart<kType, kDim, kBuffers, kUnified, false> {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  using Shared = DecodeShared<kType, kDim, kBuffers>;
  using Elements = MmaElements<kType>;
  using Place = PartPlace;
  __device__ __forceinline__ static bool find(const DecodeArgs& a, Place& p) {
    return find_place(a, p);
  }

  const DecodeArgs& a;
  const PartPlace& p;
  Shared& shared;
  int warp, lane, g, t;
  int base;  // position of the warp's first token
  bool empty, whole;
  const std::byte* k_plane;
  const std::byte* v_plane;

  __device__ __forceinline__ WarpPart(const DecodeArgs& args, const PartPlace& place, Shared& s)
      : a(args), p(place), shared(s), k_plane(args.kv.k()), v_plane(args.kv.v()) {
    lane = static_cast<int>(threadIdx.x) % kWarpSize;
    warp = static_cast<int>(threadIdx.x) / kWarpSize;
    g = lane / 4;
    t = lane % 4;
    base = (p.first_part + p.part) * kPartTokens + warp * kWarpTokens;
    empty = base >= p.end || base + kWarpTokens <= p.begin;
    whole = base >= p.begin && base + kWarpTokens <= p.end;
  }

  __device__ __forceinline__ bool sees(int i, int e) const {
    const int position = base + 8 * i + 2 * t + e;
    return position >= p.begin && position < p.end;
  }

  // Returns the place of page i: keys 0, keys 1, values 0, values 1.
  __device__ __forceinline__ std::byte* page(int i) const {
    return shared.pages[warp] + i % kBuffers * Shape::kPageBytes;
  }

  template <bool kWhole>
  __device__ __forceinline__ void copy_page(int i) const {
    const int n = i % 2, first = base + n * kKvBlockTokens;
    const bool sees_any = kWhole || (first < p.end && first + kKvBlockTokens > p.begin);
    const int block = n == 0 ? p.blocks[0] : p.blocks[1];  // no index: in registers
    const std::byte* from = (i < 2 ? k_plane : v_plane) + (sees_any ? block : 0) * a.block_bytes +
                            static_cast<int64_t>(p.kv_head) * a.page_bytes;
    std::byte* to = page(i);
    constexpr int kChunks = Shape::kRowBytes / 16;
#pragma unroll
    for (int c = 0; c < kKvBlockTokens * kChunks / kWarpSize; ++c) {
      const int index = c * kWarpSize + lane;
      const int row = index / kChunks, chunk = index % kChunks;
      // Memory that no token has written may hold anything, NaN too: it is replaced by zeros.
      const bool seen = kWhole || (first + row >= p.begin && first + row < p.end);
      copy_async16<true>(to + row * Shape::kPitch + chunk * 16, from + index * 16, seen);
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_copies() const {
#pragma unroll
    for (int i = 0; i < kBuffers; ++i) {
      copy_page<kWhole>(i);
      commit_copies();
    }
  }
  // Issues all copies that there is room for.
  __device__ __forceinline__ void start() const {
    if (empty) return;
    if (whole) {
      start_copies<true>();
    } else {
      start_copies<false>();
    }
  }
  // Waits until page kPage has arrived.
  template <int kPage>
  __device__ __forceinline__ void wait_page() const {
    constexpr int kSent = kBuffers + kPage < 4 ? kBuffers + kPage : 4;
    wait_copies<kSent - kPage - 1>();
    __syncwarp();
  }
  // Called when page kPage has been read: issues the copy that takes its place, if any does.
  template <int kPage>
  __device__ __forceinline__ void replace_page() const {
    if constexpr (kPage + kBuffers < 4) {
      __syncwarp();
      if (whole) {
        copy_page<true>(kPage + kBuffers);
      } else {
        copy_page<false>(kPage + kBuffers);
      }
      commit_copies();
    }
  }

  // The scores of tile i: [0], [1] are query g with columns 2 t and 2 t + 1.
  float score[kTiles][4];

  template <int kPage>
  __device__ __forceinline__ void score_half(const std::byte* page) {
    const std::byte* keys = page + (lane / 16 * 8 + lane % 8) * Shape::kPitch + lane / 8 % 2 * 16;
    const __half* queries = &shared.queries[lane % 8][lane / 8 * 8];
#pragma unroll
    for (int d = 0; d < kDim; d += 32) {
      uint32_t q[4];
      load_matrices(q, queries + d);
#pragma unroll
      for (int half = 0; half < 2 && d + 16 * half < kDim; ++half) {
        uint32_t k[4];
        load_matrices(k, keys + 2 * (d + 16 * half));
        Elements::mma(score[2 * kPage], q[2 * half], 0, q[2 * half + 1], 0, k[0], k[1]);
        Elements::mma(score[2 * kPage + 1], q[2 * half], 0, q[2 * half + 1], 0, k[2], k[3]);
      }
    }
  }

  float out[Shape::kDimTiles][4];
  float sums[4];               // for queries 2 t and 2 t + 1, twice
  uint32_t exponents[kTiles];  // of query g, columns 2 t and 2 t + 1

  template <int kPage>
  __device__ __forceinline__ void add_half_values(const std::byte* page) {
    const uint32_t b0 = exponents[2 * kPage], b1 = exponents[2 * kPage + 1];
    const std::byte* values = page + (lane / 16 * 8 + lane % 8) * Shape::kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
      uint32_t v[4];
      load_matrices_transposed(v, values + 32 * m);
      Elements::mma(out[m], v[0], v[1], v[2], v[3], b0, b1);
    }
  }

  // Turns scores into exponentials, and stores what they are relative to in shared memory. Returns
  // whether that is not the unified maximum.
  __device__ __forceinline__ bool exponentiate() {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = score[i][e];
        x *= a.scale_log2;
        if (!whole && !sees(i, e)) x = -INFINITY;
        largest = fmaxf(largest, x);
      }
    }
    float reference;
    const bool own = choose_reference<kUnified>(a, p, largest, reference);
    const float offset = reference == -INFINITY ? 0 : reference;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      exponents[i] =
          Elements::pack(exp2_fast(score[i][0] - offset), exp2_fast(score[i][1] - offset));
    if (t == 0) shared.references[warp][g] = reference;
    return own;
  }

  // Called with copies in flight and queries in shared memory. Stores sums of exponentials and
  // weighted values in shared memory. Returns whether they are relative to a maximum of the warp's
  // own.
  __device__ __forceinline__ bool finish() {
    bool own = false;
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[m][j] = 0;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = 0;
    if (empty) {
      if (t == 0) shared.references[warp][g] = -INFINITY;
    } else {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) score[i][j] = 0;
      }
      wait_page<0>();
      score_half<0>(page(0));
      replace_page<0>();
      wait_page<1>();
      score_half<1>(page(1));
      replace_page<1>();
      own = exponentiate();
      constexpr uint32_t kOnes = Elements::kOnes;
      Elements::mma(sums, kOnes, kOnes, kOnes, kOnes, exponents[0], exponents[1]);
      Elements::mma(sums, kOnes, kOnes, kOnes, kOnes, exponents[2], exponents[3]);
      wait_page<2>();
      add_half_values<0>(page(2));
      replace_page<2>();
      wait_page<3>();
      add_half_values<1>(page(3));
      __syncwarp();  // outputs reuse the memory of the pages
    }
    store_sums();
    return own;
  }
  __device__ __forceinline__ void store_sums() {
    if (g == 0) {
      shared.sums[warp][2 * t] = sums[0];
      shared.sums[warp][2 * t + 1] = sums[1];
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = 2 * t + e;
      if (query >= p.queries) continue;
      float* to = shared.out(warp, query);
#pragma unroll
      for (int m = 0; m < Shape::kDimTiles; ++m) {
        to[16 * m + g] = out[m][e];
        to[16 * m + 8 + g] = out[m][2 + e];
      }
    }
  }
};

}  // namespace spillway::cuda
