// SPDX-License-Identifier: Apache-2.0
// Attention of the many query heads of a KV head over F16 pages, in the arithmetic of halves. The
// file is compiled for it, so it contains nothing else.
//
// Tiles with many query heads are limited by arithmetic, not by memory; the queries of a KV head
// are taken four (a quad) at a time. Softmax raises e to the scores, and with them their errors: so
// products for scores are added to floats. Values are averaged, and so are their errors: halves are
// multiplied eight at a time, twice as fast, and their sums of 16 products, which have 11 bits, are
// added to floats. Converting keys or values for matrix instructions takes longer than these save.
//
// An overflow of halves leaves non-finite numbers in the results. Then, and if keys or values are
// not finite themselves, the cut is done again by the kernel that adds to floats.
#include "cpu/attention/attention_group_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {
namespace {

struct Quad : QuadQueries {
  float* scores;  // [256][4]
  float16_t* p;   // [256][4]
  float16_t* q;   // [columns][4]
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

// Converts the quad's queries to halves, each times a power of two, which its scale takes back.
// Missing queries are zero.
static inline void load_queries(const AttentionArgs& a, const AttentionTile& tile, int64_t columns,
                                Quad& quad) {
  memset(quad.q, 0, static_cast<size_t>(kQuad * columns) * sizeof(float16_t));
  for (int64_t j = 0; j < kQuad; ++j) quad.scale[j] = 0;
  for (int64_t j = 0; j < quad.count; ++j) {
    const float* q = query_at(a, tile, quad.query + j);
    float factor;
    const float inverse = half_range(q, a.head_dim, &factor);
    quad.scale[j] = a.scale * 1.44269504F * inverse;  // powers of two are quicker
    for (int64_t i = 0; i < a.head_dim; ++i) {
      quad.q[i * kQuad + j] = static_cast<float16_t>(q[i] * factor);
    }
  }
}

// ---- Scores ----

// Computes scores [8 keys][4] of a quad for 8 rows: products of an element of a key with that of
// all queries are added to floats, and nothing is summed across lanes. Even and odd elements have
// sums of their own. All loads of keys come first: products that wait for the load before them keep
// others waiting too.
[[gnu::noinline]] static void score_octet(const uint8_t* rows, int64_t stride, const float16_t* q,
                                          int64_t columns, float* scores) {
  float32x4_t even[kOctet], odd[kOctet];
  const float16_t* k[kOctet];
#pragma GCC unroll 8
  for (int r = 0; r < kOctet; ++r) {
    k[r] = reinterpret_cast<const float16_t*>(rows + r * stride);
    even[r] = odd[r] = vdupq_n_f32(0);
  }
#pragma GCC unroll 1
  for (int64_t c = 0; c < columns; c += 8, q += 8 * kQuad) {
    float16x8_t key[kOctet];
#pragma GCC unroll 8
    for (int r = 0; r < kOctet; ++r) key[r] = vld1q_f16(k[r] + c);
    const auto add = [&]<int i>() __attribute__((always_inline)) {
      const float16x8_t x = vld1q_f16(q + 8 * i);
#pragma GCC unroll 8
      for (int r = 0; r < kOctet; ++r) even[r] = vfmlalq_laneq_low_f16(even[r], x, key[r], 2 * i);
#pragma GCC unroll 8
      for (int r = 0; r < kOctet; ++r) {
        odd[r] = vfmlalq_laneq_high_f16(odd[r], x, key[r], 2 * i + 1);
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
  }
#pragma GCC unroll 8
  for (int r = 0; r < kOctet; ++r) vst1q_f32(scores + kQuad * r, vaddq_f32(even[r], odd[r]));
}

// ---- Values ----

[[gnu::always_inline]] static inline float16x8_t fresh_zero() {
  float16x8_t v;
  asm volatile("movi %0.8h, #0" : "=w"(v));
  return v;
}

// Adds x * y[kLane] to sum. With intrinsics g++ 12 spreads lanes over registers of their own and
// moves sums between them, at half the speed.
template <int kLane>
[[gnu::always_inline]] static inline void add_scaled(float16x8_t& sum, float16x8_t x,
                                                     float16x8_t y) {
  asm("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(sum) : "w"(x), "x"(y), "i"(kLane));
}

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
    float16x8_t x[2][V];  // loaded before any product, as keys are
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

// Returns false if the range of halves does not suffice.
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
      for (int64_t token = 0; token < kPageTokens; token += kOctet) {
        for (int64_t i = 0; i < quads.per_head; ++i) {
          const Quad& quad = quads.quad[h * quads.per_head + i];
          score_octet(rows.at + token * rows.stride, rows.stride, quad.q, columns,
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
