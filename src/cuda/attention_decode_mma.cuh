// SPDX-License-Identifier: Apache-2.0
// One warp's 32 tokens of decode attention on tensor cores.
//
// The warp's two pages of keys and two of values go to shared memory in the background, all at once
// where there is room, so that a block has its whole part on the way before it computes anything;
// with fewer buffers, the last come where the first were. Nobody else uses them: no barriers but
// the warp's own.
//
// Scores: queries are the rows of A (8 of its 16), tokens the columns of B. Outputs: dims are the
// rows of A, tokens its columns, queries the columns of B; that is how scores come out of the first
// product. A tile of ones in place of dims gives the sums of exponents.
//
// Any order of tokens will do as long as both products share it. F16: column n of score tile i is
// token 8 * i + n, as matrices are loaded. Quantized values lie with 8 tokens side by side, so lane
// (4 * g + t) takes tokens 8 * t to 8 * t + 7: column 2 * t + e of tile i is token 8 * t + 2 * i +
// e.
//
// Exponents are F16, relative to a reference that puts the largest of them near the upper end: what
// F16 then rounds to zero is 2^-39 of it (with a unified maximum, 2^-23 at least).
#pragma once

#include "cuda/attention_merge.cuh"
#include "cuda/code_halves.cuh"

namespace spillway::cuda {

constexpr int kWarpTokens = 32;
constexpr int kTiles = 4;              // of 8 tokens
constexpr float kTopExponent = 15.0F;  // 2^15 is the largest exponent of F16 that may be rounded up

// Pages of a warp that are in shared memory at a time, where blocks may have much of it (Hopper,
// data center Ampere) and where not.
constexpr int decode_buffers(KvType type, int dim, bool much) {
  if (type == KvType::kF16 && dim > 64) return much || dim < 128 ? 3 : dim > 128 ? 1 : 2;
  return type == KvType::kInt8 && dim > 128 && !much ? 2 : 4;
}

template <KvType kType, int kDim, int kBufferCount>
struct DecodeShape {
  static constexpr bool kHalfKv = kType == KvType::kF16;
  static constexpr KvPageLayout kLayout{kType, kDim};
  static constexpr int kGroups = (kDim + 63) / 64;
  static constexpr int kRowBytes = static_cast<int>(kLayout.row_bytes);
  static constexpr int kCodesAt = static_cast<int>(kLayout.codes_at);
  static constexpr int kMinsAt = static_cast<int>(kLayout.mins_at);
  static constexpr int kQueryDims = kHalfKv ? (kDim + 31) / 32 * 32 : kGroups * 64;
  // Rows of queries in shared memory, apart so that lanes hit different banks.
  static constexpr int kQueryPitch =
      kType != KvType::kInt4 ? kQueryDims + 8
                             : (kQueryDims / 32 % 2 == 0 ? kQueryDims + 32 : kQueryDims);
  static constexpr int kDimTiles = kDim / 16;

  // F16 rows are an odd number of 16-byte pieces apart: no bank twice when matrices are loaded.
  // Two quantized pages are half a round of banks apart.
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kPageBytes =
      kHalfKv ? kKvBlockTokens * kPitch : (static_cast<int>(kLayout.bytes) + 63) / 128 * 128 + 64;
  static constexpr int kBuffers = kBufferCount;
  // Outputs of the warp take the place of its pages: [queries][kOutPitch] floats.
  static constexpr int kOutPitch = kDim + 4;
  static constexpr int kWarpBytes = kBuffers * kPageBytes > 4 * kTileQueries* kOutPitch
                                        ? kBuffers* kPageBytes
                                        : 4 * kTileQueries* kOutPitch;

