// SPDX-License-Identifier: Apache-2.0
// Multiplies few tokens with BF16 and F16 rows with AMX. The file is compiled for AMX, so it
// contains nothing else.
//
// BF16 rows are operands as they are stored in the file: A [16 rows][32 columns]. Tiles multiply
// several times as fast as memory delivers weights, so there is time to be exact: up to eight
// tokens are the sum of two bfloat16 each (to 2^-16), side by side in B. More tokens are rounded to
// one bfloat16, and so are F16 weights, which go through a small panel.
//
// Packed activations: [k / 32][tiles of 16 columns][16 pairs of k][16 columns][2].
#include <immintrin.h>

#include <cstring>

#include "cpu/linear/amx_tiles_inl.h"
#include "cpu/linear/linear_half_args.h"
#include "cpu/linear/pack_bf16_avx512_inl.h"

namespace spillway {
namespace {

constexpr int64_t kRows = 32;          // of two tiles
constexpr int64_t kPartTokens = 8;     // tokens in two parts
constexpr int64_t kSegmentSteps = 64;  // steps of 32 columns that are prefetched together
constexpr int64_t kScratchTiles = 16;  // 16 KiB
constexpr int64_t kLineBytes = 64;     // 32 columns of a row
constexpr int64_t kStepElements = 2 * kTileElements;

// These types convert a line of 16-bit weights.
struct BfloatWeights {
  static constexpr bool kStoredTiles = true;
  [[gnu::always_inline]] static inline void put(const void* line, uint16_t* to) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(line));
  }
};
struct RoundedHalves {
  static constexpr bool kStoredTiles = false;
  [[gnu::always_inline]] static inline void put(const void* line, uint16_t* to) {
    _mm512_storeu_si512(to, HalfRow::rounded(static_cast<const uint8_t*>(line)));
  }
};

