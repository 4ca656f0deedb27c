// SPDX-License-Identifier: Apache-2.0
// Weighted sums of values of int8 or int4 with AMX.
//
// Of 16 columns, four lines of each page, the words of the same four tokens are put together: the
// fours of all 16 pages of a cut are rows of one tile, and the other tile has the weights of these
// tokens, high and low bytes of up to 8 queries. So four products of tiles are the sums of 16
// columns over the whole cut.
//
// Stages as for keys: columns are gathered, multiplied, finished, each a block behind the other.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include "cpu/attention/attention_code_values_x86_inl.h"
#include "cpu/attention/attention_tiles_amx_inl.h"

namespace spillway {
namespace {

// Heads of whole groups of 64 elements.
template <bool kInt4>
class TileValues {
 public:
  TileValues(const AttentionArgs& a, int64_t queries, Pieces& pieces) : a_(a), queries_(queries) {
    scales_.scales = pieces.take<float>(a.layout.groups * kSplitKeys);
    scales_.means = pieces.take<float>(a.layout.groups * kSplitKeys);
    products_ = pieces.take<float>(kSplitKeys);
    split_ = pieces.take<uint8_t>(kCutPages * 32);
    weights_ = pieces.take<uint8_t>(kFours * kTileBytes);
    for (uint8_t*& codes : codes_) codes = pieces.take<uint8_t>(kKinds * kFours * kTileBytes);
    for (int32_t*& sums : sums_) sums = pieces.take<int32_t>(kKinds * kTileBytes / 4);
  }

  void start() { start_tiles(0, 0); }
  int64_t units() const {
    const int64_t chunks = (queries_ + kTileQueryChunk - 1) / kTileQueryChunk;
    return a_.layout.groups * kBlocks * chunks;
  }
  void add(const uint8_t* const* pages, int64_t count, const float* p, float* out, Ahead& ahead) {
    load_value_scales<Avx512, kInt4>(a_.layout, pages, count, scales_);
    // Pages that a cut does not have weigh nothing.
    memset(split_, 0, kCutPages * 32);
    for (int64_t g = 0; g < a_.layout.groups; ++g) {
      for (int64_t first = 0; first < queries_; first += kTileQueryChunk) {
        const int64_t chunk = smaller(queries_ - first, kTileQueryChunk);
        WeightUnit units[kTileQueryChunk];
        for (int64_t i = 0; i < chunk; ++i) {
          units[i] = weigh<Avx512, kInt4>(
              p + (first + i) * kSplitKeys, scales_.scales + g * kSplitKeys,
              scales_.means + g * kSplitKeys, count,
              products_, [&](int64_t page, __m256i split) __attribute__((always_inline)) {
                _mm256_store_si256(reinterpret_cast<__m256i*>(split_ + page * 32), split);
              });
          turn_weights(i);
        }
        add_group(pages, count, a_.layout.codes_at + g * kBlocks * kBlockBytes, units, chunk,
                  out + first * a_.padded_dim + g * kKvGroup, ahead);
      }
    }
  }

 private:
  static constexpr int64_t kFours = kPageTokens / 4;            // of tokens
  static constexpr int64_t kKinds = kInt4 ? 2 : 1;              // of codes in a byte
  static constexpr int64_t kBlockBytes = 16 * kPageTokens;      // of 16 columns in a page
  static constexpr int64_t kBlocks = kKvGroup / (16 * kKinds);  // of a group

  // [16 pages][4 fours][high, low] of a query become its two rows of each four's tile. Tiles have
  // 16 rows; those without a query hold anything.
  void turn_weights(int64_t query) {
    __m512i x[2 * kFours];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kFours; ++i) x[i] = _mm512_load_si512(split_ + 64 * i);
    rows_to_columns<2 * kFours>(x);
    uint8_t* to = weights_ + query * 2 * 64;
#pragma GCC unroll 4
    for (int i = 0; i < kFours; ++i) {
      _mm512_store_si512(to + i * kTileBytes, x[2 * i]);
      _mm512_store_si512(to + i * kTileBytes + 64, x[2 * i + 1]);
    }
  }

  // Elements of `queries` queries for the group that begins at byte `at` of the pages.
  void add_group(const uint8_t* const* pages, int64_t count, int64_t at, const WeightUnit* units,
                 int64_t queries, float* out, Ahead& ahead) {
#pragma GCC unroll 1
    for (int64_t block = 0; block < kBlocks + 2; ++block) {
      if (block < kBlocks) {
        ahead.step(1);
        gather(pages, count, at + block * kBlockBytes, codes_[block % 2]);
      }
      if (block >= 1 && block <= kBlocks) {
        multiply(codes_[(block - 1) % 2], weights_, sums_[(block - 1) % 2]);
      }
      if (block >= 2) finish(sums_[block % 2], units, queries, out + (block - 2) * 16);
    }
  }

