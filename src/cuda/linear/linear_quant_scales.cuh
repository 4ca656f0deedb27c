// SPDX-License-Identifier: Apache-2.0
// The scales and minima of tiles of packed weights (linear_quant_tile.cuh): for the sums of a tile,
// or for its operands.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/linear/linear_quant_tile.cuh"

namespace spillway::cuda {

// The scales of rows g and g + 8: `scale` is that of the tile (or of `low`), `other` the minimum or
// the scale of `high`; split types with minima also have those of `low` and `high`. As floats they
// are for the sums of a tile (the minimum times the sum of x), as pairs of halves for the weights.
template <class Value>
struct TileScales {
  Value scale[2];
  Value other[2];
  Value low_minimum[2];
  Value high_minimum[2];
};

// Reads the scales of types with one scale per block straight from the header.
template <class Block, class Value>
__device__ __forceinline__ TileScales<Value> header_scales(const uint8_t* block, int g) {
  const __half* header = reinterpret_cast<const __half*>(block);
  const auto value = [&](int at) {
    if constexpr (std::is_same_v<Value, __half2>) {
      return __half2half2(header[at]);
    } else {
      return __half2float(header[at]);
    }
  };
  TileScales<Value> out{{value(g), value(g + 8)}, {}, {}, {}};
  if constexpr (TileFormat<Block>::kMinimum) {
    out.other[0] = value(16 + g);
    out.other[1] = value(16 + g + 8);
  }
  return out;
}

// Subtracts the offset from both codes of a pair; exact.
__device__ __forceinline__ __half2 take_off(uint32_t pair, float offset) {
  return __hsub2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(offset));
}

// Turns codes into weights: halves, rounded once (and scales of K-quant types before that).
template <class Block>
__device__ __forceinline__ void scale_operands(TileOperands& tile, const TileScales<__half2>& s) {
  using Format = TileFormat<Block>;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i % 2;
    const auto scaled = [&](uint32_t pair, float offset, __half2 scale, __half2 minimum) {
      const __half2 codes = take_off(pair, offset);
      const __half2 weights =
          Format::kMinimum ? __hfma2(codes, scale, minimum) : __hmul2(codes, scale);
      return reinterpret_cast<const uint32_t&>(weights);
    };
    tile.low[i] = scaled(tile.low[i], Format::kLowOffset, s.scale[r],
                         Format::kSplitMinimum ? s.low_minimum[r] : s.other[r]);
    tile.high[i] =
        scaled(tile.high[i], Format::kHighOffset, Format::kSplit ? s.other[r] : s.scale[r],
               Format::kSplitMinimum ? s.high_minimum[r] : s.other[r]);
  }
}

// Types with minima of `low` and of `high` need the sums of x over the columns of each. The sums
// that correct the offsets are these sums times minus a power of two, so the minima, which are to
// be subtracted, are divided by it.
template <class Block>
__device__ __forceinline__ float split_minimum(float minimum) {
  static_assert(TileFormat<Block>::kLowOffset == TileFormat<Block>::kHighOffset);
  return minimum * (1 / TileFormat<Block>::kLowOffset);
}

// The scales of K-quant types are computed before use, separately for floats and for pairs of
// halves.
//
// Floats: every lane computes eight of the block's 256 scales and minima. `prepared` is [2][16
// rows][8]: scales, then minima; or the scales of sub-blocks 0-7, then 8-15. For Q2_K as many
// minima follow after all scales (see split_minimum()).
template <class Block>
__device__ __forceinline__ void prepare_scales(const uint8_t* block, float* prepared, int lane) {
  const int row = lane % 16, half = lane / 16;
  const auto store = [&](int offset, const float v[8]) {
    float4* to = reinterpret_cast<float4*>(prepared + offset + half * 128 + row * 8);
    to[0] = {v[0], v[1], v[2], v[3]};
    to[1] = {v[4], v[5], v[6], v[7]};
  };
  float values[8];
  if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    const __half* header = reinterpret_cast<const __half*>(block);
    const float d = __half2float(header[row]), dmin = __half2float(header[16 + row]);
    const uint8_t* both = block + 64 + half * 128 + row;
    float minima[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      values[s] = d * static_cast<float>(both[s * 16] & 15);
      minima[s] = split_minimum<Block>(dmin * static_cast<float>(both[s * 16] >> 4));
    }
    store(256, minima);
  } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    const float d = __half2float(reinterpret_cast<const __half*>(block)[row]);
    const uint8_t* scales = block + 32 + half * 128 + row;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      values[s] = d * static_cast<float>(static_cast<int8_t>(scales[s * 16]));
    }
  } else {
    constexpr bool kMinima = TileFormat<Block>::kMinimum;
    float d = __half2float(reinterpret_cast<const __half*>(block)[kMinima ? half * 16 + row : row]);
    if (kMinima && half == 1) d = -d;
    const uint8_t* six = block + (kMinima ? 64 : 32) + half * 96 + row;
    constexpr int kBias = kMinima ? 0 : 32;
    const uint32_t top0 = six[64], top1 = six[80];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t both = six[s * 16];
      const auto first = static_cast<int>((both & 15U) | (top0 >> (2 * s) & 3U) << 4);
      const auto second = static_cast<int>(both >> 4 | (top1 >> (2 * s) & 3U) << 4);
      values[s] = d * static_cast<float>(first - kBias);
      values[s + 4] = d * static_cast<float>(second - kBias);
    }
  }
  store(0, values);
}

