// SPDX-License-Identifier: Apache-2.0
// One warp's 32 tokens of decode attention on tensor cores, from pages straight into registers.
//
// Scores: queries are the rows of A (8 of its 16), tokens the columns of B. Outputs: dims are the
// rows of A, tokens its columns, queries the columns of B. Any order of tokens and dims will do as
// long as both operands share it, so lanes (4 * g + t) own what lies together in memory: token 8 *
// t
// + 2 * i + e of the warp is column 2 * t + e of score tile i, and that is exactly where the second
// product wants its exponent. Nothing is shuffled or staged in shared memory, and all of the warp's
// bytes are on their way at once.
//
// Exponents are multiplied as tf32: the mantissa of F16 with the range of F32, which exp(score -
// phi) needs. F16 values and the codes of quantized ones are exact in it; scales are applied to the
// scores and to the exponents in F32.
#pragma once

#include "cuda/attention_merge.cuh"

namespace spillway::cuda {

constexpr int kWarpTokens = 32;
constexpr int kTiles = 4;  // of 8 tokens

template <KvType kType, int kDim>
struct DecodeShape {
  static constexpr bool kHalfKv = kType == KvType::kF16;
  static constexpr int kGroups = (kDim + 63) / 64;
  // 16 bytes of keys per lane and token; for int4, 8 bytes, so that a group's lanes are four.
  static constexpr int kKeyLoads = kHalfKv ? (kDim + 31) / 32 : kGroups;
  static constexpr int kQueryDims = kHalfKv ? kKeyLoads * 32 : kGroups * 64;
  // Rows of queries in shared memory, apart so that lanes hit different banks.
  static constexpr int kQueryPitch =
      kType == KvType::kInt8 ? kQueryDims + 8
                             : (kQueryDims / 32 % 2 == 0 ? kQueryDims + 32 : kQueryDims);
  static constexpr int kValueChunks = (kDim + 63) / 64;                     // F16
  static constexpr int kDimTiles = kHalfKv ? 4 * kValueChunks : kDim / 16;  // 16 dims each

  // The dim in row `g` or g + 8 of a tile.
  __device__ static constexpr int dim_of(int tile, int upper, int g) {
    if constexpr (kHalfKv) {
      const int i = tile + upper * kDimTiles;
      return (g + i / 8 * 8) * 8 + i % 8;
    } else if constexpr (kType == KvType::kInt8) {
      return 16 * tile + 2 * g + upper;
    } else {
      const int load = tile / 2;
      return load / 2 * 64 + tile % 2 * 32 + load % 2 * 16 + 2 * g + upper;
    }
  }
};

// What a block shares.
template <KvType kType, int kDim>
struct DecodeShared {
  using Shape = DecodeShape<kType, kDim>;
  __half queries[kTileQueries][Shape::kQueryPitch];
  float query_sums[Shape::kGroups][kTileQueries];  // int4: multiplied with minima
  float sums[kDecodeWarps][kTileQueries];
  float maxima[kDecodeWarps][kTileQueries];
  float offsets[kDecodeWarps][Shape::kGroups][kTileQueries];  // int4: sums of minima
  alignas(16) float out[1];                                   // [warps][queries][kDim]
};

template <KvType kType, int kDim>
constexpr int decode_shared_bytes(int queries) {
  const int out = kDecodeWarps * queries * kDim * 4;
  return static_cast<int>(sizeof(DecodeShared<kType, kDim>)) + out;
}

// Four unsigned bytes that stand for signed ones + 128, as two pairs of halves.
__device__ __forceinline__ uint32_t signed_bytes_to_half2(uint32_t biased, uint32_t selector) {
  const uint32_t x = __byte_perm(biased, 0x64646464U, selector);  // 1024 + byte
  const uint32_t offset = 0x64806480U;                            // 1152
  const __half2 y =
      __hsub2(*reinterpret_cast<const __half2*>(&x), *reinterpret_cast<const __half2*>(&offset));
  return *reinterpret_cast<const uint32_t*>(&y);
}
// The low nibbles of bytes 0 and 2.
__device__ __forceinline__ uint32_t nibbles_to_half2(uint32_t word) {
  const uint32_t x = (word & 0x000f000fU) | 0x64006400U;
  const uint32_t offset = 0x64006400U;
  const __half2 y =
      __hsub2(*reinterpret_cast<const __half2*>(&x), *reinterpret_cast<const __half2*>(&offset));
  return *reinterpret_cast<const uint32_t*>(&y);
}
__device__ __forceinline__ float signed_byte_to_float(uint32_t biased, int byte) {
  return __uint_as_float(__byte_perm(biased, 0x4b000000U, 0x7440U | byte)) - 8388736.0F;
}
__device__ __forceinline__ float nibble_to_float(uint32_t word, int shift) {
  return __uint_as_float(((word >> shift) & 15U) | 0x4b000000U) - 8388608.0F;
}
__device__ __forceinline__ float half_of(const Bytes16& x, int i) {
  const float2 pair = unpack_half2(x.r[i / 2]);
  return i % 2 == 0 ? pair.x : pair.y;
}

// Sums of exponents and weighted values of this warp's tokens go to shared memory. Returns whether
// a score was outside the range of the unified maximum.
template <KvType kType, int kDim, bool kUnified>
struct WarpPart {
  using Shape = DecodeShape<kType, kDim>;
  using Shared = DecodeShared<kType, kDim>;

