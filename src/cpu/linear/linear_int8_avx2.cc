// SPDX-License-Identifier: Apache-2.0
// The integer kernels with AVX2, and once more with AVX-VNNI. The file is compiled for each, so it
// contains nothing else.
//
// They are built like those of linear_int8_avx512.cc and give the same results; they have half as
// many rows in a vector, and without AVX-VNNI four columns take two or three instructions.
#include <immintrin.h>

#include <cstring>

#include "cpu/linear/linear_int8_args.h"
#include "cpu/linear/linear_int8_types_avx2_inl.h"

namespace spillway {
namespace {

// Each stream of weights is prefetched this far ahead.
constexpr int64_t kAheadBytes = 2048;

[[gnu::always_inline]] static inline __m256i broadcast_word(const void* p) {
  int word;
  std::memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

[[gnu::always_inline]] static inline void store256(uint8_t* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
[[gnu::always_inline]] static inline void store_floats(uint8_t* p, __m256 v) {
  store256(p, _mm256_castps_si256(v));
}
[[gnu::always_inline]] static inline __m256 load_floats(const uint8_t* p) {
  return _mm256_castsi256_ps(load256(p));
}

// A panel of a type, unpacked once for many tokens: for each half of the rows, columns and scales.
template <class W>
struct Panel {
  static constexpr bool kMinima = W::kMinima, kHalves = W::kHalves, kOffset = W::kOffset;
  static constexpr bool kStreamed = false;
  static constexpr int kSubs = 1, kMerge = W::kMerge;
  static constexpr bool kMinimaOfHalves = kMinima && kHalves;
  static constexpr int kHalvesAt = 256 + 32 + (kMinima ? 32 : 0) + (kMinimaOfHalves ? 32 : 0);
  static constexpr int kHalfBytes = kHalvesAt + (kHalves ? 64 : 0);
  static constexpr int kBytes = 2 * kHalfBytes;
  static_assert(kBytes * (kInt8PanelDepth / 32) <= kInt8PanelBytes);

  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int, int half) {
    Columns columns;
    for (int i = 0; i < 8; ++i) columns.by_four[i] = load256(b + half * kHalfBytes + 32 * i);
    return columns;
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int, int half) {
    const uint8_t* at = b + half * kHalfBytes;
    Scales scales{.scale = load_floats(at + 256)};
    if constexpr (kMinima) scales.minimum = load_floats(at + 288);
    if constexpr (kMinimaOfHalves) scales.second_minimum = load_floats(at + 320);
    if constexpr (kHalves) {
      scales.sixteen[0] = load_floats(at + kHalvesAt);
      scales.sixteen[1] = load_floats(at + kHalvesAt + 32);
    }
    return scales;
  }
  [[gnu::always_inline]] static inline void fill(const uint8_t* from, int s, uint8_t* to) {
    for (int half = 0; half < 2; ++half, to += kHalfBytes) {
      const Columns columns = W::columns(from, s, half);
      for (int i = 0; i < 8; ++i) store256(to + 32 * i, columns.by_four[i]);
      const Scales scales = W::scales(from, s, half);
      store_floats(to + 256, scales.scale);
      if constexpr (kMinima) store_floats(to + 288, scales.minimum);
      if constexpr (kMinimaOfHalves) store_floats(to + 320, scales.second_minimum);
      if constexpr (kHalves) {
        store_floats(to + kHalvesAt, scales.sixteen[0]);
        store_floats(to + kHalvesAt + 32, scales.sixteen[1]);
      }
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

  [[gnu::always_inline]] inline __m256i word(int t, int i) const {
    return broadcast_word(q + t / 2 * pair_bytes + i / 2 * 16 + t % 2 * 8 + i % 2 * 4);
  }
  [[gnu::always_inline]] inline __m256i start(int t, int half) const {
    return broadcast_word(m + t / 2 * pair_floats + half * 2 + t % 2);
  }
  [[gnu::always_inline]] inline __m256 scale(int t) const {
    return _mm256_set1_ps(d[t / 2 * pair_floats + t % 2]);
  }
  [[gnu::always_inline]] inline __m256 minimum_factor(int t, int half) const {
    return _mm256_set1_ps(m[t / 2 * pair_floats + half * 2 + t % 2]);
  }
  [[gnu::always_inline]] inline void next() {
    q += 64;
    d += 4;
    m += 4;
  }
};

// Returns the integer sum of columns [4 first, 4 last) with token t, from `start` on.
template <class Source>
[[gnu::always_inline]] static inline __m256i sum_columns(const Columns& columns, const Tokens& x,
                                                         int t, int first, int last,
                                                         __m256i start) {
  [[maybe_unused]] const __m256i ones = _mm256_set1_epi16(1);
  [[maybe_unused]] constexpr int kMerge = Source::kMerge == 0 ? 1 : Source::kMerge;
  [[maybe_unused]] __m256i merged{};
  __m256i sum = start;
#pragma GCC unroll 8
  for (int i = first; i < last; ++i) {
    __m256i w = columns.by_four[i], word = x.word(t, i);
    if constexpr (Source::kMerge == 0) {  // |w| times x with w's sign: 2 * 128 * 127 fits
      word = _mm256_sign_epi8(word, w);
      w = _mm256_abs_epi8(w);
    }
#if defined(__AVXVNNI__)
    sum = _mm256_dpbusd_avx_epi32(sum, w, word);
#else
    const __m256i products = _mm256_maddubs_epi16(w, word);
    merged = i % kMerge == 0 ? products : _mm256_add_epi16(merged, products);
    if (i % kMerge == kMerge - 1) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(merged, ones));
    }
#endif
  }
  return sum;
}

// Adds 32 columns of eight rows to the sums of kTokens tokens.
template <class Source, int kTokens>
[[gnu::always_inline]] static inline void add_columns(const Columns& columns, const Scales& w,
                                                      const Tokens& x, __m256 sum[kTokens]) {
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    const auto start = [&](int half) {
      return Source::kOffset ? x.start(t, half) : _mm256_setzero_si256();
    };
    __m256 total;
    if constexpr (Source::kHalves) {  // integers below 2^24 are exact
      const __m256i low = sum_columns<Source>(columns, x, t, 0, 4, start(0));
      const __m256i high = sum_columns<Source>(columns, x, t, 4, 8, start(1));
      total = _mm256_mul_ps(_mm256_cvtepi32_ps(high), w.sixteen[1]);
      total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), w.sixteen[0], total);
    } else {
      total = _mm256_cvtepi32_ps(sum_columns<Source>(columns, x, t, 0, 8, start(0)));
    }
    sum[t] = _mm256_fmadd_ps(total, _mm256_mul_ps(w.scale, x.scale(t)), sum[t]);
    if constexpr (Source::kMinima) {
      sum[t] = _mm256_fmadd_ps(w.minimum, x.minimum_factor(t, 0), sum[t]);
      if constexpr (Source::kHalves) {
        sum[t] = _mm256_fmadd_ps(w.second_minimum, x.minimum_factor(t, 1), sum[t]);
      }
    }
  }
}

