// SPDX-License-Identifier: Apache-2.0
// Attention of the many query heads of a kv head over F16 pages, in the arithmetic of halves;
// compiled for it, so nothing else here.
//
// Such tiles wait for arithmetic, not for memory. Halves multiply eight at a time, twice as many as
// products added to floats, but their sums have 11 bits: sums are kept short and then added to
// floats. Of eight products, the error of a score is about three times that of having rounded the
// keys to halves. Converting keys for matrix instructions takes longer than these save.
//
// The queries of a kv head are taken four (a quad) at a time. Overflow of halves leaves something
// that is not finite in scores or results; then, and where keys or values are such themselves, the
// cut is done again by the kernel that adds to floats.
#include "cpu/attention_group_inl.h"
#include "cpu/attention_kernels.h"

namespace spillway {
namespace {

constexpr int64_t kChainColumns = 64;                             // of sums in halves: 8 vectors
constexpr float kDownToQuery = 1.0F / 1024, kUpFromQuery = 1024;  // largest element: 16 to 32

struct Quad : QuadQueries {
  float* scores;  // [256][4]
  float16_t* p;   // [256][4]
  float16_t* q;   // [4][columns]
  float scale[kQuad];
};
struct Quads {
  Quad quad[kTilePlaces / kQuad];
  int64_t per_head, count;
};

static inline Quads make_quads(const AttentionTile& tile, int64_t queries_per_head, int64_t columns,
                               float* memory) {
  Quads all;
  all.per_head = quads_of(queries_per_head);
  all.count = tile.heads * all.per_head;
  for (int64_t n = 0; n < all.count; ++n) {
    Quad& quad = all.quad[n];
    static_cast<QuadQueries&>(quad) = quad_queries(n, queries_per_head);
    quad.scores = memory;
    quad.p = reinterpret_cast<float16_t*>(quad.scores + kQuad * kSplitKeys);
    quad.q = quad.p + kQuad * kSplitKeys;
    memory = reinterpret_cast<float*>(quad.q + kQuad * columns);
  }
  return all;
}

// The quad's queries as halves, each times a power of two; its scale takes that back. Missing ones
// are zero.
static inline void load_queries(const AttentionArgs& a, const AttentionTile& tile, int64_t columns,
                                Quad& quad) {
  memset(quad.q, 0, static_cast<size_t>(kQuad * columns) * sizeof(float16_t));
  for (int64_t j = 0; j < kQuad; ++j) quad.scale[j] = 0;
  for (int64_t j = 0; j < quad.count; ++j) {
    const float* q = query_at(a, tile, quad.query + j);
    float factor;
    const float inverse = half_range(q, a.head_dim, &factor);
    quad.scale[j] = a.scale * 1.44269504F * (inverse * kUpFromQuery);  // powers of two are quicker
    factor *= kDownToQuery;
    round_halves(q, a.head_dim, factor, quad.q + j * columns);
  }
}

// ---- Scores ----

[[gnu::always_inline]] static inline float16x8_t fresh_zero() {
  float16x8_t v;
  asm volatile("movi %0.8h, #0" : "=w"(v));
  return v;
}

// sum += x * y, and x * y[kLane]. With intrinsics g++ 12 spreads lanes over registers of their own
// and moves sums about, at half the speed.
[[gnu::always_inline]] static inline void add_product(float16x8_t& sum, float16x8_t x,
                                                      float16x8_t y) {
  asm("fmla %0.8h, %1.8h, %2.8h" : "+w"(sum) : "w"(x), "w"(y));
}
template <int kLane>
[[gnu::always_inline]] static inline void add_scaled(float16x8_t& sum, float16x8_t x,
                                                     float16x8_t y) {
  asm("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(sum) : "w"(x), "x"(y), "i"(kLane));
}

// The sums of all lanes of each of four vectors.
[[gnu::always_inline]] static inline float32x4_t sum_lanes(const float16x8_t* x) {
  const float16x8_t pairs = vpaddq_f16(vpaddq_f16(x[0], x[1]), vpaddq_f16(x[2], x[3]));
  const float16x8_t ones = vdupq_n_f16(1);
  const float32x4_t zero = vdupq_n_f32(0);
  return vpaddq_f32(vfmlalq_low_f16(zero, pairs, ones), vfmlalq_high_f16(zero, pairs, ones));
}

// Scores [4 keys][4] of a quad for four rows.
[[gnu::noinline]] static void score_rows(const uint8_t* rows, int64_t stride, const float16_t* q,
                                         int64_t columns, float* scores) {
  const float16_t* k[kQuad];
#pragma GCC unroll 4
  for (int r = 0; r < kQuad; ++r) k[r] = reinterpret_cast<const float16_t*>(rows + r * stride);
  const float16_t *q0 = q, *q1 = q + columns, *q2 = q + 2 * columns, *q3 = q + 3 * columns;
#pragma GCC unroll 1
  for (int64_t from = 0; from < columns; from += kChainColumns) {
    float16x8_t sum[kQuad][kQuad];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) sum[r][i] = fresh_zero();
    }
    const int64_t end = smaller(from + kChainColumns, columns);
#pragma GCC unroll 1
    for (int64_t c = from; c < end; c += 8) {
      // All loads come first: products that wait for the load before them keep others waiting too.
      const float16x8_t x[kQuad] = {vld1q_f16(q0 + c), vld1q_f16(q1 + c), vld1q_f16(q2 + c),
                                    vld1q_f16(q3 + c)};
      const float16x8_t key[kQuad] = {vld1q_f16(k[0] + c), vld1q_f16(k[1] + c), vld1q_f16(k[2] + c),
                                      vld1q_f16(k[3] + c)};
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < kQuad; ++i) add_product(sum[r][i], key[r], x[i]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      float32x4_t score = sum_lanes(sum[r]);
      if (from > 0) score = vaddq_f32(score, vld1q_f32(scores + r * kQuad));
      vst1q_f32(scores + r * kQuad, score);
    }
  }
}

// ---- Values ----

// Adds a page's 16 keys to the results of `count` queries in V vectors of 8 columns.
template <int V>
[[gnu::noinline]] static void add_rows(const uint8_t* rows, int64_t stride, const float16_t* p,
                                       int64_t count, float* out, int64_t out_stride) {
  float16x8_t sum[kQuad][V];
#pragma GCC unroll 4
  for (int i = 0; i < kQuad; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[i][v] = fresh_zero();
  }
#pragma GCC unroll 1
  for (int64_t token = 0; token < kPageTokens; token += 2, p += 2 * kQuad) {
    const float16x8_t weight = vld1q_f16(p);
    float16x8_t x[2][V];  // loaded before any product, as above
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t, rows += stride) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        x[t][v] = vld1q_f16(reinterpret_cast<const float16_t*>(rows) + 8 * v);
      }
    }
    const auto add = [&]<int t>() __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        add_scaled<4 * t>(sum[0][v], x[t][v], weight);
        add_scaled<4 * t + 1>(sum[1][v], x[t][v], weight);
        add_scaled<4 * t + 2>(sum[2][v], x[t][v], weight);
        add_scaled<4 * t + 3>(sum[3][v], x[t][v], weight);
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
  }
  const float16x8_t unit = vdupq_n_f16(1.0F / (1 << kProbabilityBits));
