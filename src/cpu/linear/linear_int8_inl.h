// SPDX-License-Identifier: Apache-2.0
// The integer kernels of linear, for any packed type and instruction set. `Isa` gives the dot
// products; see linear_int8_i8mm.cc.
//
// Every element of the result has one F32 accumulator, whatever the batch: it starts as (old out) +
// bias and takes, in ascending k, for each 32 columns
//     fma(float(integer sum), scale(w) * scale(x), .)
// and then, for types with minima, fma(minimum(w), m(x), .). K types are in
// linear_int8_super_inl.h.
#pragma once

#include "cpu/fresh_zero_neon_inl.h"
#include "cpu/linear/linear_int8_args.h"
#include "cpu/linear/linear_int8_types_inl.h"

namespace spillway {
namespace {

// Returns both rows of pair p, each twice.
template <class V>
[[gnu::always_inline]] static inline V pair_of(V quad, int p) {
  return p % 2 == 0 ? __builtin_shuffle(quad, uint32x4_t{0, 0, 1, 1})
                    : __builtin_shuffle(quad, uint32x4_t{2, 2, 3, 3});
}

template <class W>
concept Offset = requires {
  requires W::kOffset;
};

template <class Isa, class Source, int kPairs>
struct TileSums;

// Reads a type as it is stored, with scales in pairs.
template <class W>
struct Direct : W {
  template <class Isa, int kPairs>
  using Sums = TileSums<Isa, Direct, kPairs>;
  [[gnu::always_inline]] static inline float32x4_t pair_scale(const uint8_t* b, int s, int p) {
    return pair_of(W::scale(b, s, p / 2), p);
  }
  [[gnu::always_inline]] static inline float32x4_t pair_minimum(const uint8_t* b, int s, int p) {
    return pair_of(W::minimum(b, s, p / 2), p);
  }
};

// Unpacks sub-block s of a type to whole bytes, [8 pairs][4][16].
template <class W>
[[gnu::always_inline]] static inline void fill_quants(const uint8_t* from, int s, uint8_t* to) {
#pragma GCC unroll 8
  for (int p = 0; p < 8; ++p) {
    for (int h = 0; h < 2; ++h) {
      const Operands both = W::quants(from, s, p, h);
      vst1q_u8(to + (p * 4 + h) * 16, vreinterpretq_u8_s8(both.low));
      vst1q_u8(to + (p * 4 + 2 + h) * 16, vreinterpretq_u8_s8(both.high));
    }
  }
}
[[gnu::always_inline]] static inline Operands filled_quants(const uint8_t* sub, int p, int h) {
  const auto* at = reinterpret_cast<const int8_t*>(sub) + (p * 4 + h) * 16;
  return {vld1q_s8(at), vld1q_s8(at + 32)};
}

// A panel of a type, unpacked once for many tokens: bytes, then vectors of the pairs.
template <class W>
struct Panel {
  static constexpr bool kMinima = W::kMinima, kUnsigned = W::kUnsigned;
  static constexpr bool kOffset = Offset<W>;
  static constexpr int kSubs = 1;
  static constexpr int kMinimaAt = 512 + 128;
  static constexpr int kBytes = kMinimaAt + (kMinima ? 128 : 0);
  static constexpr int kBlockBytes = W::kSubs * kBytes;  // of a block of W
  template <class Isa, int kPairs>
  using Sums = TileSums<Isa, Panel, kPairs>;

  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    return filled_quants(b, p, h);
  }
  [[gnu::always_inline]] static inline float32x4_t pair_scale(const uint8_t* b, int, int p) {
    return vreinterpretq_f32_u8(vld1q_u8(b + 512 + p * 16));
  }
  [[gnu::always_inline]] static inline float32x4_t pair_minimum(const uint8_t* b, int, int p) {
    return vreinterpretq_f32_u8(vld1q_u8(b + kMinimaAt + p * 16));
  }
  [[gnu::always_inline]] static inline void fill(const uint8_t* from, uint8_t* to) {
    using Source = Direct<W>;
    for (int s = 0; s < W::kSubs; ++s, to += kBytes) {
      fill_quants<W>(from, s, to);
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) {
        vst1q_u8(to + 512 + p * 16, vreinterpretq_u8_f32(Source::pair_scale(from, s, p)));
        if constexpr (kMinima) {
          vst1q_u8(to + kMinimaAt + p * 16, vreinterpretq_u8_f32(Source::pair_minimum(from, s, p)));
        }
      }
    }
  }
};

