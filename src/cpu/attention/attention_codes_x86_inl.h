// SPDX-License-Identifier: Apache-2.0
// Attention over int8 and int4 pages on x86, for any of its sets of vectors `V`.
//
// Codes stay bytes. Queries, and probabilities times the scales of V, become 16-bit integers, whose
// products with codes are added exactly. All queries of a KV head, up to V::kMostQueries together,
// share what is read and unpacked.
//
// The instructions that compete for the two vector ports are, per line of 64 bytes and Q queries,
// with AVX-512 and heads of 128: int4 keys 7 + 4 Q and values 2 + 4 Q, int8 keys 5 + 2 Q and values
// 2 Q; scales, softmax and weights add about 2 Q for int4 and Q for int8. A core that gets 6.5 GB/s
// at 2.7 GHz has a line every 27 cycles: room for 54.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_code_keys_x86_inl.h"
#include "cpu/attention/attention_code_values_x86_inl.h"
#include "cpu/attention/attention_softmax_inl.h"

namespace spillway {
namespace {

// Computes keys and values of a page with products of vectors; attend_codes() does the rest.
template <class V, bool kInt4>
class VectorCodes {
 public:
  using Vectors = V;

  VectorCodes(const AttentionArgs& a, int64_t queries, Pieces& pieces) : a_(a), queries_(queries) {
    rounded_.operands = pieces.take<uint8_t>(kTileQueries * kOperandBytes);
    turned_ = pieces.take<uint8_t>(a.layout.row_bytes / 4 * kWordBytes);
    values_.scales = pieces.take<float>(a.layout.groups * kSplitKeys);
    values_.means = pieces.take<float>(a.layout.groups * kSplitKeys);
    values_.products = pieces.take<float>(V::kMostQueries * kSplitKeys);
    values_.weights = pieces.take<uint8_t>(V::kMostQueries * kCutPages * 64);
    values_.totals = pieces.take<int32_t>(V::kMostQueries * kTotals);
  }

  // Rounds query i, counted over all queries of some heads.
  void round(int64_t i, const float* q) {
    rounded_.query[i] = round_query<V, kInt4>(a_.layout, q, rounded_.operands + i * kOperandBytes);
  }
  void start_keys() {}
  // Returns the `parts` of KeysAhead: transposing a page, and its groups for some queries each.
  int64_t parts() const { return 1 + a_.layout.groups * chunks(); }
  // Computes scores for a page of the KV head with queries `first` and following.
  void score(const uint8_t* page, int64_t first, float* scores, KeysAhead& ahead) {
    score_page<V, kInt4>(a_.layout, page, rounded_.operands + first * kOperandBytes,
                         rounded_.query + first, queries_, turned_, scores, ahead);
  }
  void finish_keys() {}
  void start_values() {}
  // Returns the units of Ahead for a page of values, which are vectors.
  int64_t units() const { return a_.head_dim * kPageTokens / (4 * V::kLanes) * chunks(); }
  void add(const uint8_t* const* pages, int64_t count, const float* p, float* out, Ahead& ahead) {
    load_value_scales<V, kInt4>(a_.layout, pages, count, values_);
    add_head<V, kInt4>(a_, pages, count, queries_, p, values_, out, ahead);
  }

 private:
  int64_t chunks() const { return (queries_ + V::kMostQueries - 1) / V::kMostQueries; }

  const AttentionArgs& a_;
  int64_t queries_;  // per KV head
  RoundedQueries rounded_;
  uint8_t* turned_;
  ValueScratch values_;
};

template <class Codes>
static void attend_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  using V = typename Codes::Vectors;
  const int64_t queries = tile.rows * a.group;
  const Cut cut = cut_at(a, tile, split * kSplitKeys);
  clear_result(a, tile.heads * queries, result);
  if (cut.empty()) return;

  Pieces pieces{reinterpret_cast<uint8_t*>(scratch)};
  float* scores = pieces.take<float>(kTileQueries * kSplitKeys);  // later probabilities
  Codes codes(a, queries, pieces);
  const int64_t from = cut.key_of(cut.first_page), most = heads_of_strip(a);
  for (Heads heads = heads_from(tile, 0, most); heads.count > 0;
       heads = heads_from(tile, heads.end(), most)) {
    const int64_t first = heads.first * queries, all = heads.count * queries;
    for (int64_t i = 0; i < all; ++i) {
      codes.round(i, query_at(a, tile, heads.first + i / queries, i % queries));
    }
    codes.start_keys();
    KeysAhead ahead(a, tile, cut, heads, codes.parts());
    for (int64_t page = cut.first_page; page < cut.end_page; ++page) {
      for (int64_t h = 0; h < heads.count; ++h) {
        codes.score(page_of_keys(a, tile, page, heads.first + h), h * queries,
                    scores + h * queries * kSplitKeys + cut.key_of(page), ahead);
      }
    }
    codes.finish_keys();
    for (int64_t i = 0; i < all; ++i) {
      softmax<V>(cut, seen_by(a, tile, cut.base, i % queries), a.scale, scores + i * kSplitKeys,
                 result.maximum + first + i, result.sum + first + i);
    }
    codes.start_values();
    Ahead keys = keys_after(a, tile, cut, heads, most);
    keys.spread(codes.units() * cut.pages() * heads.count);
    for (int64_t h = 0; h < heads.count; ++h) {
      const uint8_t* pages[kCutPages];
      for (int64_t i = 0; i < cut.pages(); ++i) {
        pages[i] = page_of_values(a, tile, cut.first_page + i, heads.first + h);
      }
      codes.add(pages, cut.pages(), scores + h * queries * kSplitKeys + from,
                result.out + (first + h * queries) * a.padded_dim, keys);
    }
  }
}

}  // namespace
}  // namespace spillway
