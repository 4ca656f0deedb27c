// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/attention_topk.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "cpu/attention/select_top.h"
#include "cpu/parallel.h"
#include "device/sparse_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/attention_topk.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/attention/attention_pieces_inl.h"

#ifndef SPILLWAY_CPU_ATTENTION_TOPK_ONCE_
#define SPILLWAY_CPU_ATTENTION_TOPK_ONCE_
namespace spillway {

// A worker's scratch memory for the queries of one KV head of one row. Keys count from the page
// that holds the first visible one.
struct TopKScratch {
  float* queries;      // [group, padded_dim]
  float* cut;          // [group, kSplitKeys]
  float* rows;         // [16, padded_dim]
  float* out;          // [padded_dim]
  float* scores;       // [group, stride]
  float* weights;      // [stride]
  int32_t* chosen;     // [stride]
  int64_t stride;      // keys of the longest row, rounded up to whole pages and one more
  int64_t first_page;  // of the current row
};

}  // namespace spillway
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Computes scores[i][key] of query i for all keys of pages [s.first_page, end of the tile's keys).
static void score_keys(const AttentionArgs& a, const AttentionTile& tile, const TopKScratch& s) {
  const int64_t dim = a.padded_dim;
  constexpr int64_t kCutPages = kSplitKeys / kPageTokens;
  const int64_t end_page = (tile.end_key() + kPageTokens - 1) / kPageTokens;
  load_queries(a, tile, s.queries);
  if (a.head_dim != dim) memset(s.rows, 0, static_cast<size_t>(kPageTokens * dim) * sizeof(float));
  const bool direct = is_half(a.layout.type) && a.head_dim == dim && a.group <= 4;
  for (int64_t first = s.first_page; first < end_page; first += kCutPages) {
    const int64_t pages = HWY_MIN(kCutPages, end_page - first);
    for (int64_t n = 0; n < pages; ++n) {
      const uint8_t* page = a.page(a.k, tile.blocks[first + n], tile.kv_head);
      float* at = s.cut + n * kPageTokens;
      if (direct) {
        with_half_rows(a.layout.type, [&]<class Rows>() HWY_ATTR {
          score_page<Rows>(s.queries, a.group, dim, reinterpret_cast<const uint16_t*>(page), at);
        });
      } else {
        score_page<FloatRows>(s.queries, a.group, dim,
                              page_floats(a, KvPart::kKeys, page, kPageTokens, s.rows), at);
      }
    }
    for (int64_t i = 0; i < a.group; ++i) {
      memcpy(s.scores + i * s.stride + (first - s.first_page) * kPageTokens, s.cut + i * kSplitKeys,
             static_cast<size_t>(pages * kPageTokens) * sizeof(float));
    }
  }
}

// Converts one token's values [head_dim] to floats.
static HWY_INLINE void value_floats(const AttentionArgs& a, const uint8_t* page, int64_t token,
                                    float* HWY_RESTRICT out) {
  const KvPageLayout& layout = a.layout;
  const uint8_t* row = page + layout.codes_at + token * layout.row_bytes;
  if (layout.type == KvType::kF32) {
    memcpy(out, row, static_cast<size_t>(layout.row_bytes));
    return;
  }
  if (is_half(layout.type)) return half_floats(layout.type, row, a.head_dim, out);
  HWY_ALIGN uint8_t codes[256];
  const uint8_t* first = page + layout.code_at(KvPart::kValues, token, 0);
  for (int64_t i = 0; i < layout.row_bytes; i += 2) {
    codes[i] = first[i * 16];
    codes[i + 1] = first[i * 16 + 8];
  }
  const bool int4 = layout.type == KvType::kInt4;
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t at = 2 * (g * kPageTokens + token);
    group_floats(layout.type, codes + g * (int4 ? kKvGroup / 2 : kKvGroup), half_at(page + at),
                 int4 ? half_at(page + layout.mins_at + at) : 0, layout.group_size(g),
                 out + g * kKvGroup);
  }
}

// Prefetches the values of a key if they are plain; quantized ones are spread over their page.
static HWY_INLINE void fetch_values(const AttentionArgs& a, const AttentionTile& tile,
                                    int64_t key) {
  if (is_quantized(a.layout.type)) return;
  const uint8_t* row =
      values_page(a, tile, key, tile.kv_head) + key % kPageTokens * a.layout.row_bytes;
  for (int64_t at = 0; at < a.layout.row_bytes; at += 64) hwy::Prefetch(row + at);
}

