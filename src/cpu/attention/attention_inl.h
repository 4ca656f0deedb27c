// SPDX-License-Identifier: Apache-2.0
// The kernels of attention: one tile of queries against one cut of the keys, merging, finishing.
#if defined(SPILLWAY_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_INL_H_
#undef SPILLWAY_CPU_ATTENTION_INL_H_
#else
#define SPILLWAY_CPU_ATTENTION_INL_H_
#endif

#include "cpu/attention/attention_pieces_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// The keys of the cut at `base` that row r of a tile attends to: [begin, end), relative to `base`.
struct Seen {
  int64_t begin, end;
};
HWY_INLINE Seen seen_by(const AttentionArgs& a, const AttentionTile& tile, int64_t base,
                        int64_t row) {
  const int64_t position = tile.position + row;
  const int64_t first = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
  return {HWY_MAX(first, base) - base, HWY_MIN(position + 1, base + kSplitKeys) - base};
}

// Adds one page's values, keys [page_begin, page_end) of the cut, to the outputs of all queries.
// Each query adds its visible keys only, in ascending order.
template <class Rows>
HWY_INLINE void add_page(const AttentionArgs& a, const AttentionTile& tile, int64_t base,
                         int64_t page_begin, int64_t page_end, const typename Rows::Element* values,
                         const float* scores, float* out) {
  const int64_t queries = tile.rows * a.group, dim = a.padded_dim;
  const auto add_one = [&](int64_t query, int64_t begin, int64_t end) HWY_ATTR {
    if (begin >= end) return;
    add_values<1, Rows>(scores + query * kSplitKeys + begin, values + (begin - page_begin) * dim,
                        end - begin, dim, out + query * dim);
  };
  const auto add_some = [&](int64_t query, int64_t count, int64_t begin, int64_t end) HWY_ATTR {
    const float* p = scores + query * kSplitKeys + begin;
    const auto* v = values + (begin - page_begin) * dim;
    if (count == 4) add_values<4, Rows>(p, v, end - begin, dim, out + query * dim);
    if (count == 3) add_values<3, Rows>(p, v, end - begin, dim, out + query * dim);
    if (count == 2) add_values<2, Rows>(p, v, end - begin, dim, out + query * dim);
    if (count == 1) add_values<1, Rows>(p, v, end - begin, dim, out + query * dim);
  };
  for (int64_t i = 0; i < queries; i += 4) {
    const int64_t count = HWY_MIN(int64_t{4}, queries - i);
    // All of these queries attend to [begin, end); further keys of single ones come before or
    // after.
    const Seen first = seen_by(a, tile, base, i / a.group);
    const Seen last = seen_by(a, tile, base, (i + count - 1) / a.group);
    const int64_t begin = HWY_MAX(last.begin, page_begin), end = HWY_MIN(first.end, page_end);
    if (begin < end) {
      if (first.begin < begin) {
        for (int64_t c = i; c < i + count; ++c) {
          add_one(c, HWY_MAX(seen_by(a, tile, base, c / a.group).begin, page_begin), begin);
        }
      }
      add_some(i, count, begin, end);
      if (last.end > end) {
        for (int64_t c = i; c < i + count; ++c) {
          add_one(c, end, HWY_MIN(seen_by(a, tile, base, c / a.group).end, page_end));
        }
      }
    } else {
      for (int64_t c = i; c < i + count; ++c) {
        const Seen seen = seen_by(a, tile, base, c / a.group);
        add_one(c, HWY_MAX(seen.begin, page_begin), HWY_MIN(seen.end, page_end));
      }
    }
  }
}

// Prefetches a page: pages are far apart, where hardware prefetching does not help. Only x86
// processors gain from this; ARM's do not.
HWY_INLINE void prefetch_page(const AttentionArgs& a, const AttentionTile& tile,
                              const uint8_t* plane, int64_t n, int64_t end_page) {
#if HWY_ARCH_X86
  if (n >= end_page) return;
  const uint8_t* page = a.page(plane, tile.blocks[n], tile.kv_head);
  for (int64_t i = 0; i < a.layout.bytes; i += 64) __builtin_prefetch(page + i);
#else
  (void)a, (void)tile, (void)plane, (void)n, (void)end_page;
#endif
}

