// SPDX-License-Identifier: Apache-2.0
// Tiles of quantized keys and values for prefill: pages are copied to shared memory asynchronously
// as they are, and converted to halves there.
#pragma once

#include "cuda/attention/attention_prefill_tile.cuh"
#include "cuda/attention/code_halves.cuh"

namespace spillway::cuda {

template <KvType kType, int kDim, int kThreads>
struct TileOfCodes {
  static constexpr KvPageLayout kLayout{kType, kDim};
  static constexpr int kPageBytes = static_cast<int>(kLayout.bytes);
  static constexpr int kCodesAt = static_cast<int>(kLayout.codes_at);
  static constexpr int kMinsAt = static_cast<int>(kLayout.mins_at);
  static constexpr int kRowBytes = static_cast<int>(kLayout.row_bytes);
  static constexpr int kKeyPitch = kDim + 8;
  static constexpr int kValuePitch = kTileTokens + 8;
  // True if rows are whole 16-byte chunks, and for int4 whole groups of 64; others are converted
  // element by element.
  static constexpr bool kVectors = kType == KvType::kInt8 || kDim % 64 == 0;

  struct alignas(16) Pages {
    std::byte keys[kTileBlocks][kPageBytes];
    std::byte values[kTileBlocks][kPageBytes];
  };

  __device__ __forceinline__ static bool by_vectors(const PrefillArgs& a) {
    return kVectors && a.shape.head_dim == kDim;
  }

  __device__ __forceinline__ static void copy(const PrefillArgs& a, int64_t head_at,
                                              const int32_t* blocks, Pages& pages) {
    const int chunks = a.page_bytes / 16;  // at most kPageBytes / 16
#pragma unroll
    for (int b = 0; b < kTileBlocks; ++b) {
      const int64_t at = blocks[b] * a.block_bytes + head_at;
      for (int i = static_cast<int>(threadIdx.x); i < 2 * chunks; i += kThreads) {
        const bool is_value = i >= chunks;
        const int offset = (is_value ? i - chunks : i) * 16;
        copy_async16((is_value ? pages.values[b] : pages.keys[b]) + offset,
                     (is_value ? a.kv.given.v : a.kv.given.k) + at + offset, true);
      }
    }
  }

  // Converts to keys [kTileTokens][kKeyPitch] and values [kDim][kValuePitch]. Values that the
  // tile's rows do not attend to become zeros: they may be anything, NaN too.
  __device__ __forceinline__ static void convert(const PrefillArgs& a, const PrefillPlace& p,
                                                 int first, const Pages& pages,
                                                 __half (*keys)[kKeyPitch],
                                                 __half (*values)[kValuePitch]) {
    if (by_vectors(a)) {
      convert_keys(pages, keys);
      convert_values(p, first, pages, values);
      return;
    }
    const int dim = a.shape.head_dim;
    for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kDim; i += kThreads) {
      const int row = i / kDim, d = i % kDim;
      const int position = first + row;
      float k = 0, v = 0;
      if (d < dim && position >= p.begin && position < p.end) {
        const int page = row / kKvBlockTokens, token = row % kKvBlockTokens;
        k = load_kv<kType, KvPart::kKeys>(a.shape, pages.keys[page], token, d);
        v = load_kv<kType, KvPart::kValues>(a.shape, pages.values[page], token, d);
      }
      keys[row][d] = __float2half_rn(k);
      values[d][row] = __float2half_rn(v);
    }
  }

  __device__ __forceinline__ static uint4 shared16(const std::byte* at) {
    return *reinterpret_cast<const uint4*>(at);
  }
  __device__ __forceinline__ static uint32_t twice(const std::byte* half_at) {
    const uint32_t x = *reinterpret_cast<const uint16_t*>(half_at);
    return x | x << 16;
  }

  // Converts the first two or the last two of the four codes in a word: times the scale (plus the
  // minimum) of each.
  __device__ __forceinline__ static uint32_t dequantize(uint32_t word, bool last, uint32_t scales,
                                                        uint32_t minima) {
    const uint32_t selector = last ? 0x4342U : 0x4140U;
    if constexpr (kType == KvType::kInt8) {
      return bits_of(
          __hmul2(signed_bytes_to_half2(word ^ 0x80808080U, selector), as_half2(scales)));
    } else {
      return bits_of(
          __hfma2(small_bytes_to_half2(word, selector), as_half2(scales), as_half2(minima)));
    }
  }
  static constexpr int kHalves = kType == KvType::kInt4 ? 2 : 1;  // elements of a byte
  __device__ __forceinline__ static uint32_t codes_of(uint32_t word, int high) {
    return kType == KvType::kInt4 ? word >> (4 * high) & 0x0f0f0f0fU : word;
  }