// Computes attention of query `i` to keys chosen[0, k), which have s.weights as scores.
static void attend_chosen(const AttentionArgs& a, const AttentionTile& tile, const TopKScratch& s,
                          int64_t i, int64_t k) {
  const int64_t dim = a.padded_dim;
  float maximum, sum;
  softmax_part(s.weights, 0, k, a.scale, &maximum, &sum);
  memset(s.out, 0, static_cast<size_t>(dim) * sizeof(float));
  if (a.head_dim != dim) memset(s.rows, 0, static_cast<size_t>(kPageTokens * dim) * sizeof(float));
  for (int64_t begin = 0; begin < k; begin += kPageTokens) {
    const int64_t count = HWY_MIN(kPageTokens, k - begin);
    // Entries are anywhere, so those of the next round are prefetched while this one is added up.
    for (int64_t j = begin + count; j < HWY_MIN(begin + count + kPageTokens, k); ++j) {
      fetch_values(a, tile, s.first_page * kPageTokens + s.chosen[j]);
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t key = s.first_page * kPageTokens + s.chosen[begin + j];
      value_floats(a, values_page(a, tile, key, tile.kv_head), key % kPageTokens, s.rows + j * dim);
    }
    add_values<1, FloatRows>(s.weights + begin, s.rows, count, dim, s.out);
  }
  const float inverse = 1 / sum;
  float* HWY_RESTRICT out =
      a.out + tile.first_row * a.out_stride + (tile.kv_head * a.group + i) * a.head_dim;
  for (int64_t c = 0; c < a.head_dim; ++c) out[c] = s.out[c] * inverse;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(score_keys);
HWY_EXPORT(attend_chosen);

namespace cpu {
namespace {

int64_t first_page_of(const AttentionArgs& a, const AttentionTile& tile) {
  return tile.first_key(a.window) / kPageTokens;
}

// Returns the floats of scratch memory, each array in whole cache lines; `stride` is that of rows
// of scores.
size_t scratch_floats(const AttentionArgs& a, int64_t stride) {
  const int64_t dim = a.padded_dim;
  return static_cast<size_t>(a.group * (dim + kSplitKeys + stride) + (kPageTokens + 1) * dim +
                             2 * stride);
}
TopKScratch scratch_at(float* memory, const AttentionArgs& a, int64_t stride, int64_t first_page) {
  const int64_t dim = a.padded_dim;
  float* const cut = memory + a.group * dim;
  float* const rows = cut + a.group * kSplitKeys;
  float* const out = rows + kPageTokens * dim;
  float* const scores = out + dim;
  float* const weights = scores + a.group * stride;
  return {
      memory, cut,       rows, out, scores, weights, reinterpret_cast<int32_t*>(weights + stride),
      stride, first_page};
}

// Computes all query heads of one KV head of one row; returns how many entries of V they have read.
int64_t attend_kv_head(const AttentionArgs& a, const AttentionTile& tile, float share,
                       const TopKScratch& s) {
  HWY_DYNAMIC_DISPATCH(score_keys)(a, tile, s);
  const int64_t first = tile.first_key(a.window), keys = tile.end_key() - first;
  const auto skipped = static_cast<int32_t>(first - s.first_page * kPageTokens);
  const int64_t k = attended_keys(share, keys);
  for (int64_t i = 0; i < a.group; ++i) {
    const float* scores = s.scores + i * s.stride + skipped;
    // s.weights is free until the weights are written below.
    select_top(scores, keys, k, s.chosen, reinterpret_cast<uint32_t*>(s.weights));
    for (int64_t j = 0; j < k; ++j) {
      s.weights[j] = scores[s.chosen[j]];
      s.chosen[j] += skipped;
    }
    HWY_DYNAMIC_DISPATCH(attend_chosen)(a, tile, s, i, k);
  }
  return a.group * k;
}

}  // namespace

int64_t attend_top_k(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a, float share,
                     std::span<const SequenceSpan> spans) {
  int64_t longest = 0, work = 0;
  const auto tile_of = [&](int64_t item) {
    const SequenceSpan& span = spans[static_cast<size_t>(item / a.kv_heads)];
    return AttentionTile{.blocks = span.block_table.data(),
                         .first_row = span.first_row,
                         .position = span.start,
                         .rows = 1,
                         .kv_head = item % a.kv_heads,
                         .home = span.home.data(),
                         .home_pages = static_cast<int64_t>(span.home.size())};
  };
  const auto items = static_cast<int64_t>(spans.size()) * a.kv_heads;
  for (int64_t item = 0; item < items; item += a.kv_heads) {
    SPW_ASSERT(spans[static_cast<size_t>(item / a.kv_heads)].rows == 1);
    const AttentionTile tile = tile_of(item);
    const int64_t keys = tile.end_key() - tile.first_key(a.window);
    longest = std::max(longest, keys);
    work += keys * a.kv_heads * a.group * a.head_dim;
  }
  const int64_t stride = (longest + kPageTokens - 1) / kPageTokens * kPageTokens + kPageTokens;
  workspace.reserve_workers(scratch_floats(a, stride));
  std::atomic<int64_t> entries = 0;
  parallel_if_large(pool, work, items, 1, [&](int64_t begin, int64_t end, int worker) {
    int64_t read = 0;
    for (int64_t item = begin; item < end; ++item) {
      const AttentionTile tile = tile_of(item);
      read += attend_kv_head(
          a, tile, share, scratch_at(workspace.worker(worker), a, stride, first_page_of(a, tile)));
    }
    entries += read;
  });
  return entries;
}

}  // namespace cpu
}  // namespace spillway
#endif
