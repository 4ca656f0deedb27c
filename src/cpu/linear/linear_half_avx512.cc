// SPDX-License-Identifier: Apache-2.0
// Multiplies up to eight tokens with F16 and BF16 rows with AVX-512. The file is compiled for it,
// so it contains nothing else.
//
// Nothing is rounded, and sums are taken in the order that linear.h promises for sixteen lanes: the
// results have the same bits as those of the F32 kernels, whatever the tokens. Only the way of
// reading memory differs: four rows from four distant places are read together, each prefetched
// ahead of its use.
//
// Packed activations: [k / 32][tokens][32] floats.
#include <immintrin.h>

#include <cstring>

#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_half_args.h"

namespace spillway {
namespace {

constexpr int kStreams = 4;
// Each stream of weights is prefetched this far ahead.
constexpr int64_t kAheadBytes = 2048;
constexpr int64_t kLineBytes = 64;  // 32 columns of a row

struct HalfWeights {
  [[gnu::always_inline]] static inline __m512 floats(__m256i w) { return _mm512_cvtph_ps(w); }
};
struct BfloatWeights {
  [[gnu::always_inline]] static inline __m512 floats(__m256i w) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16));
  }
};

// Returns {sum of a, sum of b, sum of c, sum of d}, as sum4() of simd_inl.h.
[[gnu::always_inline]] static inline __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ac = _mm512_add_ps(_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c));
  const __m512 bd = _mm512_add_ps(_mm512_unpacklo_ps(b, d), _mm512_unpackhi_ps(b, d));
  const __m512 all = _mm512_add_ps(_mm512_unpacklo_ps(ac, bd), _mm512_unpackhi_ps(ac, bd));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// The sums of kRows rows times kTokens tokens in one cut of k.
template <class Weights, int kRows, int kTokens>
struct Tile {
  __m512 sum[kRows * kTokens];

  [[gnu::always_inline]] inline void start() {
#pragma GCC unroll 32
    for (__m512& s : sum) s = _mm512_setzero_ps();
  }
  // Adds 16 columns.
  [[gnu::always_inline]] inline void add(const __m256i w[kRows], const float* x) {
    __m512 v[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) v[r] = Weights::floats(w[r]);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m512 xt = _mm512_loadu_ps(x + 32 * t);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r * kTokens + t] = _mm512_fmadd_ps(v[r], xt, sum[r * kTokens + t]);
      }
    }
  }
  [[gnu::always_inline]] inline void add_line(const uint8_t* const w[kRows], int64_t at,
                                              const float* x) {
    __m256i part[2][kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm_prefetch(w[r] + at + kAheadBytes, _MM_HINT_T0);
      part[0][r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w[r] + at));
      part[1][r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w[r] + at + 32));
    }
    add(part[0], x);
    add(part[1], x + 16);
  }
  // Adds the `count` < 32 columns of a last line; nothing after them is read.
  [[gnu::always_inline]] inline void add_last(const uint8_t* const w[kRows], int64_t at,
                                              int64_t count, const float* x) {
    const uint32_t valid = (uint32_t{1} << count) - 1;
    __m256i part[2][kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      part[0][r] = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(valid & 0xffff), w[r] + at);
      part[1][r] = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(valid >> 16), w[r] + at + 32);
    }
    add(part[0], x);
    add(part[1], x + 16);
  }
  // Adds the sums to totals[row][token].
  [[gnu::always_inline]] inline void finish(float* totals) const {
#pragma GCC unroll 8
    for (int i = 0; i < kRows * kTokens; i += 4) {
      const __m128 four = sum4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
      _mm_storeu_ps(totals + i, _mm_add_ps(_mm_loadu_ps(totals + i), four));
    }
  }
};

// Multiplies rows `step` apart from `row` on, the first `count` of kStreams; the others repeat the
// last.
template <class Weights, int kTokens>
void multiply_rows(const HalfProduct& a, int64_t row, int64_t step, int64_t count) {
  // This many rows are multiplied in one pass, as many as there are registers for.
  constexpr int kRows = kStreams * kTokens > 16 ? 16 / kTokens : kStreams;
  alignas(64) float totals[kStreams][kTokens];
  const uint8_t* w[kStreams];
  for (int r = 0; r < kStreams; ++r) {
    const int64_t at = row + (r < count ? r : count - 1) * step;
    w[r] = a.w + at * a.row_bytes;
    for (int t = 0; t < kTokens; ++t) {
      totals[r][t] = t < a.tokens && a.accumulate ? a.out[t * a.out_stride + at] : 0;
      if (a.bias != nullptr) totals[r][t] += a.bias[at];
    }
  }
  const auto* x = reinterpret_cast<const float*>(a.x);
  for (int64_t k = 0, next; k < a.k; k = next) {
    next = next_cut(k, a.k);
    // The totals of another tile's rows wait in the nearest cache, as does this part of x.
#pragma GCC unroll 4
    for (int first = 0; first < kStreams; first += kRows) {
      Tile<Weights, kRows, kTokens> tile;
      tile.start();
      int64_t at = k;
      for (; at + 32 <= next; at += 32) tile.add_line(w + first, at * 2, x + at * kTokens);
      if (at < next) tile.add_last(w + first, at * 2, next - at, x + at * kTokens);
      tile.finish(totals[first]);
    }
  }
  for (int r = 0; r < count; ++r) {
    for (int64_t t = 0; t < a.tokens; ++t) {
      a.out[t * a.out_stride + row + r * step] = totals[r][t];
    }
  }
}

template <class Weights, int kTokens>
void multiply(const HalfProduct& a, int64_t begin, int64_t end) {
  const int64_t step = (end - begin) / kStreams;
  for (int64_t row = begin; row < begin + step; ++row) {
    multiply_rows<Weights, kTokens>(a, row, step, kStreams);
  }
  const int64_t rest = begin + step * kStreams;
  if (rest < end) multiply_rows<Weights, kTokens>(a, rest, 1, end - rest);
}

template <int kTokens>
void pack(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
          float* factors) {
  for (int t = 0; t < kTokens; ++t) factors[t] = 1;
  auto* to = reinterpret_cast<float*>(packed);
  for (int64_t at = 0; at < k; at += 32) {
    const int64_t columns = k - at < 32 ? k - at : 32;
    for (int t = 0; t < kTokens; ++t, to += 32) {
      if (t < count && columns == 32) {
        std::memcpy(to, x + t * stride + at, 32 * sizeof(float));
        continue;
      }
      std::memset(to, 0, 32 * sizeof(float));
      if (t < count) {
        std::memcpy(to, x + t * stride + at, static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }
}

template <class Weights, int kTokens>
constexpr HalfKernel kKernel = {.tokens = kTokens,
                                .x_width = 2 * kTokens,
                                .pack = pack<kTokens>,
                                .packs_rows = true,
                                .multiply = multiply<Weights, kTokens>};
template <class Weights>
constexpr HalfKernel kTable[] = {kKernel<Weights, 1>, kKernel<Weights, 2>, kKernel<Weights, 4>,
                                 kKernel<Weights, 8>};

}  // namespace

constinit const HalfKernels kF16Avx512Kernels = {
    .kernels = kTable<HalfWeights>, .count = 4, .most_tokens = 8};
constinit const HalfKernels kBf16Avx512Kernels = {
    .kernels = kTable<BfloatWeights>, .count = 4, .most_tokens = 8};

}  // namespace spillway
