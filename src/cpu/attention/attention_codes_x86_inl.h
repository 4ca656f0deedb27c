// SPDX-License-Identifier: Apache-2.0
// Attention over int8 and int4 pages on x86, for any of its sets of vectors `V`.
//
// Codes stay bytes. Queries, and probabilities times the scales of V, become 16-bit integers, whose
// products with codes are added exactly. All queries of a kv head, up to V::kMostQueries at a time,
// share what is read and unpacked.
//
// Instructions that compete for the two vector ports, per line of 64 bytes and Q queries, with
// AVX-512 and heads of 128: int4 keys 7 + 4 Q and values 3 + 4 Q, int8 keys 5 + 2 Q and values 2 Q;
// scales, softmax and weights add about 2 Q for int4 and Q for int8. A core that gets 6.5 GB/s at
// 2.7 GHz has a line every 27 cycles: room for 54.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include "cpu/attention/attention_code_keys_x86_inl.h"
#include "cpu/attention/attention_code_values_x86_inl.h"
#include "cpu/attention/attention_softmax_inl.h"

namespace spillway {
namespace {

template <class V, bool kInt4>
static void attend_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  const KvPageLayout& layout = a.layout;
  const int64_t queries = tile.rows * a.group;
  const Cut cut = cut_at(a, tile, split * kSplitKeys);
  clear_result(a, tile.heads * queries, result);
  if (cut.empty()) return;

  Pieces pieces{reinterpret_cast<uint8_t*>(scratch)};
  float* scores = pieces.take<float>(kTileQueries * kSplitKeys);  // later probabilities
  RoundedQueries rounded;
  rounded.operands = pieces.take<uint8_t>(kTileQueries * 2 * a.padded_dim);
  auto* turned = pieces.take<uint8_t>(a.head_dim / 4 * (kPageTokens / V::kLanes) * V::kCodeBytes);
  ValueScratch s;
  s.scales = pieces.take<float>(layout.groups * kSplitKeys);
  s.means = pieces.take<float>(layout.groups * kSplitKeys);
  s.products = pieces.take<float>(kSplitKeys);
  s.weights = pieces.take<uint8_t>(V::kMostQueries * kCutPages * 64);
  s.totals = pieces.take<int32_t>(V::kMostQueries * kTotals);
  const Words words = words_of<kInt4>(layout);
  const int64_t from = cut.key_of(cut.first_page);
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t i = 0; i < queries; ++i) {
      rounded.query[i] = round_query<V, kInt4>(layout, query_at(a, tile, h, i),
                                               rounded.operands + i * 2 * a.padded_dim);
    }
    KeysAhead ahead(a, tile, cut, h);
    for (int64_t page = cut.first_page; page < cut.end_page; ++page) {
      ahead.step();
      score_page<V, kInt4>(a, words, page_of_keys(a, tile, page, h), rounded, queries, turned,
                           scores + cut.key_of(page));
    }
    const int64_t first = h * queries;
    for (int64_t i = 0; i < queries; ++i) {
      softmax<V>(cut, seen_by(a, tile, cut.base, i), a.scale, scores + i * kSplitKeys,
                 result.maximum + first + i, result.sum + first + i);
    }
    const uint8_t* pages[kCutPages];
    for (int64_t i = 0; i < cut.pages(); ++i) {
      pages[i] = page_of_values(a, tile, cut.first_page + i, h);
    }
    load_value_scales<V, kInt4>(layout, pages, cut.pages(), s);
    Ahead keys = keys_after(a, tile, cut, h);
    const int64_t chunks = (queries + V::kMostQueries - 1) / V::kMostQueries;
    keys.spread(a.head_dim * kPageTokens / (4 * V::kLanes) * chunks);
    add_head<V, kInt4>(a, pages, cut.pages(), queries, scores + from, s,
                       result.out + first * a.padded_dim, keys);
  }
}

}  // namespace
}  // namespace spillway