  const DecodeArgs& a;
  const PartPlace& p;
  Shared& shared;
  int warp, g, t;
  int base;                 // position of the warp's first token
  const std::byte* k_page;  // of the token whose key this lane loads
  const std::byte* t_keys;  // pages of the tokens 8 t to 8 t + 7
  const std::byte* t_values;
  int key_token;    // of tile 0, in its page
  int value_token;  // 8 * (t % 2)

  __device__ __forceinline__ WarpPart(const DecodeArgs& args, const PartPlace& place, Shared& s)
      : a(args), p(place), shared(s) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    warp = static_cast<int>(threadIdx.x) / kWarpSize;
    g = lane / 4;
    t = lane % 4;
    base = (p.first_part + p.part) * kPartTokens + warp * kWarpTokens;
    // Blocks that the row does not see are read as if they were the first: loads without
    // conditions, and nothing of them is used.
    const auto find = [&](const std::byte* plane, int i) {
      const int first = base + i * kKvBlockTokens;
      const bool sees = first < p.end && first + kKvBlockTokens > p.begin;
      const int block = i == 0 ? p.blocks[0] : p.blocks[1];  // in registers: no index
      return plane + (sees ? block : 0) * a.block_bytes +
             static_cast<int64_t>(p.kv_head) * a.page_bytes;
    };
    k_page = find(a.k, g / 4);
    t_keys = find(a.k, t / 2);
    t_values = find(a.v, t / 2);
    key_token = g / 2 % 2 * 8 + g % 2;
    value_token = t % 2 * 8;
  }

  // Whether a warp has anything to do.
  __device__ __forceinline__ bool empty() const {
    return base >= p.end || base + kWarpTokens <= p.begin;
  }
  __device__ __forceinline__ bool sees(int i, int e) const {
    const int position = base + 8 * t + 2 * i + e;
    return position >= p.begin && position < p.end;
  }

  Bytes16 keys[kTiles][Shape::kKeyLoads];
  Bytes16 key_scales[Shape::kGroups], key_minima[Shape::kGroups];

