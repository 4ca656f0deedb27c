// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the AMX kernels: the shape of tiles, and prefetching while tiles multiply.
// Objects that are compiled for AMX include this file, so it has static functions only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/linear/linear_bf16_args.h"

namespace spillway {
namespace {

constexpr int64_t kTileElements = 512;  // in bfloat16
constexpr int64_t kTileRowBytes = 64;   // from one row of a packed tile to the next
constexpr int64_t kSumFloats = 256;     // floats of one tile of sums

// All eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kTileConfig;

[[gnu::always_inline]] static inline void start_tiles() {
  const TileConfig* config = &kTileConfig;
  asm volatile("" : : "r"(config) : "memory");  // g++ 12 thinks that only 8 bytes of it are read
  _tile_loadconfig(config);
}

// Call this between writing to memory and loading tiles from it, and between loading and writing
// again: g++ does not know that loads of tiles read memory.
[[gnu::always_inline]] static inline void order_with_tiles(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

// Prefetches a step's share of the cache lines of a region, as far as it goes, to the second-level
// cache: rows are a power of two apart in most models, so that few of them fit in the first.
[[gnu::always_inline]] static inline void ask_ahead(Bf16Ahead& ahead) {
  for (int64_t line = 0; line < ahead.lines && ahead.rows > 0; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead.row + ahead.at), _MM_HINT_T1);
    ahead.at += 64;
    if (ahead.at >= ahead.bytes) {
      ahead.at = 0;
      ahead.row += ahead.stride;
      --ahead.rows;
    }
  }
}

}  // namespace
}  // namespace spillway