  // The dim in row `g` or g + 8 of a tile.
  __device__ static constexpr int dim_of(int tile, int upper, int g) {
    if constexpr (kHalfKv) {
      return 16 * tile + 8 * upper + g;
    } else if constexpr (kType == KvType::kInt8) {
      return 16 * tile + 2 * g + upper;
    } else {
      const int load = tile / 2;
      return load / 2 * 64 + tile % 2 * 32 + load % 2 * 16 + 2 * g + upper;
    }
  }
};

// What a block shares.
template <KvType kType, int kDim, int kBuffers>
struct DecodeShared {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  alignas(16) std::byte pages[kDecodeWarps][Shape::kWarpBytes];
  alignas(16) __half queries[kTileQueries][Shape::kQueryPitch];
  float rotated[kType == KvType::kInt4 ? kTileQueries : 1][kDim];  // int4: queries
  float query_sums[Shape::kGroups][kTileQueries];                  // int4: multiplied with minima
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

template <KvType kType, int kDim, int kBuffers, bool kUnified>
struct WarpPart {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  using Shared = DecodeShared<kType, kDim, kBuffers>;

  const DecodeArgs& a;
  const PartPlace& p;
  Shared& shared;
  int warp, lane, g, t;
  int base;  // position of the warp's first token
  bool empty, whole;

  __device__ __forceinline__ WarpPart(const DecodeArgs& args, const PartPlace& place, Shared& s)
      : a(args), p(place), shared(s) {
    lane = static_cast<int>(threadIdx.x) % kWarpSize;
    warp = static_cast<int>(threadIdx.x) / kWarpSize;
    g = lane / 4;
    t = lane % 4;
    base = (p.first_part + p.part) * kPartTokens + warp * kWarpTokens;
    empty = base >= p.end || base + kWarpTokens <= p.begin;
    whole = base >= p.begin && base + kWarpTokens <= p.end;
  }

  __device__ __forceinline__ bool sees(int i, int e) const {
    const int position = base + (Shape::kHalfKv ? 8 * i + 2 * t + e : 8 * t + 2 * i + e);
    return position >= p.begin && position < p.end;
  }

  // Keys 0, keys 1, values 0, values 1.
  __device__ __forceinline__ std::byte* page(int i) const {
    return shared.pages[warp] + i % kBuffers * Shape::kPageBytes;
  }

  template <bool kWhole>
  __device__ __forceinline__ void copy_page(int i) const {
    const int n = i % 2, first = base + n * kKvBlockTokens;
    const bool sees_any = kWhole || (first < p.end && first + kKvBlockTokens > p.begin);
    const int block = n == 0 ? p.blocks[0] : p.blocks[1];  // in registers: no index
    const std::byte* from = (i < 2 ? a.k : a.v) + (sees_any ? block : 0) * a.block_bytes +
                            static_cast<int64_t>(p.kv_head) * a.page_bytes;
    std::byte* to = page(i);
    if constexpr (Shape::kHalfKv) {
      constexpr int kChunks = Shape::kRowBytes / 16;
#pragma unroll
      for (int c = 0; c < kKvBlockTokens * kChunks / kWarpSize; ++c) {
        const int index = c * kWarpSize + lane;
        const int row = index / kChunks, chunk = index % kChunks;
        // What nobody has written may be anything, NaN too: zeros instead.
        const bool seen = kWhole || (first + row >= p.begin && first + row < p.end);
        copy_async16(to + row * Shape::kPitch + chunk * 16, from + index * 16, seen);
      }
    } else {
      constexpr int kChunks = static_cast<int>(Shape::kLayout.bytes) / 16;
      constexpr int kFirstCode = Shape::kCodesAt / 16, kRowChunks = Shape::kRowBytes / 16;
#pragma unroll
      for (int c = 0; c < (kChunks + kWarpSize - 1) / kWarpSize; ++c) {
        const int index = c * kWarpSize + lane;
        if (index >= kChunks) break;
        int place = index;
        if constexpr (kSwapsHalves) {
          const int code = index - kFirstCode;
          if (i < 2 && code >= 0) place = kFirstCode + (code ^ code / kRowChunks % 2 * 4);
        }
        copy_async16(to + place * 16, from + index * 16, true);
      }
    }
  }
  // Where rows of keys are whole rounds of banks, odd ones have neighbouring halves swapped.
  static constexpr bool kSwapsHalves = kType == KvType::kInt8 && Shape::kRowBytes % 128 == 0;