// Attends the queries of `tile`, which has one KV head, to keys [split * 256, split * 256 + 256)
// and writes to `result`. `scratch` has split_scratch_floats().
void attend_split(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                  const AttentionPartial& result, float* scratch) {
  const int64_t queries = tile.rows * a.group, dim = a.padded_dim;
  float* q = scratch;
  float* scores = q + kTileQueries * dim;
  float* page = scores + kTileQueries * kSplitKeys;
  load_queries(a, tile, q);
  memset(result.out, 0, static_cast<size_t>(queries * dim) * sizeof(float));
  if (a.head_dim != dim) memset(page, 0, static_cast<size_t>(kPageTokens * dim) * sizeof(float));

  const int64_t base = split * kSplitKeys;
  const int64_t first = HWY_MAX(tile.first_key(a.window), base);
  const int64_t end = HWY_MIN(tile.end_key(), base + kSplitKeys);
  const int64_t first_page = first / kPageTokens, end_page = (end + kPageTokens - 1) / kPageTokens;
  // Few queries read halves once, in place; many share a converted page.
  const bool direct = is_half(a.layout.type) && a.head_dim == dim && queries <= 4;
  const auto halves = [&](const uint8_t* plane, int64_t block) HWY_ATTR {
    return reinterpret_cast<const uint16_t*>(a.page(plane, block, tile.kv_head));
  };

  for (int64_t n = first_page; n < end_page; ++n) {
    float* at = scores + n * kPageTokens - base;
    prefetch_page(a, tile, a.k, n + 2, end_page);
    if (direct) {
      with_half_rows(a.layout.type, [&]<class Rows>() HWY_ATTR {
        score_page<Rows>(q, queries, dim, halves(a.k, tile.blocks[n]), at);
      });
    } else {
      const float* keys = page_floats(a, KvPart::kKeys, a.page(a.k, tile.blocks[n], tile.kv_head),
                                      kPageTokens, page);
      score_page<FloatRows>(q, queries, dim, keys, at);
    }
  }
  for (int64_t i = 0; i < queries; ++i) {
    const Seen seen = seen_by(a, tile, base, i / a.group);
    result.maximum[i] = kNoKey;
    result.sum[i] = 0;
    if (seen.begin < seen.end) {
      softmax_part(scores + i * kSplitKeys, seen.begin, seen.end, a.scale, result.maximum + i,
                   result.sum + i);
    }
  }
  for (int64_t n = first_page; n < end_page; ++n) {
    const int64_t page_begin = n * kPageTokens - base;
    const int64_t page_end = HWY_MIN(page_begin + kPageTokens, end - base);
    prefetch_page(a, tile, a.v, n + 2, end_page);
    if (direct) {
      with_half_rows(a.layout.type, [&]<class Rows>() HWY_ATTR {
        add_page<Rows>(a, tile, base, page_begin, page_end, halves(a.v, tile.blocks[n]), scores,
                       result.out);
      });
    } else {
      const float* values =
          page_floats(a, KvPart::kValues, a.page(a.v, tile.blocks[n], tile.kv_head),
                      page_end - page_begin, page);
      add_page<FloatRows>(a, tile, base, page_begin, page_end, values, scores, result.out);
    }
  }
}

// Adds `next` (later keys) to `total`.
void merge_partials(const AttentionPartial& total, const AttentionPartial& next, int64_t queries,
                    int64_t dim) {
  const FloatTag df;
  for (int64_t i = 0; i < queries; ++i) {
    if (next.sum[i] == 0) continue;
    const float top = HWY_MAX(total.maximum[i], next.maximum[i]);
    const FloatVec old_weight = exp_vec(hn::Set(df, total.maximum[i] - top));
    const FloatVec new_weight = exp_vec(hn::Set(df, next.maximum[i] - top));
    const float w0 = total.sum[i] == 0 ? 0 : hn::GetLane(old_weight);
    const float w1 = hn::GetLane(new_weight);
    total.maximum[i] = top;
    total.sum[i] = total.sum[i] * w0 + next.sum[i] * w1;
    float* HWY_RESTRICT out = total.out + i * dim;
    const float* HWY_RESTRICT add = next.out + i * dim;
    for (int64_t c = 0; c < dim; c += kLanes) {
      const FloatVec old = hn::Mul(hn::Load(df, out + c), hn::Set(df, w0));
      hn::Store(hn::MulAdd(hn::Load(df, add + c), hn::Set(df, w1), old), df, out + c);
    }
  }
}

// Sets out = partial / sum for the tile's rows.
void finish_tile(const AttentionArgs& a, const AttentionTile& tile,
                 const AttentionPartial& partial) {
  const int64_t per_head = tile.rows * a.group;
  for (int64_t i = 0; i < tile.heads * per_head; ++i) {
    const float inverse = 1 / partial.sum[i];
    const float* HWY_RESTRICT from = partial.out + i * a.padded_dim;
    const int64_t row = tile.first_row + i % per_head / a.group;
    const int64_t head = (tile.kv_head + i / per_head) * a.group + i % a.group;
    float* HWY_RESTRICT out = a.out + row * a.out_stride + head * a.head_dim;
    for (int64_t c = 0; c < a.head_dim; ++c) out[c] = from[c] * inverse;
  }
}

// Returns where the outputs of query i of a tile are in a.sums; its maximum and sum come after the
// outputs of all heads.
HWY_INLINE float* sums_of(const AttentionArgs& a, const AttentionTile& tile, int64_t i,
                          float** maximum, float** sum) {
  const int64_t per_head = tile.rows * a.group, heads = a.kv_heads * a.group;
  const int64_t head = (tile.kv_head + i / per_head) * a.group + i % a.group;
  float* const row = a.sums + (tile.first_row + i % per_head / a.group) * a.sums_stride;
  *maximum = row + heads * a.head_dim + head;
  *sum = *maximum + heads;
  return row + head * a.head_dim;
}

// Loads the softmax state of the tile's rows.
void load_sums(const AttentionArgs& a, const AttentionTile& tile, const AttentionPartial& partial) {
  for (int64_t i = 0; i < tile.heads * tile.rows * a.group; ++i) {
    float *maximum, *sum;
    const float* HWY_RESTRICT from = sums_of(a, tile, i, &maximum, &sum);
    float* HWY_RESTRICT to = partial.out + i * a.padded_dim;
    for (int64_t c = 0; c < a.head_dim; ++c) to[c] = from[c];
    for (int64_t c = a.head_dim; c < a.padded_dim; ++c) to[c] = 0;
    partial.maximum[i] = *maximum;
    partial.sum[i] = *sum;
  }
}

// Stores the softmax state of the tile's rows.
void store_sums(const AttentionArgs& a, const AttentionTile& tile,
                const AttentionPartial& partial) {
  for (int64_t i = 0; i < tile.heads * tile.rows * a.group; ++i) {
    float *maximum, *sum;
    float* HWY_RESTRICT to = sums_of(a, tile, i, &maximum, &sum);
    const float* HWY_RESTRICT from = partial.out + i * a.padded_dim;
    for (int64_t c = 0; c < a.head_dim; ++c) to[c] = from[c];
    *maximum = partial.maximum[i];
    *sum = partial.sum[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