  __device__ __forceinline__ void load_keys() {
    if (empty()) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::byte* row = k_page + a.shape.codes_at + (key_token + 2 * i) * row_bytes();
#pragma unroll
      for (int c = 0; c < Shape::kKeyLoads; ++c) {
        if constexpr (kType == KvType::kInt4) {
          const uint2 x = load_once8(row + c * 32 + t * 8);
          keys[i][c].r[0] = x.x;
          keys[i][c].r[1] = x.y;
        } else {
          // Behind the row's end queries are zero, and any key will do.
          constexpr int kChunks = row_bytes() / 16;
          const int chunk = kChunks % 4 == 0 ? t + 4 * c : min(t + 4 * c, kChunks - 1);
          keys[i][c] = load_once16(row + chunk * 16);
        }
      }
    }
    if constexpr (!Shape::kHalfKv) {
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) {
        const std::byte* at = t_keys + 2 * (c * kKvBlockTokens + value_token);
        key_scales[c] = load_once16(at);
        if constexpr (kType == KvType::kInt4) key_minima[c] = load_once16(at + a.shape.mins_at);
      }
      // Fewer bytes: values fit beside them.
#pragma unroll
      for (int i = 0; i < kTiles; ++i) load_values(i);
    }
  }
  __device__ static constexpr int row_bytes() {
    return kType == KvType::kF16 ? 2 * kDim : kType == KvType::kInt8 ? kDim : kDim / 2;
  }

  // Scores of tile i: [0], [1] are query g with tokens 8 t + 2 i and the next.
  __device__ __forceinline__ void score(int i, float (&s)[4]) const {
    const __half* query = shared.queries[g];
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = 0;
    if constexpr (kType == KvType::kF16) {
#pragma unroll
      for (int c = 0; c < Shape::kKeyLoads; ++c) {
        const uint4 q = *reinterpret_cast<const uint4*>(query + (t + 4 * c) * 8);
        const Bytes16& k = keys[i][c];
        mma_f16(s, q.x, 0, q.y, 0, k.r[0], k.r[1]);
        mma_f16(s, q.z, 0, q.w, 0, k.r[2], k.r[3]);
      }
    } else if constexpr (kType == KvType::kInt8) {
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) {
        float x[4] = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const uint4 q = *reinterpret_cast<const uint4*>(query + (t + 4 * c) * 16 + 4 * w);
          const uint32_t first = keys[i][c].r[w] ^ 0x80808080U;
          const uint32_t second = keys[i][c].r[w + 1] ^ 0x80808080U;
          mma_f16(x, q.x, 0, q.y, 0, signed_bytes_to_half2(first, 0x4140U),
                  signed_bytes_to_half2(first, 0x4342U));
          mma_f16(x, q.z, 0, q.w, 0, signed_bytes_to_half2(second, 0x4140U),
                  signed_bytes_to_half2(second, 0x4342U));
        }
        s[0] = fmaf(x[0], half_of(key_scales[c], 2 * i), s[0]);
        s[1] = fmaf(x[1], half_of(key_scales[c], 2 * i + 1), s[1]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) {
        float x[4] = {0, 0, 0, 0};
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          // Queries lie in fours as 0 2 1 3: how nibbles come out of a word.
          const uint4 q = *reinterpret_cast<const uint4*>(query + c * 64 + high * 32 + t * 8);
          const uint32_t first = keys[i][c].r[0] >> (4 * high);
          const uint32_t second = keys[i][c].r[1] >> (4 * high);
          mma_f16(x, q.x, 0, q.y, 0, nibbles_to_half2(first), nibbles_to_half2(first >> 8));
          mma_f16(x, q.z, 0, q.w, 0, nibbles_to_half2(second), nibbles_to_half2(second >> 8));
        }
        const float sum = shared.query_sums[c][g];
        s[0] += fmaf(x[0], half_of(key_scales[c], 2 * i), sum * half_of(key_minima[c], 2 * i));
        s[1] +=
            fmaf(x[1], half_of(key_scales[c], 2 * i + 1), sum * half_of(key_minima[c], 2 * i + 1));
      }
    }
  }

  // F16: [tile * 2 + token][chunk]. Quantized: the first kDimTiles (int8) or half of them (int4),
  // each two dims (bytes) of eight tokens.
  static constexpr int kValueLoads = Shape::kHalfKv           ? kTiles * 2 * Shape::kValueChunks
                                     : kType == KvType::kInt8 ? kDim / 16
                                                              : kDim / 32;
  Bytes16 values[kValueLoads];
  Bytes16 value_scales[Shape::kGroups], value_minima[Shape::kGroups];

  __device__ __forceinline__ void load_values(int i) {
    if constexpr (Shape::kHalfKv) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::byte* row = t_values + (value_token + 2 * i + e) * row_bytes();
#pragma unroll
        for (int n = 0; n < Shape::kValueChunks; ++n) {
          // Dims behind the row's end are not used.
          const int chunk = kDim % 64 == 0 ? g + 8 * n : min(g + 8 * n, kDim / 8 - 1);
          values[(2 * i + e) * Shape::kValueChunks + n] = load_once16(row + chunk * 16);
        }
      }
    } else {
      constexpr int kPerTile = (kValueLoads + kTiles - 1) / kTiles;
#pragma unroll
      for (int n = i * kPerTile; n < (i + 1) * kPerTile && n < kValueLoads; ++n)
        values[n] = load_once16(t_values + a.shape.codes_at + (g + 8 * n) * 32 + value_token * 2);
      if (i != 0) return;
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) {
        const std::byte* at = t_values + 2 * (c * kKvBlockTokens + value_token);
        value_scales[c] = load_once16(at);
        if constexpr (kType == KvType::kInt4) value_minima[c] = load_once16(at + a.shape.mins_at);
      }
    }
  }
  // What lies in a page behind the row's last token may be anything, NaN too.
  __device__ __forceinline__ void forget_unseen_values() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (sees(i, e)) continue;
        if constexpr (Shape::kHalfKv) {
#pragma unroll
          for (int n = 0; n < Shape::kValueChunks; ++n)
            values[(2 * i + e) * Shape::kValueChunks + n] = {{0, 0, 0, 0}};
        } else {
#pragma unroll
          for (int c = 0; c < Shape::kGroups; ++c) {
            value_scales[c].r[i] &= e == 0 ? 0xffff0000U : 0x0000ffffU;
            if constexpr (kType == KvType::kInt4)
              value_minima[c].r[i] &= e == 0 ? 0xffff0000U : 0x0000ffffU;
          }
        }
      }
    }
  }

  float out[Shape::kDimTiles][4];

  __device__ __forceinline__ void add_values(const float (&x)[kTiles][2],
                                             float (&offsets)[Shape::kGroups]) {
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[m][j] = 0;
    }