// Multiplies kStreams groups (the data of the first at `w`, the next `w_step` bytes on; the rows of
// the first at `row`) with kTokens tokens, k in [begin, end); `w` begins at `begin`. Reading from
// several distant places keeps more of the memory busy than one long stream. The halves of the rows
// from `first_half` on are computed.
template <class Source, int kTokens, int kStreams, int kRowHalves>
void multiply(const Int8Args& a, const uint8_t* w, int64_t w_step, int64_t row, int64_t row_step,
              int first_half, int64_t token, int64_t begin, int64_t end) {
  Tokens x;
  x.pair_bytes = a.k * 2;
  x.pair_floats = a.k / 8;
  x.q = a.q + token / 2 * x.pair_bytes + begin * 2;
  x.d = a.d + token / 2 * x.pair_floats + begin / 8;
  x.m = a.m + token / 2 * x.pair_floats + begin / 8;
  const int64_t tokens = a.tokens - token < kTokens ? a.tokens - token : kTokens;
  __m256 sum[kStreams * kRowHalves][kTokens];
  const auto first_row = [&](int i) {
    return row + i / kRowHalves * row_step + (first_half + i % kRowHalves) * 8;
  };
#pragma GCC unroll 8
  for (int i = 0; i < kStreams * kRowHalves; ++i) {
    const float* out = a.out + token * a.out_stride + first_row(i);
    const float* bias = a.bias != nullptr && begin == 0 ? a.bias + first_row(i) : nullptr;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const bool old = t < tokens && (a.accumulate || begin > 0);
      sum[i][t] = old ? _mm256_loadu_ps(out + t * a.out_stride) : _mm256_setzero_ps();
      if (bias != nullptr) sum[i][t] = _mm256_add_ps(sum[i][t], _mm256_loadu_ps(bias));
    }
  }
  for (int64_t k = begin; k < end; k += 32 * Source::kSubs, w += Source::kBytes) {
    for (int s = 0; s < Source::kSubs; ++s, x.next()) {
#pragma GCC unroll 8
      for (int i = 0; i < kStreams * kRowHalves; ++i) {
        const uint8_t* block = w + i / kRowHalves * w_step;
        const int half = first_half + i % kRowHalves;
        if constexpr (Source::kStreamed) {
          if (i % kRowHalves == 0) {
            prefetch_block<Source, _MM_HINT_T0>(block, s, kAheadBytes);
          }
        }
        add_columns<Source, kTokens>(Source::columns(block, s, half),
                                     Source::scales(block, s, half), x, sum[i]);
        // The barrier keeps the halves in order: g++ would unpack all first and run out of
        // registers.
        asm volatile("" ::: "memory");
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kStreams * kRowHalves; ++i) {
    float* out = a.out + token * a.out_stride + first_row(i);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens) _mm256_storeu_ps(out + t * a.out_stride, sum[i][t]);
    }
  }
}

