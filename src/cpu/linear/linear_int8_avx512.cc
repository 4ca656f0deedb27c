// SPDX-License-Identifier: Apache-2.0
// The integer kernels with AVX-512 VNNI. The file is compiled for it, so it contains nothing else.
//
// Sums are reduced in the order that linear_int8_inl.h describes, so that a result does not depend
// on the batch. Integer sums are exact, so they may be taken in any order.
#include <immintrin.h>

#include <cstring>

#include "cpu/linear/linear_int8_args.h"
#include "cpu/linear/linear_int8_types_avx512_inl.h"

namespace spillway {
namespace {

// Each stream of weights is prefetched this far ahead.
constexpr int64_t kAheadBytes = 2048;

[[gnu::always_inline]] static inline __m512i broadcast_word(const void* p) {
  int word;
  std::memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Adds the products of four columns of 16 rows (unsigned) and of a token (signed, broadcast). It is
// assembly because g++ 12 does not know that the instruction can broadcast by itself, and has no
// registers for more.
[[gnu::always_inline]] static inline __m512i add_products(__m512i sum, __m512i w, const int8_t* x) {
  const auto& word = *reinterpret_cast<const int8_t(*)[4]>(x);
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(word));
  return sum;
}

[[gnu::always_inline]] static inline const Columns& columns_of(const Columns& columns) {
  return columns;
}

// A panel of a type, unpacked once for many tokens: columns, then scales.
template <class W>
struct Panel {
  static constexpr bool kMinima = W::kMinima, kHalves = W::kHalves;
  static constexpr bool kStreamed = false;
  static constexpr int kSubs = 1, kOffset = W::kOffset;
  static constexpr bool kMinimaOfHalves = kMinima && kHalves;
  static constexpr int kHalvesAt = 512 + 64 + (kMinima ? 64 : 0) + (kMinimaOfHalves ? 64 : 0);
  static constexpr int kBytes = kHalvesAt + (kHalves ? 128 : 0);
  static_assert(kBytes * (kInt8PanelDepth / 32) <= kInt8PanelBytes);

  [[gnu::always_inline]] static inline Columns bits(const uint8_t* b, int) {
    Columns columns;
    for (int i = 0; i < 8; ++i) columns.by_four[i] = load512(b + 64 * i);
    return columns;
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    Scales scales{.scale = _mm512_loadu_ps(b + 512)};
    if constexpr (kMinima) scales.minimum = _mm512_loadu_ps(b + 576);
    if constexpr (kMinimaOfHalves) scales.second_minimum = _mm512_loadu_ps(b + 640);
    if constexpr (kHalves) {
      scales.half[0] = _mm512_loadu_ps(b + kHalvesAt);
      scales.half[1] = _mm512_loadu_ps(b + kHalvesAt + 64);
    }
    return scales;
  }
  [[gnu::always_inline]] static inline void fill(const uint8_t* from, int s, uint8_t* to) {
    const Columns columns = columns_of(W::bits(from, s));
    for (int i = 0; i < 8; ++i) _mm512_storeu_si512(to + 64 * i, columns.by_four[i]);
    const Scales scales = W::scales(from, s);
    _mm512_storeu_ps(to + 512, scales.scale);
    if constexpr (kMinima) _mm512_storeu_ps(to + 576, scales.minimum);
    if constexpr (kMinimaOfHalves) _mm512_storeu_ps(to + 640, scales.second_minimum);
    if constexpr (kHalves) {
      _mm512_storeu_ps(to + kHalvesAt, scales.half[0]);
      _mm512_storeu_ps(to + kHalvesAt + 64, scales.half[1]);
    }
  }
};

// Prefetches sub-block s of a block, or the data `ahead` bytes after it.
template <class W, _mm_hint kHint>
[[gnu::always_inline]] static inline void prefetch_block(const uint8_t* block, int s,
                                                         int64_t ahead) {
  constexpr int kShare = W::kBytes / W::kSubs;
#pragma GCC unroll 16
  for (int at = 0; at < kShare; at += 64) _mm_prefetch(block + s * kShare + at + ahead, kHint);
}

// The activations of tokens from an even one on, 32 columns in one step.
struct Tokens {
  const int8_t* q;
  const float *d, *m;
  int64_t pair_bytes, pair_floats;  // from one token pair to the next