  __device__ __forceinline__ static void convert_keys(const Pages& pages,
                                                      __half (*keys)[kKeyPitch]) {
    constexpr int kChunks = kRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const std::byte* page = pages.keys[row / kKvBlockTokens];
      const int token = row % kKvBlockTokens;
      // 64 codes are four chunks of int8, or two of int4.
      const int group = kType == KvType::kInt8 ? chunk / 4 : chunk / 2;
      const int scale_at = 2 * (group * kKvBlockTokens + token);
      const uint32_t scale = twice(page + scale_at);
      const uint32_t minimum = kType == KvType::kInt4 ? twice(page + kMinsAt + scale_at) : 0;
      const uint4 x = shared16(page + kCodesAt + token * kRowBytes + chunk * 16);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int high = 0; high < kHalves; ++high) {
        const int dim =
            kType == KvType::kInt8 ? chunk * 16 : group * 64 + high * 32 + chunk % 2 * 16;
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const uint32_t c0 = codes_of(words[w], high), c1 = codes_of(words[w + 1], high);
          *reinterpret_cast<uint4*>(&keys[row][dim + 4 * w]) = make_uint4(
              dequantize(c0, false, scale, minimum), dequantize(c0, true, scale, minimum),
              dequantize(c1, false, scale, minimum), dequantize(c1, true, scale, minimum));
        }
      }
    }
  }

  __device__ __forceinline__ static void convert_values(const PrefillPlace& p, int first,
                                                        const Pages& pages,
                                                        __half (*values)[kValuePitch]) {
    constexpr int kPairs = kRowBytes / 2;  // pairs of bytes, with 8 tokens each
    for (int i = static_cast<int>(threadIdx.x); i < kPairs * (kTileTokens / 8); i += kThreads) {
      const int pair = i % kPairs, eight = i / kPairs;
      const std::byte* page = pages.values[eight / 2];
      const int group = kType == KvType::kInt8 ? pair / 32 : pair / 16;
      const int scale_at = 2 * (group * kKvBlockTokens + eight % 2 * 8);
      const uint4 s = shared16(page + scale_at);
      const uint4 m =
          kType == KvType::kInt4 ? shared16(page + kMinsAt + scale_at) : make_uint4(0, 0, 0, 0);
      uint32_t scales[4] = {s.x, s.y, s.z, s.w}, minima[4] = {m.x, m.y, m.z, m.w};
      const int position = first + eight * 8;
      if (position < p.begin || position + 8 > p.end) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (position + e >= p.begin && position + e < p.end) continue;
          const uint32_t others = e % 2 == 0 ? 0xffff0000U : 0x0000ffffU;
          scales[e / 2] &= others;
          minima[e / 2] &= others;
        }
      }
      const uint4 x = shared16(page + kCodesAt + pair * 32 + eight % 2 * 16);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int high = 0; high < kHalves; ++high) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int byte = 2 * pair + e;
          const int dim = kType == KvType::kInt8 ? byte : byte / 32 * 64 + high * 32 + byte % 32;
          const uint32_t c0 = codes_of(words[2 * e], high), c1 = codes_of(words[2 * e + 1], high);
          *reinterpret_cast<uint4*>(&values[dim][eight * 8]) =
              make_uint4(dequantize(c0, false, scales[0], minima[0]),
                         dequantize(c0, true, scales[1], minima[1]),
                         dequantize(c1, false, scales[2], minima[2]),
                         dequantize(c1, true, scales[3], minima[3]));
        }
      }
    }
  }
};

// F16 and BF16 need no conversion.
template <KvType kType, int kDim, int kThreads>
requires(is_half(kType)) struct TileOfCodes<kType, kDim, kThreads> {
  static constexpr int kValuePitch = 0;
  struct Pages {};
};

}  // namespace spillway::cuda