#pragma unroll
    for (int c = 0; c < Shape::kGroups; ++c) offsets[c] = 0;
    if constexpr (Shape::kHalfKv) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const Bytes16* first = values + 2 * i * Shape::kValueChunks;
        const Bytes16* second = first + Shape::kValueChunks;
#pragma unroll
        for (int m = 0; m < Shape::kDimTiles; m += 2) {
          const int u = m + Shape::kDimTiles;
          const float2 a0 = unpack_half2(first[m / 8].r[m % 8 / 2]);
          const float2 a1 = unpack_half2(first[u / 8].r[u % 8 / 2]);
          const float2 a2 = unpack_half2(second[m / 8].r[m % 8 / 2]);
          const float2 a3 = unpack_half2(second[u / 8].r[u % 8 / 2]);
          mma_tf32(out[m], a0.x, a1.x, a2.x, a3.x, x[i][0], x[i][1]);
          mma_tf32(out[m + 1], a0.y, a1.y, a2.y, a3.y, x[i][0], x[i][1]);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) {
        float scaled[kTiles][2];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            scaled[i][e] = round_tf32(x[i][e] * half_of(value_scales[c], 2 * i + e));
            if constexpr (kType == KvType::kInt4)
              offsets[c] = fmaf(x[i][e], half_of(value_minima[c], 2 * i + e), offsets[c]);
          }
        }
#pragma unroll
        for (int m = 4 * c; m < 4 * c + 4 && m < Shape::kDimTiles; ++m) {
          const Bytes16& codes = values[kType == KvType::kInt8 ? m : m / 2];
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            const uint32_t lower = codes.r[i / 2], upper = codes.r[2 + i / 2];
            const int byte = i % 2 * 2;
            if constexpr (kType == KvType::kInt8) {
              const uint32_t l = lower ^ 0x80808080U, u = upper ^ 0x80808080U;
              mma_tf32(out[m], signed_byte_to_float(l, byte), signed_byte_to_float(u, byte),
                       signed_byte_to_float(l, byte + 1), signed_byte_to_float(u, byte + 1),
                       scaled[i][0], scaled[i][1]);
            } else {
              const int shift = 8 * byte + m % 2 * 4;
              mma_tf32(out[m], nibble_to_float(lower, shift), nibble_to_float(upper, shift),
                       nibble_to_float(lower, shift + 8), nibble_to_float(upper, shift + 8),
                       scaled[i][0], scaled[i][1]);
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ static float sum_of_four_lanes(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
  }

  // With keys on their way and queries in shared memory.
  __device__ __forceinline__ bool finish() {
    bool outside = false;
    float sum = 0, maximum = kUnified ? a.phi : -INFINITY;
    float offsets[Shape::kGroups];
    if (empty()) {
#pragma unroll
      for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[m][j] = 0;
      }
#pragma unroll
      for (int c = 0; c < Shape::kGroups; ++c) offsets[c] = 0;
    } else {
      const bool whole = base >= p.begin && base + kWarpTokens <= p.end;
      float x[kTiles][2];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        float s[4];
        score(i, s);
        if constexpr (Shape::kHalfKv) load_values(i);
        x[i][0] = s[0] * a.scale_log2;
        x[i][1] = s[1] * a.scale_log2;
      }
      if constexpr (kUnified) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float y = x[i][e] - a.phi;
            const bool seen = whole || sees(i, e);
            outside |= seen && !(y > a.low && y < a.high) && g < p.queries;
            x[i][e] = seen ? exp2_fast(y) : 0;
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (!whole && !sees(i, e)) x[i][e] = -INFINITY;
            maximum = fmaxf(maximum, x[i][e]);
          }
        }
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
        const float offset = maximum == -INFINITY ? 0 : maximum;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) x[i][e] = exp2_fast(x[i][e] - offset);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if constexpr (Shape::kHalfKv) x[i][e] = round_tf32(x[i][e]);
          sum += x[i][e];
        }
      }
      if (!whole) forget_unseen_values();
      add_values(x, offsets);
      sum = sum_of_four_lanes(sum);
      if constexpr (kType == KvType::kInt4) {
#pragma unroll
        for (int c = 0; c < Shape::kGroups; ++c) offsets[c] = sum_of_four_lanes(offsets[c]);
      }
    }
    if (t == 0) {
      shared.sums[warp][g] = sum;
      shared.maxima[warp][g] = maximum;
      if constexpr (kType == KvType::kInt4) {
#pragma unroll
        for (int c = 0; c < Shape::kGroups; ++c) shared.offsets[warp][c][g] = offsets[c];
      }
    }
    float* to = shared.out + warp * p.queries * kDim;
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int query = 2 * t + j % 2, dim = Shape::dim_of(m, j / 2, g);
        if (query < p.queries && dim < kDim) to[query * kDim + dim] = out[m][j];
      }
    }
    return outside;
  }
};

}  // namespace spillway::cuda