// Adds a step to the sums. Tile registers: 0-1 C of the first 16 rows, 2-3 of the others, 4-5 A,
// 6-7 B.
template <int kTokenTiles>
[[gnu::always_inline]] static inline void add_step(const void* w, int64_t row_bytes,
                                                   int64_t tile_bytes, const uint16_t* x) {
  const auto* at = static_cast<const uint8_t*>(w);
  _tile_loadd(6, x, kTileRowBytes);
  _tile_loadd(4, at, row_bytes);
  _tile_loadd(5, at + tile_bytes, row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (kTokenTiles == 2) {
    _tile_loadd(7, x + kTileElements, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Writes the sums, which are [row][column of B], to out.
template <bool kTwoParts>
static void put_columns(const HalfProduct& a, int64_t row, int64_t count, int64_t token,
                        const float* sums) {
  __m512i v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(sums + 16 * i);
  transpose_words(v);
  alignas(64) float columns[16][16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(columns[i], v[i]);
  const auto valid = static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1);
  const int64_t most = kTwoParts ? kPartTokens : 16;
  const int64_t tokens = a.tokens - token < most ? a.tokens - token : most;
  for (int64_t t = 0; t < tokens; ++t) {
    float* out = a.out + (token + t) * a.out_stride + row;
    __m512 sum = _mm512_loadu_ps(columns[t]);
    if constexpr (kTwoParts) sum = _mm512_add_ps(sum, _mm512_loadu_ps(columns[t + kPartTokens]));
    __m512 start = a.accumulate ? _mm512_maskz_loadu_ps(valid, out) : _mm512_setzero_ps();
    if (a.bias != nullptr) {
      start = _mm512_add_ps(start, _mm512_maskz_loadu_ps(valid, a.bias + row));
    }
    _mm512_mask_storeu_ps(out, valid, _mm512_add_ps(start, sum));
  }
}

// Multiplies the rows of a worker, 32 in one pass. While a segment of k of them is multiplied, the
// next one is prefetched in whole rows, which suits memory best.
template <class Weights, int kTokenTiles, bool kTwoParts>
class FewTokens {
 public:
  FewTokens(const HalfProduct& a, int64_t begin, int64_t end)
      : a_(a), begin_(begin), end_(end), steps_((a.k + 31) / 32) {
    const int64_t segments = (steps_ + kSegmentSteps - 1) / kSegmentSteps;
    segment_ = segments > 0 ? (steps_ + segments - 1) / segments : 0;
  }

  void multiply() {
    start_tiles();
    Bf16Ahead first = segment_at(begin_, 0);
    first.lines = kRows * segment_;
    ask_ahead(first);
    for (int64_t row = begin_; row < end_; row += kRows) multiply_rows(row);
    _tile_release();
  }

 private:
  void multiply_rows(int64_t row) {
    const int64_t count = end_ - row < kRows ? end_ - row : kRows;
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (kTokenTiles == 2) {
      _tile_zero(1);
      _tile_zero(3);
    }
    for (int64_t step = 0; step < steps_; step += segment_) {
      const int64_t last = step + segment_ < steps_ ? step + segment_ : steps_;
      Bf16Ahead ahead = last < steps_ ? segment_at(row, last) : segment_at(row + kRows, 0);
      ahead.lines = kRows;
      // Lines cut by a row's end, and tiles cut by the end of the rows, go through the panel.
      const int64_t whole = Weights::kStoredTiles && count == kRows ? a_.k / 32 : 0;
      const int64_t stored = last < whole ? last : whole;
      if (step < stored) {
        add_stored(row, step, stored, ahead);
      }
      if (stored < last) add_converted(row, count, step < stored ? stored : step, last, ahead);
    }
    alignas(64) float sums[4 * kSumFloats];
    _tile_stored(0, sums, kTileRowBytes);
    _tile_stored(2, sums + 2 * kSumFloats, kTileRowBytes);
    if constexpr (kTokenTiles == 2) {
      _tile_stored(1, sums + kSumFloats, kTileRowBytes);
      _tile_stored(3, sums + 3 * kSumFloats, kTileRowBytes);
    }
    for (int64_t first = 0; first < count; first += 16) {
      for (int64_t tile = 0; tile < kTokenTiles; ++tile) {
        put_columns<kTwoParts>(a_, row + first, count - first, 16 * tile,
                               sums + (first / 16 * 2 + tile) * kSumFloats);
      }
    }
  }

  void add_stored(int64_t row, int64_t step, int64_t last, Bf16Ahead& ahead) {
    const uint8_t* w = a_.w + row * a_.row_bytes;
    for (; step < last; ++step) {
      ask_ahead(ahead);
      add_step<kTokenTiles>(w + step * kLineBytes, a_.row_bytes, 16 * a_.row_bytes, x_at(step));
    }
  }

  // Goes through tiles [steps][2][16 rows][32], with zeros where there is nothing.
  void add_converted(int64_t row, int64_t count, int64_t step, int64_t last, Bf16Ahead& ahead) {
    constexpr int64_t kSteps = kScratchTiles / 2;
    alignas(64) uint16_t scratch[kScratchTiles * kTileElements];
    for (; step < last; step += kSteps) {
      const int64_t steps = last - step < kSteps ? last - step : kSteps;
      for (int64_t r = 0; r < kRows; ++r)
        convert_row(row + r, r < count, step, steps, scratch + 32 * r);
      order_with_tiles(scratch);
      for (int64_t i = 0; i < steps; ++i) {
        ask_ahead(ahead);
        add_step<kTokenTiles>(scratch + i * kStepElements, kTileRowBytes, 2 * kTileElements,
                              x_at(step + i));
      }
      order_with_tiles(scratch);
    }
  }

  void convert_row(int64_t row, bool valid, int64_t step, int64_t steps, uint16_t* to) const {
    const uint8_t* w = a_.w + row * a_.row_bytes;
    for (int64_t i = 0; i < steps; ++i, to += kStepElements) {
      const int64_t at = step + i;
      if (valid && at < a_.k / 32) {
        Weights::put(w + at * kLineBytes, to);
      } else {
        alignas(64) uint8_t line[kLineBytes] = {};
        if (valid) memcpy(line, w + at * kLineBytes, static_cast<size_t>(2 * (a_.k - at * 32)));
        Weights::put(line, to);
      }
    }
  }

  Bf16Ahead segment_at(int64_t row, int64_t step) const {
    const int64_t left = end_ - row, steps = steps_ - step < segment_ ? steps_ - step : segment_;
    return {.row = a_.w + row * a_.row_bytes + step * kLineBytes,
            .bytes = steps * kLineBytes,
            .stride = a_.row_bytes,
            .rows = left < kRows ? (left < 0 ? 0 : left) : kRows};
  }
  const uint16_t* x_at(int64_t step) const { return a_.x + step * kTokenTiles * kTileElements; }

  const HalfProduct& a_;
  int64_t begin_, end_, steps_, segment_;
};

template <class Weights, int kTokenTiles, bool kTwoParts>
static void multiply(const HalfProduct& a, int64_t begin, int64_t end) {
  FewTokens<Weights, kTokenTiles, kTwoParts>(a, begin, end).multiply();
}

template <int kTokenTiles>
static void pack_rounded(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
                         float* factors) {
  for (int64_t t = 0; t < 16 * kTokenTiles; ++t) factors[t] = 1;
  pack_pair_tiles<kTokenTiles>(x, stride, count, k, packed);
}

// Returns the difference between floats and their bfloat16; 0 if it is NaN.
[[gnu::always_inline]] static inline __m512 missing(__m512 x, __m256i bfloats) {
  const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloats), 16);
  const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(upper));
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), rest);
}

