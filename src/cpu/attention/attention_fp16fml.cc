// SPDX-License-Identifier: Apache-2.0
// Attention over F16 pages with products of halves added to floats. The file is compiled for it, so
// it contains nothing else. Converting to F32 first would run at one vector per cycle, below the
// memory's speed.
#include "cpu/attention/attention_arm_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {
namespace {

constexpr float kProbabilityScale = 32768;  // keeps small probabilities in the range of halves

// Converts the query to halves after multiplying it by a power of two, which is exact except for
// the rounding. Returns the inverse of that power.
static inline float round_query(const float* q, int64_t head_dim, int64_t columns, float16_t* out) {
  float factor;
  const float inverse = half_range(q, head_dim, &factor);
  round_halves(q, head_dim, factor, out);
  for (int64_t i = head_dim; i < columns; ++i) out[i] = 0;
  return inverse;
}

[[gnu::always_inline]] static inline void add_dot(float32x4_t& acc, float16x8_t k, float16x8_t q) {
  acc = vfmlalq_low_f16(acc, k, q);
  acc = vfmlalq_high_f16(acc, k, q);
}
[[gnu::always_inline]] static inline float32x4_t sum4(float32x4_t a, float32x4_t b, float32x4_t c,
                                                      float32x4_t d) {
  return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
}

// Computes scores of Q queries for the R rows of octets `first` and (if R is 16) `second`, with Q *
// R = 16 sums in registers.
template <int Q, int R>
static inline void score_rows(const BlockRows& rows, int64_t first, int64_t second,
                              const float16_t* q, int64_t columns, float* scores) {
  float32x4_t acc[Q][R];
  const float16_t* k[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    k[r] = reinterpret_cast<const float16_t*>(row_at(rows, r < 8 ? first : second, r % 8));
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) acc[i][r] = vdupq_n_f32(0);
  }
  for (int64_t c = 0; c < columns; c += 8) {
    float16x8_t x[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) x[i] = vld1q_f16(q + i * columns + c);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float16x8_t key = vld1q_f16(k[r] + c);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) add_dot(acc[i][r], key, x[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 4) {
      vst1q_f32(scores + i * kSplitKeys + (r < 8 ? first : second) * kOctet + r % 8,
                sum4(acc[i][r], acc[i][r + 1], acc[i][r + 2], acc[i][r + 3]));
    }
  }
}

// Does the same if each query head has its own KV head (group 1), where keys are read once: whole
// lines of one row per page at a time, which the processor's prefetching recognizes. It takes R = 4
// / Q rows, of pages `page` on, and four sums for each.
template <int Q>
static inline void score_lines(const BlockRows& rows, int64_t page, int64_t token,
                               const float16_t* q, int64_t columns, float* scores) {
  constexpr int R = 4 / Q;
  float32x4_t acc[Q][R][4];
  const float16_t* k[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    k[r] = reinterpret_cast<const float16_t*>(rows.page[page + r] + token * rows.stride);
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) acc[i][r][n] = vdupq_n_f32(0);
    }
  }
  int64_t c = 0;
#pragma GCC unroll 1
  for (; c + 32 <= columns; c += 32) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const float16x8_t key = vld1q_f16(k[r] + c + 8 * n);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          add_dot(acc[i][r][n], key, vld1q_f16(q + i * columns + c + 8 * n));
        }
      }
    }
  }
  for (; c < columns; c += 8) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float16x8_t key = vld1q_f16(k[r] + c);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) add_dot(acc[i][r][0], key, vld1q_f16(q + i * columns + c));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float32x4_t* four = acc[i][r];
      const float32x4_t sum = vaddq_f32(vaddq_f32(four[0], four[1]), vaddq_f32(four[2], four[3]));
      scores[i * kSplitKeys + (page + r) * kPageTokens + token] = vaddvq_f32(sum);
    }
  }
}

// Adds to out[i] the sum over the 8 rows of an octet of p[i] * row, for Q queries and V vectors of
// 8 columns.
template <int Q, int V>
static inline void add_rows(const BlockRows& rows, int64_t first, int64_t end, const float16_t* p,
                            int64_t column, float* out, int64_t out_stride) {
  float32x4_t acc[Q][2 * V];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < 2 * V; ++v) acc[i][v] = vld1q_f32(out + i * out_stride + 4 * v);
  }
#pragma GCC unroll 1
  for (int64_t octet = first; octet < end; ++octet) {
    const uint8_t* base = row_at(rows, octet, 0);
    float16x8_t weight[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) weight[i] = vld1q_f16(p + i * kSplitKeys + octet * kOctet);
    const auto add = [&]<int kLane>() __attribute__((always_inline)) {
      const auto* row = reinterpret_cast<const float16_t*>(base + kLane * rows.stride) + column;
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const float16x8_t x = vld1q_f16(row + 8 * v);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          acc[i][2 * v] = vfmlalq_laneq_low_f16(acc[i][2 * v], x, weight[i], kLane);
          acc[i][2 * v + 1] = vfmlalq_laneq_high_f16(acc[i][2 * v + 1], x, weight[i], kLane);
        }
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
    add.template operator()<4>();
    add.template operator()<5>();
    add.template operator()<6>();
    add.template operator()<7>();
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < 2 * V; ++v) vst1q_f32(out + i * out_stride + 4 * v, acc[i][v]);
  }
}