  // Four lines as the words of tokens 0 to 3, 4 to 7, and so on, of 16 columns each. In a line lie
  // tokens 0 to 7 of a byte, of the next byte, then 8 to 15 of both; and so of the next two.
  [[gnu::always_inline]] static inline void sort_fours(__m512i* x) {
    const __m512i first =
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
    const __m512i second =
        _mm512_setr_epi32(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    const __m512i even[2] = {even_words(x[0], x[1]), even_words(x[2], x[3])};
    const __m512i odd[2] = {odd_words(x[0], x[1]), odd_words(x[2], x[3])};
    x[0] = _mm512_permutex2var_epi32(even[0], first, even[1]);
    x[1] = _mm512_permutex2var_epi32(odd[0], first, odd[1]);
    x[2] = _mm512_permutex2var_epi32(even[0], second, even[1]);
    x[3] = _mm512_permutex2var_epi32(odd[0], second, odd[1]);
  }
  [[gnu::noinline]] static void gather(const uint8_t* const* pages, int64_t count, int64_t at,
                                       uint8_t* codes) {
    order_with_tiles(codes);
#pragma GCC unroll 1
    for (int64_t page = 0; page < count; ++page, codes += 64) {
      const uint8_t* from = pages[page] + at;
      __m512i x[kFours];
#pragma GCC unroll 4
      for (int i = 0; i < kFours; ++i) x[i] = _mm512_loadu_si512(from + 64 * i);
      sort_fours(x);
#pragma GCC unroll 4
      for (int i = 0; i < kFours; ++i) {
        uint8_t* to = codes + i * kTileBytes;
        _mm512_store_si512(to, kInt4 ? Avx512::low_halves(x[i]) : x[i]);
        if (kInt4) _mm512_store_si512(to + kFours * kTileBytes, Avx512::high_halves(x[i]));
      }
    }
    order_with_tiles(codes);
  }

  // Tiles: 0, 1 sums of either kind; 2, 3 weights; 4 to 7 codes.
  [[gnu::noinline]] static void multiply(const uint8_t* codes, const uint8_t* weights,
                                         int32_t* sums) {
    constexpr int64_t kKind = kFours * kTileBytes;
    order_with_tiles(weights);
    _tile_zero(0);
    if constexpr (kInt4) _tile_zero(1);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, weights += 2 * kTileBytes, codes += 2 * kTileBytes) {
      _tile_loadd(2, weights, 64);
      _tile_loadd(4, codes, 64);
      _tile_dpbusd(0, 2, 4);
      if constexpr (kInt4) {
        _tile_loadd(5, codes + kKind, 64);
        _tile_dpbusd(1, 2, 5);
      }
      _tile_loadd(3, weights + kTileBytes, 64);
      _tile_loadd(6, codes + kTileBytes, 64);
      _tile_dpbusd(0, 3, 6);
      if constexpr (kInt4) {
        _tile_loadd(7, codes + kKind + kTileBytes, 64);
        _tile_dpbusd(1, 3, 7);
      }
    }
    _tile_stored(0, sums, 64);
    if constexpr (kInt4) _tile_stored(1, sums + kTileBytes / 4, 64);
    order_with_tiles(sums);
  }

  // Sums [kinds][queries][high, low][16 columns] as elements.
  [[gnu::noinline]] void finish(const int32_t* sums, const WeightUnit* units, int64_t queries,
                                float* out) const {
    using V = Avx512;
    for (int64_t i = 0; i < queries; ++i, out += a_.padded_dim, sums += 2 * V::kLanes) {
      const auto excess = V::set_ints(units[i].excess);
      const auto unit = V::set(units[i].unit), offset = V::set(units[i].offset);
#pragma GCC unroll 2
      for (int64_t kind = 0; kind < kKinds; ++kind) {
        const int32_t* from = sums + kind * (kTileBytes / 4);
        const V::Sums both{V::load_ints(from), V::load_ints(from + V::kLanes)};
        const auto total = V::sub(V::total(both), excess);
        V::store(out + kind * (kKvGroup / 2), V::fma(V::to_floats(total), unit, offset));
      }
    }
  }

  const AttentionArgs& a_;
  int64_t queries_;      // of a kv head
  ValueScratch scales_;  // and means
  float* products_;      // [256], of probabilities and scales
  uint8_t* split_;       // [16 pages][32]
  uint8_t* weights_;     // [4 fours][8 queries][high, low][16 pages][4]
  uint8_t* codes_[2];    // [kinds][4 fours][16 pages][16 columns][4]
  int32_t* sums_[2];     // [kinds][8 queries][high, low][16 columns]
};

}  // namespace
}  // namespace spillway