// Returns the start values of four rows of a token.
[[gnu::always_inline]] static inline float32x4_t start_rows(const Int8Args& a, const float* out,
                                                            int64_t row) {
  float32x4_t v = a.accumulate ? vld1q_f32(out + row) : vdupq_n_f32(0);
  if (a.bias != nullptr) v = vaddq_f32(v, vld1q_f32(a.bias + row));
  return v;
}

// Loads the start values of integer sums: (token 0, token 1) twice. It loads each time because
// copying a register costs as much as a product.
[[gnu::always_inline]] static inline int32x4_t sums_start(const float* m) {
  int32x4_t start;
  asm volatile("ldr %q0, %1" : "=w"(start) : "m"(*reinterpret_cast<const float(*)[4]>(m)));
  return start;
}

// Scales the integer sums of rows 4 quad.. of a sub-block and adds them to `sum`.
template <class W>
[[gnu::always_inline]] static inline void add_rows(const uint8_t* w, int s, int quad,
                                                   int32x4_t rows, float32x4_t dx, float32x4_t mx,
                                                   float32x4_t& sum) {
  sum = vfmaq_f32(sum, vcvtq_f32_s32(rows), vmulq_f32(W::scale(w, s, quad), dx));
  if constexpr (W::kMinima) sum = vfmaq_f32(sum, W::minimum(w, s, quad), mx);
}

// Multiplies one token with the groups at first, first + step, ...: reading from several distant
// places keeps more of the memory busy than one long stream.
template <class Isa, class W, int kStreams>
void one_token(const Int8Args& a, int64_t first, int64_t step) {
  float32x4_t sum[kStreams][4];
  const uint8_t* w[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    w[i] = a.w + (first + i * step) * a.group_bytes;
    for (int quad = 0; quad < 4; ++quad) {
      sum[i][quad] = start_rows(a, a.out, (first + i * step) * 16 + quad * 4);
    }
  }
  const int8_t* q = a.q;
  const float *d = a.d, *m = a.m;
  const auto dot = [](int32x4_t acc, int8x16_t rows, int8x16_t columns) {
    return Isa::template dot<W::kUnsigned>(acc, rows, columns);
  };
  for (int64_t k = 0; k < a.k; k += 32 * W::kSubs) {
    for (int s = 0; s < W::kSubs; ++s) {
      const int8x16_t x[4] = {vld1q_s8(q), vld1q_s8(q + 16), vld1q_s8(q + 32), vld1q_s8(q + 48)};
      const float32x4_t dx = vld1q_f32(d);
      const float32x4_t mx = W::kMinima ? vld1q_f32(m) : dx;
#pragma GCC unroll 4
      for (int i = 0; i < kStreams; ++i) {
        if constexpr (Isa::kMixedSigns && W::kUnsigned) {
          int32x4_t pairs[8];
          for (int p = 0; p < 8; ++p) pairs[p] = Offset<W> ? sums_start(m) : fresh_zero();
          Isa::skewed_dots(W::sub(w[i], s), x, pairs);
#pragma GCC unroll 4
          for (int quad = 0; quad < 4; ++quad) {
            add_rows<W>(w[i], s, quad, Isa::rows(pairs[2 * quad], pairs[2 * quad + 1]), dx, mx,
                        sum[i][quad]);
          }
          continue;
        }
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
          int32x4_t part[2];  // of row pairs
          for (int pair = 0; pair < 2; ++pair) {
            const Operands first8 = W::quants(w[i], s, quad * 2 + pair, 0);
            const Operands second8 = W::quants(w[i], s, quad * 2 + pair, 1);
            part[pair] = Offset<W> ? sums_start(m) : vdupq_n_s32(0);
            part[pair] = dot(dot(part[pair], first8.low, x[0]), second8.low, x[1]);
            part[pair] = dot(dot(part[pair], first8.high, x[2]), second8.high, x[3]);
          }
          add_rows<W>(w[i], s, quad, Isa::rows(part[0], part[1]), dx, mx, sum[i][quad]);
        }
      }
      q += 64;
      d += 4;
      m += 4;
    }
    for (int i = 0; i < kStreams; ++i) w[i] += W::kBytes;
  }
  for (int i = 0; i < kStreams; ++i) {
    for (int quad = 0; quad < 4; ++quad) {
      vst1q_f32(a.out + (first + i * step) * 16 + quad * 4, sum[i][quad]);
    }
  }
}