// With few tokens the weights pass through the registers once.
template <class W, int kTokens, int kStreams>
void few_tokens(const Int8Args& a, int64_t first, int64_t last) {
  const int64_t step = (last - first) / kStreams;
  int64_t group = first;
  for (; group < first + step; ++group) {
    multiply<W, kTokens, kStreams, 2>(a, a.w + group * a.group_bytes, step * a.group_bytes,
                                      group * 16, step * 16, 0, 0, 0, a.k);
  }
  group += step * (kStreams - 1);
  if constexpr (kStreams > 2) {  // pairs of neighbours are better than single groups
    for (; group + 2 <= last; group += 2) {
      multiply<W, kTokens, 2, 2>(a, a.w + group * a.group_bytes, a.group_bytes, group * 16, 16, 0,
                                 0, 0, a.k);
    }
  }
  for (; group < last; ++group) {
    multiply<W, kTokens, 1, 2>(a, a.w + group * a.group_bytes, 0, group * 16, 0, 0, 0, 0, a.k);
  }
}

constexpr int64_t kTile = 4;                         // tokens, as many as there are registers for
constexpr int64_t kSweepBytes = int64_t{256} << 10;  // activations that stay in the L2 cache

template <class W>
void many_tokens(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  using Source = Panel<W>;
  const int64_t fit = kSweepBytes / (a.k + a.k / 4) / kTile * kTile;
  const int64_t sweep = fit < 32 ? 32 : fit;
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
        for (int half = 0; half < 2; ++half) {
          int64_t token = from;
          for (; token + kTile - 2 < stop; token += kTile) {
            multiply<Source, kTile, 1, 1>(a, panel, 0, group * 16, 0, half, token, k, end);
          }
          if (token < stop) {
            multiply<Source, 2, 1, 1>(a, panel, 0, group * 16, 0, half, token, k, end);
          }
        }
      }
    }
  }
}

template <class W>
void run_groups(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  if (a.tokens == 1) return few_tokens<W, 1, 4>(a, first, last);
  if (a.tokens == 2) return few_tokens<W, 2, 2>(a, first, last);
  if (a.tokens <= kTile) return few_tokens<W, kTile, 1>(a, first, last);
  many_tokens<W>(a, first, last, panel);
}

}  // namespace

#if defined(__AVXVNNI__)
constinit const Int8Kernels kAvxVnniKernels = {
#else
constinit const Int8Kernels kAvx2Kernels = {
#endif
    .q4_0 = run_groups<PackedQ4_0>,
    .q4_1 = run_groups<PackedQ4_1>,
    .q5_0 = run_groups<PackedQ5_0>,
    .q5_1 = run_groups<PackedQ5_1>,
    .q8_0 = run_groups<PackedQ8_0>,
    .q2_k = run_groups<PackedQ2_K>,
    .q3_k = run_groups<PackedQ3_K>,
    .q4_k = run_groups<PackedK45<4>>,
    .q5_k = run_groups<PackedK45<5>>,
    .q6_k = run_groups<PackedQ6_K>,
    .g4 = run_groups<PackedG4>};

}  // namespace spillway