template <int Q, int V>
static inline void add_block(const BlockRows& rows, const float16_t* p, int64_t columns, float* out,
                             int64_t out_stride) {
  // One query is limited by memory: it takes all columns of an octet before the next, as they are
  // stored. Many are limited by sums: they keep theirs in registers over the block. Both add in the
  // same order.
  constexpr int64_t kStep = Q == 1 ? 1 : kOctets;
  for (int64_t octet = 0; octet < kOctets; octet += kStep) {
    int64_t c = 0;
    for (; c + 8 * V <= columns; c += 8 * V) {
      add_rows<Q, V>(rows, octet, octet + kStep, p, c, out + c, out_stride);
    }
    for (; c < columns; c += 8) {
      add_rows<Q, 1>(rows, octet, octet + kStep, p, c, out + c, out_stride);
    }
  }
}

// Loads a block's pages into the nearest cache, line by line in four streams. Kernels that go over
// a block several times, a part of each row at a time, would miss in an order that the processor
// does not predict. These are plain loads; prefetch instructions changed nothing on Neoverse V1.
static inline void load_lines(const AttentionArgs& a, const BlockPages& pages) {
  for (int64_t at = 0; at < a.layout.bytes; at += 64) {
    for (int64_t i = 0; i < kBlockPages; ++i) {
      asm volatile("ldr xzr, [%0]" ::"r"(pages.page[i] + at));
    }
  }
}

static void attend_half(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                        const AttentionPartial& result, float* scratch) {
  const int64_t per_head = tile.rows * a.group, queries = tile.heads * per_head;
  const int64_t columns = (a.head_dim + 7) / 8 * 8;
  float* scores = scratch;                                                     // [queries, 256]
  auto* p = reinterpret_cast<float16_t*>(scores + kTileQueries * kSplitKeys);  // [queries, 256]
  float16_t* q = p + kTileQueries * kSplitKeys;                                // [queries, columns]
  auto* padded = reinterpret_cast<uint8_t*>(q + kTileQueries * a.padded_dim);  // [64, columns]
  float inverse[kTileQueries];
  for (int64_t i = 0; i < queries; ++i) {
    inverse[i] = round_query(query_at(a, tile, i), a.head_dim, columns, q + i * columns);
  }
  memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
  const CutRange range = cut_range(a, tile, split);
  if (range.first >= range.end) {
    for (int64_t i = 0; i < queries; ++i) result.maximum[i] = kNoScore, result.sum[i] = 0;
    return;
  }
  for (int64_t block = range.first_block; block < range.end_block; ++block) {
    BlockPages pages = block_pages(a, tile, range, a.k, block);
    for (int64_t h = 0; h < tile.heads; ++h, next_head(a, pages)) {
      if (per_head > 1) load_lines(a, pages);
      const BlockRows rows = block_rows(a, pages, 2 * columns, 0, kBlockKeys, padded);
      const int64_t end = (h + 1) * per_head;
      if (a.group == 1) {
        float* at = scores + block * kBlockKeys;
        for (int64_t token = 0; token < kPageTokens; ++token) {
          int64_t i = h * per_head;
          for (; i + 2 <= end; i += 2) {
            score_lines<2>(rows, 0, token, q + i * columns, columns, at + i * kSplitKeys);
            score_lines<2>(rows, 2, token, q + i * columns, columns, at + i * kSplitKeys);
          }
          for (; i < end; ++i) {
            score_lines<1>(rows, 0, token, q + i * columns, columns, at + i * kSplitKeys);
          }
        }
        continue;
      }
      for (int64_t o = 0; o < kOctets; o += 2) {
        const int64_t first = kOctetOrder[o], second = kOctetOrder[o + 1];
        float* at = scores + block * kBlockKeys;
        int64_t i = h * per_head;
        for (; i + 2 <= end; i += 2) {
          score_rows<2, 8>(rows, first, first, q + i * columns, columns, at + i * kSplitKeys);
          score_rows<2, 8>(rows, second, second, q + i * columns, columns, at + i * kSplitKeys);
        }
        for (; i < end; ++i) {
          score_rows<1, 16>(rows, first, second, q + i * columns, columns, at + i * kSplitKeys);
        }
      }
    }
  }
  const int64_t from = range.first_block * kBlockKeys, to = range.end_block * kBlockKeys;
  for (int64_t i = 0; i < queries; ++i) {
    float* row = scores + i * kSplitKeys;
    softmax_query(a, tile, range, i, a.scale * inverse[i], row, result);
    for (int64_t j = from; j < to; j += 4) {
      const float32x4_t scaled = vmulq_n_f32(vld1q_f32(row + j), kProbabilityScale);
      vst1_f16(p + i * kSplitKeys + j, vcvt_f16_f32(scaled));
    }
  }
  for (int64_t block = range.first_block; block < range.end_block; ++block) {
    BlockPages pages = block_pages(a, tile, range, a.v, block);
    for (int64_t h = 0; h < tile.heads; ++h, next_head(a, pages)) {
      if (per_head > 1) load_lines(a, pages);
      const BlockRows rows = block_rows(a, pages, 2 * columns, range.first - block * kBlockKeys,
                                        range.end - block * kBlockKeys, padded);
      const auto add = [&]<int Q, int V>(int64_t i) __attribute__((always_inline)) {
        add_block<Q, V>(rows, p + i * kSplitKeys + block * kBlockKeys, columns,
                        result.out + i * a.padded_dim, a.padded_dim);
      };
      const int64_t end = (h + 1) * per_head;
      int64_t i = h * per_head;
      for (; i + 4 <= end; i += 4) add.template operator()<4, 2>(i);
      for (; i + 2 <= end; i += 2) add.template operator()<2, 4>(i);
      for (; i < end; ++i) add.template operator()<1, 8>(i);
    }
  }
  for (int64_t c = 0; c < queries * a.padded_dim; ++c) result.out[c] *= 1 / kProbabilityScale;
}

}  // namespace

constinit const AttendSplit kAttendHalfFp16fml = attend_half;

}  // namespace spillway