// Multiplies eight rows (pairs first_pair..) of a group with kPairs token pairs, 32 columns in one
// step.
template <class Isa, class Source, int kPairs>
struct TileSums {
  using Tile = typename Isa::Tile;
  struct Products {
    Tile of[4][kPairs];
  };

  const uint8_t* w;
  const int8_t* q;
  const float *d, *m;
  int first_pair;
  int64_t pair_bytes, pair_floats;  // from one token pair to the next
  float32x4_t sum[4][kPairs];

  // Computes the integer products of block i, one quarter of the columns after the other; between
  // the quarters, the sums of block i - 1 take in `done`. Products wait for each other and sums for
  // products: interleaved, both keep the pipelines busy; one after the other they do not.
  template <bool kFinish>
  [[gnu::always_inline]] inline void multiply(int64_t i, Products& now, const Products& done) {
    const uint8_t* block = w + i / Source::kSubs * Source::kBytes;
    const int s = static_cast<int>(i % Source::kSubs);
    now = {};
    if constexpr (Offset<Source>) {
      for (int p = 0; p < 4; ++p) {
        for (int j = 0; j < kPairs; ++j) {
          now.of[p][j] = sums_start(m + i * 4 + j * pair_floats);
        }
      }
    }
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      typename Isa::Columns x[kPairs];
      for (int j = 0; j < kPairs; ++j) {
        x[j] = Isa::columns(vld1q_s8(q + i * 64 + j * pair_bytes + step * 16));
      }
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const Operands both = Source::quants(block, s, first_pair + p, step % 2);
        for (int j = 0; j < kPairs; ++j) {
          Isa::template multiply<Source::kUnsigned>(now.of[p][j], step < 2 ? both.low : both.high,
                                                    x[j]);
        }
      }
      if constexpr (kFinish) finish(i - 1, step, done);
      asm volatile("" ::: "memory");  // keeps the compiler from undoing the interleaving
    }
  }

  // Adds the products of block i to the sums of row pair p.
  [[gnu::always_inline]] inline void finish(int64_t i, int p, const Products& done) {
    const uint8_t* block = w + i / Source::kSubs * Source::kBytes;
    const int s = static_cast<int>(i % Source::kSubs), pair = first_pair + p;
    const float32x4_t scale = Source::pair_scale(block, s, pair);
    for (int j = 0; j < kPairs; ++j) {
      const int32x4_t rows = Isa::sums(done.of[p][j]);
      const float32x4_t dx = vld1q_f32(d + i * 4 + j * pair_floats);
      sum[p][j] = vfmaq_f32(sum[p][j], vcvtq_f32_s32(rows), vmulq_f32(scale, dx));
      if constexpr (Source::kMinima) {
        const float32x4_t mx = vld1q_f32(m + i * 4 + j * pair_floats);
        sum[p][j] = vfmaq_f32(sum[p][j], Source::pair_minimum(block, s, pair), mx);
      }
    }
  }
  [[gnu::always_inline]] inline void finish_all(int64_t i, const Products& done) {
    for (int p = 0; p < 4; ++p) finish(i, p, done);
  }

  [[gnu::always_inline]] inline void add_blocks(int64_t count) {
    Products even, odd;
    multiply<false>(0, even, odd);
    int64_t i = 1;
    for (; i + 1 < count; i += 2) {
      multiply<true>(i, odd, even);
      multiply<true>(i + 1, even, odd);
    }
    if (i < count) {
      multiply<true>(i, odd, even);
      finish_all(i, odd);
    } else {
      finish_all(count - 1, even);
    }
  }
};

