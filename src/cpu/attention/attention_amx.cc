// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries over int8 and int4 pages with AMX; compiled for it, so nothing else
// here.
//
// Products are the same integers as with AVX-512, and so are results. What vectors still do, per
// line of 64 bytes of codes, with heads of 128 and groups of 1 and 4 queries: int4 keys 7 and 11
// instructions that compete for the two vector ports (12 and 29 without tiles), values 5 and 6 (8
// and 22); int8 keys 1 and 3 (8 and 16), values 2 and 3 (2 and 9). Softmax, weights and rounding
// queries add 2 per query of int4 and 1 of int8, either way.
#include "cpu/attention/attention_code_keys_amx_inl.h"
#include "cpu/attention/attention_code_values_amx_inl.h"
#include "cpu/attention/attention_codes_x86_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {
namespace {

template <bool kInt4>
class TileCodes {
 public:
  using Vectors = Avx512;

  TileCodes(const AttentionArgs& a, int64_t queries, Pieces& pieces)
      : keys_(a, queries, pieces), values_(a, queries, pieces) {}
  ~TileCodes() { _tile_release(); }
  TileCodes(const TileCodes&) = delete;
  TileCodes& operator=(const TileCodes&) = delete;

  void round(int64_t i, const float* q) { keys_.round(i, q); }
  void start_keys() { keys_.start(); }
  void score(const uint8_t* page, int64_t first, float* scores) {
    keys_.score(page, first, scores);
  }
  void finish_keys() { keys_.finish(); }
  void start_values() { values_.start(); }
  int64_t units() const { return values_.units(); }
  void add(const uint8_t* const* pages, int64_t count, const float* p, float* out, Ahead& ahead) {
    values_.add(pages, count, p, out, ahead);
  }

 private:
  TileKeys<kInt4> keys_;
  TileValues<kInt4> values_;
};

// Other heads are left to vectors.
template <bool kInt4>
void attend_tiles(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                  const AttentionPartial& result, float* scratch) {
  if (a.head_dim % kKvGroup == 0) {
    attend_codes<TileCodes<kInt4>>(a, tile, split, result, scratch);
  } else {
    (kInt4 ? kAttendInt4Avx512 : kAttendInt8Avx512)(a, tile, split, result, scratch);
  }
}

}  // namespace

constinit const AttendSplit kAttendInt8Amx = attend_tiles<false>;
constinit const AttendSplit kAttendInt4Amx = attend_tiles<true>;

}  // namespace spillway