  template <bool kWhole>
  __device__ __forceinline__ void start_copies() const {
#pragma unroll
    for (int i = 0; i < kBuffers; ++i) {
      copy_page<kWhole>(i);
      commit_copies();
    }
  }
  // Sends for everything that there is room for.
  __device__ __forceinline__ void start() const {
    if (empty) return;
    if (whole) {
      start_copies<true>();
    } else {
      start_copies<false>();
    }
  }
  // Until page kPage is there.
  template <int kPage>
  __device__ __forceinline__ void wait_page() const {
    constexpr int kSent = kBuffers + kPage < 4 ? kBuffers + kPage : 4;
    wait_copies<kSent - kPage - 1>();
    __syncwarp();
  }
  // Page kPage has been read: what takes its place, if anything does.
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

  // Scores of tile i: [0], [1] are query g with columns 2 t and 2 t + 1.
  float score[kTiles][4];

  template <int kPage>
  __device__ __forceinline__ void score_half() {
    const std::byte* keys =
        page(kPage) + (lane / 16 * 8 + lane % 8) * Shape::kPitch + lane / 8 % 2 * 16;
    const __half* queries = &shared.queries[lane % 8][lane / 8 * 8];
#pragma unroll
    for (int d = 0; d < kDim; d += 32) {
      uint32_t q[4];
      load_matrices(q, queries + d);
#pragma unroll
      for (int half = 0; half < 2 && d + 16 * half < kDim; ++half) {
        uint32_t k[4];
        load_matrices(k, keys + 2 * (d + 16 * half));
        mma_f16(score[2 * kPage], q[2 * half], 0, q[2 * half + 1], 0, k[0], k[1]);
        mma_f16(score[2 * kPage + 1], q[2 * half], 0, q[2 * half + 1], 0, k[2], k[3]);
      }
    }
  }

  __device__ __forceinline__ Bytes16 shared16(const std::byte* at) const {
    const uint4 x = *reinterpret_cast<const uint4*>(at);
    return {{x.x, x.y, x.z, x.w}};
  }