// Computes the tile at `row` and `token`, k in [begin, end); `w` is the group's data from `begin`
// on.
template <class Isa, class Source, int kPairs>
[[gnu::always_inline]] static inline void tile(const Int8Args& a, const uint8_t* w, int64_t row,
                                               int first_pair, int64_t token, int64_t begin,
                                               int64_t end) {
  typename Source::template Sums<Isa, kPairs> sums;
  sums.w = w;
  sums.first_pair = first_pair;
  sums.pair_bytes = a.k * 2;
  sums.pair_floats = a.k / 8;
  sums.q = a.q + token / 2 * sums.pair_bytes + begin * 2;
  sums.d = a.d + token / 2 * sums.pair_floats + begin / 8;
  sums.m = a.m + token / 2 * sums.pair_floats + begin / 8;
  if constexpr (requires { sums.super; }) {
    sums.pair_supers = a.k / 256;
    sums.super = a.super + token / 2 * sums.pair_supers + begin / 256;
  }
  float* out[kPairs][2];
  bool second[kPairs];  // whether the pair's second token exists
  for (int j = 0; j < kPairs; ++j) {
    second[j] = token + 2 * j + 1 < a.tokens;
    out[j][0] = a.out + (token + 2 * j) * a.out_stride + row;
    out[j][1] = second[j] ? out[j][0] + a.out_stride : out[j][0];
    for (int quad = 0; quad < 2; ++quad) {
      float32x4_t v[2];
      for (int t = 0; t < 2; ++t) {
        v[t] = begin == 0 ? start_rows(a, out[j][t] - row, row + quad * 4)
                          : vld1q_f32(out[j][t] + quad * 4);
      }
      sums.sum[quad * 2][j] = vzip1q_f32(v[0], v[1]);
      sums.sum[quad * 2 + 1][j] = vzip2q_f32(v[0], v[1]);
    }
  }
  sums.add_blocks((end - begin) / 32);
  for (int j = 0; j < kPairs; ++j) {
    for (int quad = 0; quad < 2; ++quad) {
      const float32x4_t even = sums.sum[quad * 2][j], odd = sums.sum[quad * 2 + 1][j];
      vst1q_f32(out[j][0] + quad * 4, vuzp1q_f32(even, odd));
      if (second[j]) vst1q_f32(out[j][1] + quad * 4, vuzp2q_f32(even, odd));
    }
  }
}

// Multiplies a group with tokens [first, last), k in [begin, end).
template <class Isa, class Source>
void group_times(const Int8Args& a, const uint8_t* w, int64_t group, int64_t first, int64_t last,
                 int64_t begin, int64_t end) {
  int64_t token = first;
  for (; token + 2 < last; token += 4) {
    tile<Isa, Source, 2>(a, w, group * 16, 0, token, begin, end);
    tile<Isa, Source, 2>(a, w, group * 16 + 8, 4, token, begin, end);
  }
  if (token < last) {
    tile<Isa, Source, 1>(a, w, group * 16, 0, token, begin, end);
    tile<Isa, Source, 1>(a, w, group * 16 + 8, 4, token, begin, end);
  }
}

inline constexpr int64_t kPanelTokens = 8;                  // from here on unpacking first pays
inline constexpr int64_t kSweepBytes = int64_t{512} << 10;  // activations that stay in the L2 cache

template <class Isa, class W, class Source>
void many_tokens(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  const int64_t fit = kSweepBytes / (a.k + a.k / 4) / 4 * 4;
  const int64_t sweep = fit < 32 ? 32 : fit;
  for (int64_t token = 0; token < a.tokens; token += sweep) {
    const int64_t stop = token + sweep < a.tokens ? token + sweep : a.tokens;
    for (int64_t group = first; group < last; ++group) {
      const uint8_t* w = a.w + group * a.group_bytes;
      for (int64_t k = 0; k < a.k; k += kInt8PanelDepth) {
        const int64_t end = k + kInt8PanelDepth < a.k ? k + kInt8PanelDepth : a.k;
        uint8_t* to = panel;
        for (int64_t at = k; at < end; at += 32 * W::kSubs, w += W::kBytes) {
          Source::fill(w, to);
          to += Source::kBlockBytes;
        }
        group_times<Isa, Source>(a, panel, group, token, stop, k, end);
      }
    }
  }
}

template <class Isa, class W>
void run_groups(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  if (a.tokens >= kPanelTokens) return many_tokens<Isa, W, Panel<W>>(a, first, last, panel);
  if (a.tokens > 1) {
    for (int64_t group = first; group < last; ++group) {
      group_times<Isa, Direct<W>>(a, a.w + group * a.group_bytes, group, 0, a.tokens, 0, a.k);
    }
    return;
  }
  constexpr int kStreams = 4;
  const int64_t step = (last - first) / kStreams;
  for (int64_t i = 0; i < step; ++i) one_token<Isa, W, kStreams>(a, first + i, step);
  for (int64_t i = first + step * kStreams; i < last; ++i) one_token<Isa, W, 1>(a, i, 0);
}

}  // namespace
}  // namespace spillway
