// SPDX-License-Identifier: Apache-2.0
// The bfloat16 matrix kernels with AVX-512's dot products of pairs, for processors without AMX. The
// file is compiled for them, so it contains nothing else.
//
// The lanes of a sum are rows: 2 x 16 rows of two columns are multiplied with two columns of a
// token, broadcast. There are 24 registers of sums, so that each load of weights is used twelve
// times and each load of activations twice.
#include <immintrin.h>

#include "cpu/linear/linear_bf16_args.h"
#include "cpu/linear/pack_bf16_avx512_inl.h"

namespace spillway {
namespace {

constexpr int kRowTile = 32, kTokenTile = 12;

[[gnu::always_inline]] static inline __m512bh load_pairs(const uint16_t* p) {
  __m512bh pairs;
  __builtin_memcpy(&pairs, p, sizeof(pairs));
  return pairs;
}
[[gnu::always_inline]] static inline __m512bh broadcast_pair(const uint16_t* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  const __m512i words = _mm512_set1_epi32(word);
  __m512bh pairs;
  __builtin_memcpy(&pairs, &words, sizeof(pairs));
  return pairs;
}

// Multiplies kTokens tokens of a tile from `token` on, of which the first `count` are written.
template <int kTokens>
void multiply_tile(const Bf16Product& p, const uint16_t* x, int64_t token, int64_t count) {
  const uint16_t* w = p.panel;
  __m512 sum[2][kTokens];
#pragma GCC unroll 12
  for (int t = 0; t < kTokens; ++t) sum[0][t] = sum[1][t] = _mm512_setzero_ps();
  for (int64_t k = 0; k < p.depth; k += 32, w += 512, x += 32 * (kTokenTile - 1)) {
    for (int pair = 0; pair < 16; ++pair, w += 32, x += 2) {
      const __m512bh w0 = load_pairs(w), w1 = load_pairs(w + 512);
#pragma GCC unroll 12
      for (int t = 0; t < kTokens; ++t) {
        const __m512bh both = broadcast_pair(x + 32 * t);
        sum[0][t] = _mm512_dpbf16_ps(sum[0][t], w0, both);
        sum[1][t] = _mm512_dpbf16_ps(sum[1][t], w1, both);
      }
    }
  }
  const __mmask16 valid[2] = {valid_rows(p, 0), valid_rows(p, 16)};
#pragma GCC unroll 12
  for (int t = 0; t < kTokens; ++t) {
    if (t >= count) break;
    put_sums(p, token + t, 0, valid[0], sum[0][t]);
    if (valid[1] != 0) put_sums(p, token + t, 16, valid[1], sum[1][t]);
  }
}

void multiply(const Bf16Product& p) {
  for (int64_t token = 0; token < p.tokens; token += kTokenTile) {
    const uint16_t* x = p.x + token / kTokenTile * p.x_tile_stride;
    const int64_t count = p.tokens - token < kTokenTile ? p.tokens - token : kTokenTile;
    if (count <= 4) {
      multiply_tile<4>(p, x, token, count);
    } else if (count <= 8) {
      multiply_tile<8>(p, x, token, count);
    } else {
      multiply_tile<kTokenTile>(p, x, token, count);
    }
  }
}

}  // namespace

constinit const Bf16Kernels kAvx512Bf16Kernels = {.row_tile = kRowTile,
                                                  .token_tile = kTokenTile,
                                                  .max_depth = 512,  // 32 KiB of weights
                                                  .panels = 4,
                                                  .chunk_tokens = 4 * kTokenTile,
                                                  .pack_rows = pack_pair_tiles<2>,
                                                  .pack_tokens = pack_rows_in_steps<kTokenTile>,
                                                  .multiply = multiply};

}  // namespace spillway