// Reads the prepared scales of four neighbouring tiles of a block.
template <class Block>
__device__ __forceinline__ void prepared_scales(const float* prepared, int quad, int g,
                                                TileScales<float> out[4]) {
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const float* row = prepared + (g + 8 * second) * 8;
    if constexpr (TileFormat<Block>::kSplitMinimum) {
      const float4 a = *reinterpret_cast<const float4*>(row + 256 + quad * 128);
      const float4 b = *reinterpret_cast<const float4*>(row + 256 + quad * 128 + 4);
      out[0].low_minimum[second] = a.x, out[0].high_minimum[second] = a.y;
      out[1].low_minimum[second] = a.z, out[1].high_minimum[second] = a.w;
      out[2].low_minimum[second] = b.x, out[2].high_minimum[second] = b.y;
      out[3].low_minimum[second] = b.z, out[3].high_minimum[second] = b.w;
    }
    if constexpr (TileFormat<Block>::kSplit) {
      const float4 a = *reinterpret_cast<const float4*>(row + quad * 128);
      const float4 b = *reinterpret_cast<const float4*>(row + quad * 128 + 4);
      out[0].scale[second] = a.x, out[0].other[second] = a.y;
      out[1].scale[second] = a.z, out[1].other[second] = a.w;
      out[2].scale[second] = b.x, out[2].other[second] = b.y;
      out[3].scale[second] = b.z, out[3].other[second] = b.w;
    } else {
      const float4 a = *reinterpret_cast<const float4*>(row + quad * 4);
      const float4 b = *reinterpret_cast<const float4*>(row + 128 + quad * 4);
      out[0].scale[second] = a.x, out[0].other[second] = b.x;
      out[1].scale[second] = a.y, out[1].other[second] = b.y;
      out[2].scale[second] = a.z, out[2].other[second] = b.z;
      out[3].scale[second] = a.w, out[3].other[second] = b.w;
    }
  }
}

// Halves: `prepared` is [8 tiles][16 rows] of (scale, other), for Q2_K followed by as many (minimum
// of `low`, of `high`). A lane has two rows of two tiles, and computes scale and other of both rows
// together, as the bytes of one word.
template <class Block>
__device__ __forceinline__ void prepare_scales(const uint8_t* block, __half2* prepared, int lane) {
  const int s = lane / 8, rows = lane % 8 * 2;
  const auto bytes = [&](int offset) -> uint32_t {
    return *reinterpret_cast<const uint16_t*>(block + offset + rows);
  };
  const auto halves = [&](int offset) {
    return *reinterpret_cast<const __half2*>(block + offset + 2 * rows);
  };
  // Each byte of a tile's number has one value: scales of both rows, then others of both rows.
  int tiles[2] = {s, s + 4};
  uint32_t numbers[2];
  float offset = 1024;
  const __half2 d = halves(0);
  __half2 factors[2] = {__low2half2(d), __high2half2(d)};
  // Stores four numbers times the factors of their rows.
  const auto store = [&](__half2* to, uint32_t four, const __half2 of_rows[2]) {
    __half2 values[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = __byte_perm(four, 0x64646464U, r == 0 ? 0x4240 : 0x4341);
      values[r] = __hmul2(take_off(pair, offset), of_rows[r]);
    }
    *reinterpret_cast<uint2*>(to + rows) = {reinterpret_cast<const uint32_t&>(values[0]),
                                            reinterpret_cast<const uint32_t&>(values[1])};
  };
  if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    tiles[0] = 2 * s, tiles[1] = 2 * s + 1;
    const __half2 minima = __hneg2(halves(32));
    const __half2 minimum_factors[2] = {__low2half2(minima), __high2half2(minima)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sub = 64 + (4 * s + 2 * i) * 16;
      const uint32_t both = bytes(sub) | bytes(sub + 16) << 16;
      numbers[i] = both & 0x0f0f0f0fU;
      store(prepared + 128 + tiles[i] * 16, both >> 4 & 0x0f0f0f0fU, minimum_factors);
    }
  } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    tiles[0] = 2 * s, tiles[1] = 2 * s + 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sub = 32 + (4 * s + 2 * i) * 16;
      numbers[i] = (bytes(sub) | bytes(sub + 16) << 16) ^ 0x80808080U;
    }
    offset += 128;
  } else {
    uint32_t both, top[2];
    if constexpr (std::is_same_v<Block, BlockQ3_K>) {
      const int six = 32 + s / 2 * 96, m = s % 2;
      tiles[0] = s / 2 * 4 + m, tiles[1] = tiles[0] + 2;
      both = bytes(six + 2 * m * 16) | bytes(six + (2 * m + 1) * 16) << 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t of_rows = bytes(six + 64 + i * 16);
        top[i] = of_rows >> (4 * m) | of_rows >> (4 * m + 2) << 16;
      }
      offset += 32;
    } else {
      both = bytes(64 + s * 16) | bytes(160 + s * 16) << 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[i] = (bytes(128 + i * 16) | bytes(224 + i * 16) << 16) >> (2 * s);
      }
      const __half2 minima = __hneg2(halves(32));
      factors[0] = __lows2half2(d, minima);
      factors[1] = __highs2half2(d, minima);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      numbers[i] = (both >> (4 * i) & 0x0f0f0f0fU) | (top[i] & 0x03030303U) << 4;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) store(prepared + tiles[i] * 16, numbers[i], factors);
}

template <class Block>
__device__ __forceinline__ void prepared_scales(const __half2* prepared, int quad, int g,
                                                TileScales<__half2> out[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int at = (quad * 4 + i) * 16 + g + 8 * second;
      out[i].scale[second] = __low2half2(prepared[at]);
      out[i].other[second] = __high2half2(prepared[at]);
      if constexpr (TileFormat<Block>::kSplitMinimum) {
        out[i].low_minimum[second] = __low2half2(prepared[128 + at]);
        out[i].high_minimum[second] = __high2half2(prepared[128 + at]);
      }
    }
  }
}

}  // namespace spillway::cuda