  [[gnu::always_inline]] inline const int8_t* word(int t, int i) const {
    return q + t / 2 * pair_bytes + i / 2 * 16 + t % 2 * 8 + i % 2 * 4;
  }
  [[gnu::always_inline]] inline __m512i start(int t, int half) const {
    return broadcast_word(m + t / 2 * pair_floats + half * 2 + t % 2);
  }
  [[gnu::always_inline]] inline __m512 scale(int t) const {
    return _mm512_set1_ps(d[t / 2 * pair_floats + t % 2]);
  }
  [[gnu::always_inline]] inline __m512 minimum_factor(int t, int half) const {
    return _mm512_set1_ps(m[t / 2 * pair_floats + half * 2 + t % 2]);
  }
  [[gnu::always_inline]] inline void next() {
    q += 64;
    d += 4;
    m += 4;
  }
};

// Adds 32 columns of 16 rows to the sums of kTokens tokens.
template <class Source, int kTokens>
[[gnu::always_inline]] static inline void add_columns(const Columns& columns, const Scales& w,
                                                      const Tokens& x, __m512 sum[kTokens]) {
  __m512i part[2][kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    part[0][t] = Source::kOffset != 0 ? x.start(t, 0) : _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if (Source::kHalves && i == 4) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        part[1][t] = part[0][t];
        part[0][t] = Source::kOffset != 0 ? x.start(t, 1) : _mm512_setzero_si512();
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      part[0][t] = add_products(part[0][t], columns.by_four[i], x.word(t, i));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    __m512 total = _mm512_cvtepi32_ps(part[0][t]);
    if constexpr (Source::kHalves) {  // integers below 2^24 are exact
      total = _mm512_mul_ps(total, w.half[1]);
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[1][t]), w.half[0], total);
    }
    sum[t] = _mm512_fmadd_ps(total, _mm512_mul_ps(w.scale, x.scale(t)), sum[t]);
    if constexpr (Source::kMinima) {
      sum[t] = _mm512_fmadd_ps(w.minimum, x.minimum_factor(t, 0), sum[t]);
      if constexpr (Source::kHalves) {
        sum[t] = _mm512_fmadd_ps(w.second_minimum, x.minimum_factor(t, 1), sum[t]);
      }
    }
  }
}

// Multiplies kStreams groups (the data of the first at `w`, the next `w_step` bytes on; the rows of
// the first at `row`) with kTokens tokens, k in [begin, end); `w` begins at `begin`. Reading from
// several distant places keeps more of the memory busy than one long stream.
template <class Source, int kTokens, int kStreams>
void multiply(const Int8Args& a, const uint8_t* w, int64_t w_step, int64_t row, int64_t row_step,
              int64_t token, int64_t begin, int64_t end) {
  Tokens x;
  x.pair_bytes = a.k * 2;
  x.pair_floats = a.k / 8;
  x.q = a.q + token / 2 * x.pair_bytes + begin * 2;
  x.d = a.d + token / 2 * x.pair_floats + begin / 8;
  x.m = a.m + token / 2 * x.pair_floats + begin / 8;
  const int64_t tokens = a.tokens - token < kTokens ? a.tokens - token : kTokens;
  __m512 sum[kStreams][kTokens];
#pragma GCC unroll 8
  for (int i = 0; i < kStreams; ++i) {
    const float* out = a.out + token * a.out_stride + row + i * row_step;
    const float* bias = a.bias != nullptr && begin == 0 ? a.bias + row + i * row_step : nullptr;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const bool old = t < tokens && (a.accumulate || begin > 0);
      sum[i][t] = old ? _mm512_loadu_ps(out + t * a.out_stride) : _mm512_setzero_ps();
      if (bias != nullptr) sum[i][t] = _mm512_add_ps(sum[i][t], _mm512_loadu_ps(bias));
    }
  }
  for (int64_t k = begin; k < end; k += 32 * Source::kSubs, w += Source::kBytes) {
    for (int s = 0; s < Source::kSubs; ++s, x.next()) {
#pragma GCC unroll 8
      for (int i = 0; i < kStreams; ++i) {
        const uint8_t* block = w + i * w_step;
        if constexpr (Source::kStreamed) {
          prefetch_block<Source, _MM_HINT_T0>(block, s, kAheadBytes);
        }
        add_columns<Source, kTokens>(columns_of(Source::bits(block, s)), Source::scales(block, s),
                                     x, sum[i]);
        // The barrier keeps the streams in order: g++ would unpack all first and run out of
        // registers.
        asm volatile("" ::: "memory");
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kStreams; ++i) {
    float* out = a.out + token * a.out_stride + row + i * row_step;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens) _mm512_storeu_ps(out + t * a.out_stride, sum[i][t]);
    }
  }
}