#pragma GCC unroll 4
  for (int i = 0; i < kQuad; ++i) {
    if (i >= count) break;
    float* to = out + i * out_stride;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      vst1q_f32(to + 8 * v, vfmlalq_low_f16(vld1q_f32(to + 8 * v), sum[i][v], unit));
      vst1q_f32(to + 8 * v + 4, vfmlalq_high_f16(vld1q_f32(to + 8 * v + 4), sum[i][v], unit));
    }
  }
}

static inline bool all_finite(const float* x, int64_t n) {
  float32x4_t check = vdupq_n_f32(0);
  const float32x4_t zero = check;
  for (int64_t i = 0; i < n; i += 4) check = vfmaq_f32(check, vld1q_f32(x + i), zero);
  return vaddvq_f32(check) == 0;
}

// False where halves do not do.
static bool try_attend(const AttentionArgs& a, const AttentionTile& tile, const CutRange& range,
                       const AttentionPartial& result, float* scratch) {
  const int64_t per_head = tile.rows * a.group, queries = tile.heads * per_head;
  const int64_t columns = (a.head_dim + 7) / 8 * 8;
  auto* padded = reinterpret_cast<uint8_t*>(scratch);  // [16, columns]
  Quads quads = make_quads(tile, per_head, columns, scratch + kPageTokens * columns / 2);
  for (int64_t i = 0; i < quads.count; ++i) load_queries(a, tile, columns, quads.quad[i]);
  const CutPages pages = cut_pages(tile, range);
  for (int64_t page = pages.first; page < pages.end; ++page) {
    for (int64_t h = 0; h < tile.heads; ++h) {
      const PageRows rows =
          page_rows(a, page_at(a, tile, pages, a.k, page, h), 2 * columns, 0, kPageTokens, padded);
      for (int64_t token = 0; token < kPageTokens; token += kQuad) {
        for (int64_t i = 0; i < quads.per_head; ++i) {
          const Quad& quad = quads.quad[h * quads.per_head + i];
          score_rows(rows.at + token * rows.stride, rows.stride, quad.q, columns,
                     quad.scores + (page * kPageTokens + token) * kQuad);
        }
      }
    }
  }
  for (int64_t i = 0; i < quads.count; ++i) {
    const Quad& quad = quads.quad[i];
    const bool finite = softmax(
        a, tile, range, quad, quad.scale, quad.scores,
        result, [&](int64_t key, const float16x8_t* p) __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int n = 0; n < 4; ++n) {
            vst1q_f16(quad.p + key * kQuad + 8 * n, p[n]);
          }
        });
    if (!finite) return false;
  }
  for (int64_t page = pages.first; page < pages.end; ++page) {
    const int64_t first = page * kPageTokens;
    for (int64_t h = 0; h < tile.heads; ++h) {
      const PageRows rows = page_rows(a, page_at(a, tile, pages, a.v, page, h), 2 * columns,
                                      range.first - first, range.end - first, padded);
      for (int64_t i = 0; i < quads.per_head; ++i) {
        const Quad& quad = quads.quad[h * quads.per_head + i];
        float* out = result.out + quad.query * a.padded_dim;
        int64_t c = 0;
        for (; c + 32 <= columns; c += 32) {
          add_rows<4>(rows.at + 2 * c, rows.stride, quad.p + first * kQuad, quad.count, out + c,
                      a.padded_dim);
        }
        for (; c < columns; c += 8) {
          add_rows<1>(rows.at + 2 * c, rows.stride, quad.p + first * kQuad, quad.count, out + c,
                      a.padded_dim);
        }
      }
    }
  }
  return all_finite(result.out, queries * a.padded_dim);
}

static void attend_group(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  const int64_t per_head = tile.rows * a.group, queries = tile.heads * per_head;
  const CutRange range = cut_range(a, tile, split);
  if (per_head >= kFewestQueries && range.first < range.end) {
    memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
    if (try_attend(a, tile, range, result, scratch)) return;
  }
  kAttendHalfFp16fml(a, tile, split, result, scratch);
}

}  // namespace

constinit const AttendSplit kAttendGroupHalfFp16fml = attend_group;

}  // namespace spillway
