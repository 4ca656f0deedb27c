// SPDX-License-Identifier: Apache-2.0
// Scores of queries for keys of int8 or int4 with AMX.
//
// A page's keys are the 16 rows of a tile as they lie in memory, 64 elements of each: nothing is
// turned but the products. High and low bytes of the queries' integers are neighbouring columns of
// the other tile. Up to 8 queries cost the same 16 cycles per 64 elements of a page.
//
// A tile waits for what was stored just before it is loaded, and vectors for tiles just stored. So
// pages pass through three stages: unpacked, multiplied, summed up, each a page behind the other.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include "cpu/attention/attention_code_keys_x86_inl.h"
#include "cpu/attention/attention_tiles_amx_inl.h"

namespace spillway {
namespace {

// Columns of products for some queries of a kv head: two each, a power of two from 4 to 16.
static inline int64_t tile_columns(int64_t queries) {
  return queries <= 2 ? 4 : queries <= 4 ? 8 : 2 * kTileQueryChunk;
}

// Scores for 16 keys of a group of 64 elements: products [16 keys][2 P columns] of up to P queries.
template <bool kInt4, int P>
[[gnu::always_inline]] static inline void score_products(const int32_t* products, int64_t group,
                                                         const RoundedQuery* queries, int64_t count,
                                                         __m512 scales, __m512 means,
                                                         float* scores) {
  using V = Avx512;
  __m512i x[P];
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    __m512i both[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      // 256 * high + low, where low was.
      const __m512i pair = V::load_ints(products + (2 * i + j) * V::kLanes);
      both[j] = _mm512_add_epi32(pair, _mm512_slli_epi64(pair, 40));
    }
    x[i] = odd_words(both[0], both[1]);
  }
  rows_to_columns<P>(x);
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    if (i >= count) break;
    const __m512i sums = kInt4 ? V::add(x[i], V::set_ints(queries[i].start[group])) : x[i];
    const __m512 dots = V::mul(V::to_floats(sums), V::set(queries[i].scale[group]));
    float* to = scores + i * kSplitKeys;
    __m512 s = group == 0 ? V::mul(dots, scales) : V::fma(dots, scales, V::load(to));
    if (kInt4) s = V::fma(means, V::set(queries[i].sum[group]), s);
    V::store(to, s);
  }
}

// Heads of whole groups of 64 elements.
template <bool kInt4>
class TileKeys {
 public:
  TileKeys(const AttentionArgs& a, int64_t queries, Pieces& pieces)
      : layout_(a.layout),
        queries_(queries),
        chunks_((queries + kTileQueryChunk - 1) / kTileQueryChunk),
        columns_(tile_columns(queries)) {
    const int64_t heads = kTileQueries / queries;
    operand_bytes_ = layout_.groups * kPageTokens * 4 * columns_;
    operands_ = pieces.take<uint8_t>(heads * chunks_ * operand_bytes_);
    for (Page& page : pages_) {
      page.codes = pieces.take<uint8_t>(layout_.groups * kTileBytes);
      page.products = pieces.take<int32_t>(chunks_ * operand_bytes_ / 4);
    }
  }

  void round(int64_t i, const float* q) {
    alignas(64) uint8_t split[2 * kMostGroups * kKvGroup];
    rounded_[i] = round_query<Avx512, kInt4>(layout_, q, split);
    const int64_t within = i % queries_, chunk = i / queries_ * chunks_ + within / kTileQueryChunk;
    uint8_t* to = operands_ + chunk * operand_bytes_ + within % kTileQueryChunk * 8;
    for (int64_t word = 0; word < layout_.groups * kKvGroup / 4; ++word) {
      memcpy(to + word * 4 * columns_, split + 8 * word, 8);
    }
  }
  void start() {
    start_tiles(4, 4 * columns_);
    count_ = 0;
  }
  void score(const uint8_t* page, int64_t first, float* scores) {
    Page& next = pages_[count_ % kStages];
    next.page = page;
    next.first = first;
    next.scores = scores;
    if constexpr (kInt4) unpack(next);
    if (count_ >= 1) multiply(pages_[(count_ - 1) % kStages]);
    if (count_ >= 2) sum_up(pages_[(count_ - 2) % kStages]);
    ++count_;
  }
  void finish() {
    if (count_ >= 1) multiply(pages_[(count_ - 1) % kStages]);
    if (count_ >= 2) sum_up(pages_[(count_ - 2) % kStages]);
    if (count_ >= 1) sum_up(pages_[(count_ - 1) % kStages]);
  }