  __device__ __forceinline__ void score_codes() {
    const __half* query = shared.queries[g];
    const std::byte* rows = page(g / 4) + Shape::kCodesAt;
    const std::byte* scales_at = page(t / 2) + t % 2 * 16;
#pragma unroll
    for (int c = 0; c < Shape::kGroups; ++c) {
      const Bytes16 scales = shared16(scales_at + c * 2 * kKvBlockTokens);
      if constexpr (kType == KvType::kInt8) {
        uint4 q[2];
        // Behind the row's end queries are zero, and any key will do.
        constexpr int kChunks = Shape::kRowBytes / 16;
        const int chunk = kChunks % 4 == 0 ? t + 4 * c : min(t + 4 * c, kChunks - 1);
#pragma unroll
        for (int w = 0; w < 2; ++w)
          q[w] = *reinterpret_cast<const uint4*>(query + (t + 4 * c) * 16 + 8 * w);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const int row = g / 2 % 2 * 8 + 2 * i + g % 2;
          const int place = kSwapsHalves ? chunk ^ g % 2 * 4 : chunk;
          const Bytes16 k = shared16(rows + row * Shape::kRowBytes + place * 16);
          float x[4] = {0, 0, 0, 0};
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const uint32_t first = k.r[2 * w] ^ 0x80808080U, second = k.r[2 * w + 1] ^ 0x80808080U;
            mma_f16(x, q[w].x, 0, q[w].y, 0, bits_of(signed_bytes_to_half2(first, 0x4140U)),
                    bits_of(signed_bytes_to_half2(first, 0x4342U)));
            mma_f16(x, q[w].z, 0, q[w].w, 0, bits_of(signed_bytes_to_half2(second, 0x4140U)),
                    bits_of(signed_bytes_to_half2(second, 0x4342U)));
          }
          score[i][0] = fmaf(x[0], half_of(scales, 2 * i), score[i][0]);
          score[i][1] = fmaf(x[1], half_of(scales, 2 * i + 1), score[i][1]);
        }
      } else {
        const Bytes16 minima = shared16(scales_at + Shape::kMinsAt + c * 2 * kKvBlockTokens);
        const float sum = shared.query_sums[c][g];
        uint4 q[2];
        // Queries lie in fours as 0 2 1 3: how nibbles come out of a word.
#pragma unroll
        for (int high = 0; high < 2; ++high)
          q[high] = *reinterpret_cast<const uint4*>(query + c * 64 + high * 32 + t * 8);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const int row = g / 2 % 2 * 8 + 2 * i + g % 2;
          const uint2 k =
              *reinterpret_cast<const uint2*>(rows + row * Shape::kRowBytes + c * 32 + t * 8);
          float x[4] = {0, 0, 0, 0};
#pragma unroll
          for (int high = 0; high < 2; ++high) {
            const uint32_t first = k.x >> (4 * high), second = k.y >> (4 * high);
            mma_f16(x, q[high].x, 0, q[high].y, 0, bits_of(nibbles_to_half2(first)),
                    bits_of(nibbles_to_half2(first >> 8)));
            mma_f16(x, q[high].z, 0, q[high].w, 0, bits_of(nibbles_to_half2(second)),
                    bits_of(nibbles_to_half2(second >> 8)));
          }
          score[i][0] += fmaf(x[0], half_of(scales, 2 * i), sum * half_of(minima, 2 * i));
          score[i][1] += fmaf(x[1], half_of(scales, 2 * i + 1), sum * half_of(minima, 2 * i + 1));
        }
      }
    }
  }

  float out[Shape::kDimTiles][4];
  float sums[4];               // of queries 2 t and 2 t + 1, twice
  uint32_t exponents[kTiles];  // of query g, columns 2 t and 2 t + 1

  template <int kPage>
  __device__ __forceinline__ void add_half_values() {
    const uint32_t b0 = exponents[2 * kPage], b1 = exponents[2 * kPage + 1];
    const std::byte* values =
        page(2 + kPage) + (lane / 16 * 8 + lane % 8) * Shape::kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
      uint32_t v[4];
      load_matrices_transposed(v, values + 32 * m);
      mma_f16(out[m], v[0], v[1], v[2], v[3], b0, b1);
    }
  }

  __device__ __forceinline__ void add_values_of_codes() {
    const std::byte* scales_at = page(2 + t / 2) + t % 2 * 16;
    const std::byte* codes_at = page(2 + t / 2) + Shape::kCodesAt + t % 2 * 16 + g * 32;
#pragma unroll
    for (int c = 0; c < Shape::kGroups; ++c) {
      Bytes16 scales = shared16(scales_at + c * 2 * kKvBlockTokens), minima = {};
      if constexpr (kType == KvType::kInt4)
        minima = shared16(scales_at + Shape::kMinsAt + c * 2 * kKvBlockTokens);
      if (!whole) {
        // What lies in a page behind the row's last token may be anything, NaN too.
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint32_t seen = (sees(i, 0) ? 0x0000ffffU : 0) | (sees(i, 1) ? 0xffff0000U : 0);
          scales.r[i] &= seen;
          minima.r[i] &= seen;
        }
      }
      if constexpr (kType == KvType::kInt8) {
#pragma unroll
        for (int m = 4 * c; m < 4 * c + 4 && m < Shape::kDimTiles; ++m) {
          const Bytes16 codes = shared16(codes_at + m * 256);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t lower = codes.r[j] ^ 0x80808080U, upper = codes.r[2 + j] ^ 0x80808080U;
            const __half2 first = as_half2(scales.r[2 * j]), second = as_half2(scales.r[2 * j + 1]);
            mma_f16(out[m], bits_of(__hmul2(signed_bytes_to_half2(lower, 0x4140U), first)),
                    bits_of(__hmul2(signed_bytes_to_half2(upper, 0x4140U), first)),
                    bits_of(__hmul2(signed_bytes_to_half2(lower, 0x4342U), second)),
                    bits_of(__hmul2(signed_bytes_to_half2(upper, 0x4342U), second)),
                    exponents[2 * j], exponents[2 * j + 1]);
          }
        }
      } else {
#pragma unroll
        for (int n = 2 * c; n < 2 * c + 2; ++n) {
          const Bytes16 codes = shared16(codes_at + n * 256);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const __half2 first = as_half2(scales.r[2 * j]), second = as_half2(scales.r[2 * j + 1]);
            const __half2 min0 = as_half2(minima.r[2 * j]), min1 = as_half2(minima.r[2 * j + 1]);
#pragma unroll
            for (int high = 0; high < 2; ++high) {
              const uint32_t lower = codes.r[j] >> (4 * high) & 0x0f0f0f0fU;
              const uint32_t upper = codes.r[2 + j] >> (4 * high) & 0x0f0f0f0fU;
              mma_f16(out[2 * n + high],
                      bits_of(__hfma2(small_bytes_to_half2(lower, 0x4140U), first, min0)),
                      bits_of(__hfma2(small_bytes_to_half2(upper, 0x4140U), first, min0)),
                      bits_of(__hfma2(small_bytes_to_half2(lower, 0x4342U), second, min1)),
                      bits_of(__hfma2(small_bytes_to_half2(upper, 0x4342U), second, min1)),
                      exponents[2 * j], exponents[2 * j + 1]);
            }
          }
        }
      }
    }
  }

  // Whether, for all queries, the largest of these scores is in the range of the unified maximum.
  __device__ __forceinline__ bool in_range(float largest) const {
    const unsigned rows = p.queries == kTileQueries ? kAllLanes : (1U << (4 * p.queries)) - 1;
    const unsigned above = __ballot_sync(kAllLanes, !(largest < a.high));
    unsigned reach = __ballot_sync(kAllLanes, largest > a.low);
    reach |= reach >> 1;
    reach |= reach >> 2;
    return ((above | (~reach & 0x11111111U)) & rows) == 0;
  }

  // Leaves exponents, and what they are relative to in shared memory. Returns whether that is not
  // the unified maximum.
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
    float reference = a.reference;
    bool own = true;
    if constexpr (kUnified) own = !in_range(largest);
    if (own) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      reference = largest - kTopExponent;
    }
    const float offset = reference == -INFINITY ? 0 : reference;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      exponents[i] = pack_half2(exp2_fast(score[i][0] - offset), exp2_fast(score[i][1] - offset));
    if (t == 0) shared.references[warp][g] = reference;
    return own;
  }

  // With copies on their way and queries in shared memory: sums of exponents and weighted values go
  // to shared memory. Returns whether they are relative to a maximum of the warp's own.
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
      if constexpr (Shape::kHalfKv) {
        wait_page<0>();
        score_half<0>();
        replace_page<0>();
        wait_page<1>();
        score_half<1>();
        replace_page<1>();
      } else {
        wait_copies<kBuffers - 2>();
        __syncwarp();
        score_codes();
        replace_page<0>();
        replace_page<1>();
      }
      own = exponentiate();
      constexpr uint32_t kOnes = 0x3c003c00U;
      mma_f16(sums, kOnes, kOnes, kOnes, kOnes, exponents[0], exponents[1]);
      mma_f16(sums, kOnes, kOnes, kOnes, kOnes, exponents[2], exponents[3]);
      if constexpr (Shape::kHalfKv) {
        wait_page<2>();
        add_half_values<0>();
        replace_page<2>();
        wait_page<3>();
        add_half_values<1>();
      } else {
        wait_page<3>();
        add_values_of_codes();
      }
      __syncwarp();  // outputs take the place of pages
    }
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
        if constexpr (Shape::kHalfKv) {
          to[Shape::dim_of(m, 0, g)] = out[m][e];
          to[Shape::dim_of(m, 1, g)] = out[m][2 + e];
        } else {
          *reinterpret_cast<float2*>(to + Shape::dim_of(m, 0, g)) =
              make_float2(out[m][e], out[m][2 + e]);
        }
      }
    }
    return own;
  }
};

}  // namespace spillway::cuda