// With few tokens the weights pass through the registers once.
template <class W, int kTokens, int kStreams>
void few_tokens(const Int8Args& a, int64_t first, int64_t last) {
  const int64_t step = (last - first) / kStreams;
  int64_t group = first;
  for (; group < first + step; ++group) {
    multiply<W, kTokens, kStreams>(a, a.w + group * a.group_bytes, step * a.group_bytes, group * 16,
                                   step * 16, 0, 0, a.k);
  }
  group += step * (kStreams - 1);
  if constexpr (kStreams > 2) {  // pairs of neighbours are better than single groups
    for (; group + 2 <= last; group += 2) {
      multiply<W, kTokens, 2>(a, a.w + group * a.group_bytes, a.group_bytes, group * 16, 16, 0, 0,
                              a.k);
    }
  }
  for (; group < last; ++group) {
    multiply<W, kTokens, 1>(a, a.w + group * a.group_bytes, 0, group * 16, 0, 0, 0, a.k);
  }
}

// The number of tokens that there are registers for.
template <class W>
constexpr int kTileTokens = W::kHalves ? 6 : 8;
constexpr int64_t kSweepBytes = int64_t{1} << 20;  // activations that stay in the L2 cache

template <class W>
void many_tokens(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  using Source = Panel<W>;
  constexpr int64_t kTile = kTileTokens<W>;
  const int64_t fit = kSweepBytes / (a.k + a.k / 4) / kTile * kTile;
  const int64_t sweep = fit < 4 * kTile ? 4 * kTile : fit;
  for (int64_t from = 0; from < a.tokens; from += sweep) {
    const int64_t stop = from + sweep < a.tokens ? from + sweep : a.tokens;
    for (int64_t group = first; group < last; ++group) {
      const uint8_t* w = a.w + group * a.group_bytes;
      for (int64_t k = 0; k < a.k; k += kInt8PanelDepth) {
        const int64_t end = k + kInt8PanelDepth < a.k ? k + kInt8PanelDepth : a.k;
        uint8_t* to = panel;
        for (int64_t at = k; at < end; at += 32 * W::kSubs, w += W::kBytes) {
          for (int s = 0; s < W::kSubs; ++s, to += Source::kBytes) {
            // The next panel arrives while this one is multiplied.
            prefetch_block<W, _MM_HINT_T1>(w, s, kInt8PanelDepth / 32 * W::kBytes / W::kSubs);
            Source::fill(w, s, to);
          }
        }
        int64_t token = from;
        for (; token + kTile - 2 < stop; token += kTile) {
          multiply<Source, kTile, 1>(a, panel, 0, group * 16, 0, token, k, end);
        }
        if (token + 4 < stop) {
          multiply<Source, 6, 1>(a, panel, 0, group * 16, 0, token, k, end);
        } else if (token + 2 < stop) {
          multiply<Source, 4, 1>(a, panel, 0, group * 16, 0, token, k, end);
        } else if (token < stop) {
          multiply<Source, 2, 1>(a, panel, 0, group * 16, 0, token, k, end);
        }
      }
    }
  }
}

template <class W>
void run_groups(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  if (a.tokens == 1) return few_tokens<W, 1, 4>(a, first, last);
  if (a.tokens == 2) return few_tokens<W, 2, 4>(a, first, last);
  if (a.tokens <= 4) return few_tokens<W, 4, 2>(a, first, last);
  if (a.tokens <= 6) return few_tokens<W, 6, 1>(a, first, last);
  if (a.tokens <= kTileTokens<W>) return few_tokens<W, kTileTokens<W>, 1>(a, first, last);
  many_tokens<W>(a, first, last, panel);
}

}  // namespace

constinit const Int8Kernels kAvx512VnniKernels = {.q4_0 = run_groups<PackedQ4_0>,
                                                  .q4_1 = run_groups<PackedQ4_1>,
                                                  .q5_0 = run_groups<PackedQ5_0>,
                                                  .q5_1 = run_groups<PackedQ5_1>,
                                                  .q8_0 = run_groups<PackedQ8_0>,
                                                  .q2_k = run_groups<PackedQ2_K>,
                                                  .q3_k = run_groups<PackedQ3_K>,
                                                  .q4_k = run_groups<PackedQ4_K>,
                                                  .q5_k = run_groups<PackedQ5_K>,
                                                  .q6_k = run_groups<PackedQ6_K>,
                                                  .g4 = run_groups<PackedG4>};

}  // namespace spillway