static void pack_parts(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
                       float* factors) {
  for (int64_t t = 0; t < kPartTokens; ++t) factors[t] = 1;
  for (int64_t c = 0; c < k; c += 32, packed += kTileElements) {
    const uint32_t valid = k - c >= 32 ? ~uint32_t{0} : (uint32_t{1} << (k - c)) - 1;
    __m512i v[16];
#pragma GCC unroll 8
    for (int t = 0; t < kPartTokens; ++t) {
      const float* at = x + t * stride + c;
      const uint32_t mask = t < count ? valid : 0;
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask & 0xffff), at);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), at + 16);
      v[t] = rounded_bf16(low, high);
      v[t + kPartTokens] = rounded_bf16(missing(low, _mm512_castsi512_si256(v[t])),
                                        missing(high, _mm512_extracti64x4_epi64(v[t], 1)));
    }
    transpose_words(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(packed + 32 * i, v[i]);
  }
}

constexpr HalfKernel kParts = {.tokens = kPartTokens,
                               .x_width = 16,
                               .pack = pack_parts,
                               .packs_rows = true,
                               .multiply = multiply<BfloatWeights, 1, true>};
template <class Weights, int kTokenTiles>
constexpr HalfKernel kRounded = {.tokens = 16 * kTokenTiles,
                                 .x_width = 16 * kTokenTiles,
                                 .pack = pack_rounded<kTokenTiles>,
                                 .packs_rows = true,
                                 .multiply = multiply<Weights, kTokenTiles, false>};

constexpr HalfKernel kBfloatKernels[] = {kParts, kRounded<BfloatWeights, 1>,
                                         kRounded<BfloatWeights, 2>};
constexpr HalfKernel kHalfKernels[] = {kRounded<RoundedHalves, 1>, kRounded<RoundedHalves, 2>};

}  // namespace

constinit const HalfKernels kBf16AmxKernels = {kBfloatKernels,
                                               sizeof(kBfloatKernels) / sizeof(HalfKernel), 2};
constinit const HalfKernels kF16AmxKernels = {kHalfKernels,
                                              sizeof(kHalfKernels) / sizeof(HalfKernel), 9};

}  // namespace spillway