 private:
  static constexpr int64_t kStages = 3;
  struct Page {
    const uint8_t* page;
    int64_t first;  // query
    float* scores;
    uint8_t* codes;     // [groups][16 keys][64], int4
    int32_t* products;  // [chunks][groups][16 keys][columns]
  };

  // 32 bytes of each key become 64 codes: their low halves, then their high ones.
  [[gnu::noinline]] void unpack(const Page& page) const {
    const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i low = _mm512_set1_epi8(15);
    const int64_t groups = layout_.groups, stride = layout_.row_bytes;
    uint8_t* to = page.codes;
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* row = page.page + layout_.codes_at + 32 * g;
#pragma GCC unroll 4
      for (int64_t key = 0; key < kPageTokens; ++key, row += stride, to += 64) {
        const __m512i twice =
            _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
        _mm512_store_si512(to, _mm512_and_si512(_mm512_srlv_epi16(twice, shifts), low));
      }
    }
    order_with_tiles(page.codes);
  }

  // Tiles: 0, 1 products; 2, 3 queries; 4, 5 keys.
  [[gnu::noinline]] void multiply(const Page& page) const {
    const uint8_t* codes = kInt4 ? page.codes : page.page + layout_.codes_at;
    const int64_t apart = kInt4 ? kTileBytes : kKvGroup, stride = kInt4 ? 64 : layout_.row_bytes;
    const int64_t row = 4 * columns_, tile = kPageTokens * row;
    const uint8_t* q = operands_ + page.first / queries_ * chunks_ * operand_bytes_;
    auto* out = reinterpret_cast<uint8_t*>(page.products);
    order_with_tiles(out);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk, q += operand_bytes_, out += operand_bytes_) {
      for (int64_t g = 0; g < layout_.groups; g += 2) {
        _tile_loadd(4, codes + g * apart, stride);
        _tile_loadd(2, q + g * tile, row);
        _tile_zero(0);
        _tile_dpbssd(0, 4, 2);
        if (g + 1 < layout_.groups) {
          _tile_loadd(5, codes + (g + 1) * apart, stride);
          _tile_loadd(3, q + (g + 1) * tile, row);
          _tile_zero(1);
          _tile_dpbssd(1, 5, 3);
        }
        _tile_stored(0, out + g * tile, row);
        if (g + 1 < layout_.groups) _tile_stored(1, out + (g + 1) * tile, row);
      }
    }
    order_with_tiles(out);
  }

  void sum_up(const Page& page) const {
    if (columns_ == 4) {
      sum_queries<2>(page);
    } else if (columns_ == 8) {
      sum_queries<4>(page);
    } else {
      sum_queries<8>(page);
    }
  }
  template <int P>
  [[gnu::noinline]] void sum_queries(const Page& page) const {
    for (int64_t g = 0; g < layout_.groups; ++g) {
      const __m512 scales = Avx512::load_halves(page.page + 2 * g * kPageTokens);
      __m512 means = Avx512::set(0);
      if constexpr (kInt4) {
        means = Avx512::fma(scales, Avx512::set(kInt4Mean),
                            Avx512::load_halves(page.page + layout_.mins_at + 2 * g * kPageTokens));
      }
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        const int64_t first = chunk * kTileQueryChunk;
        score_products<kInt4, P>(
            page.products + (chunk * layout_.groups + g) * kPageTokens * columns_, g,
            rounded_ + page.first + first, queries_ - first, scales, means,
            page.scores + first * kSplitKeys);
      }
    }
  }

  const KvPageLayout& layout_;
  int64_t queries_, chunks_, columns_;  // of a kv head
  int64_t operand_bytes_;               // of a chunk's queries
  // [heads][chunks][groups][16 words][columns] words; columns without a query hold anything.
  uint8_t* operands_;
  RoundedQuery rounded_[kTileQueries];
  Page pages_[kStages];
  int64_t count_ = 0;  // pages so far
};

}  // namespace
}  // namespace spillway
