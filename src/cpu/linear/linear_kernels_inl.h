// SPDX-License-Identifier: Apache-2.0
// The two kernels of linear: one token streams the weights through registers; several tokens share
// a panel of decoded weights. Both reduce in the order that linear.h promises.
#if defined(SPILLWAY_CPU_LINEAR_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#undef SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#else
#define SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#endif

#include "cpu/dequantize/decode_k_inl.h"
#include "cpu/dot_tile_inl.h"
#include "cpu/linear/linear_args.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Multiplies weights with activations and adds the products up. A zero's sign is lost in the sum.
struct DotSink {
  static constexpr bool kExactZeros = false;
  const float* HWY_RESTRICT x;
  FloatVec sum;
  HWY_INLINE void operator()(int k, FloatVec w) {
    sum = hn::MulAdd(w, hn::LoadU(FloatTag(), x + k), sum);
  }
};

// Without this barrier g++ starts the loads of all rows and parts together and spills those it has
// no register for.
HWY_INLINE void finish_loads() { asm volatile("" ::: "memory"); }

// Rows of plain types are often a page or two long, and x86's own prefetching starts afresh on each
// page. ARM (Neoverse V1) reads half as fast with prefetch instructions as without.
inline constexpr bool kPrefetchRows = HWY_ARCH_X86;

// Four rows being read, with the sums of the current cut.
struct RowQuad {
  const uint8_t *p0, *p1, *p2, *p3;
  DotSink s0, s1, s2, s3;

  HWY_INLINE void start_cut(const float* x) {
    s0.sum = s1.sum = s2.sum = s3.sum = hn::Zero(FloatTag());
    s0.x = s1.x = s2.x = s3.x = x;
  }
  template <class Decoder>
  HWY_INLINE void add_block() {
    if constexpr (Decoder::kElements == 256) {
      add_parts<Decoder>();
    } else {
      Decoder::decode(p0, s0);
      Decoder::decode(p1, s1);
      Decoder::decode(p2, s2);
      Decoder::decode(p3, s3);
    }
    p0 += Decoder::kBytes;
    p1 += Decoder::kBytes;
    p2 += Decoder::kBytes;
    p3 += Decoder::kBytes;
    s0.x = s1.x = s2.x = s3.x = s0.x + Decoder::kElements;
  }
  // Adds fewer than 16 elements at a row's end; x is readable up to the 16th.
  template <class Decoder>
  HWY_INLINE void add_tail(int64_t count) {
    add_tail_row<Decoder>(p0, count, s0);
    add_tail_row<Decoder>(p1, count, s1);
    add_tail_row<Decoder>(p2, count, s2);
    add_tail_row<Decoder>(p3, count, s3);
  }
  HWY_INLINE QuadVec sum() const { return sum4(s0.sum, s1.sum, s2.sum, s3.sum); }
  // Prefetches what is `bytes` further on to the second-level cache.
  HWY_INLINE void prefetch(int64_t bytes) const {
    __builtin_prefetch(p0 + bytes, 0, 2);
    __builtin_prefetch(p1 + bytes, 0, 2);
    __builtin_prefetch(p2 + bytes, 0, 2);
    __builtin_prefetch(p3 + bytes, 0, 2);
  }

  // Adds a block of 256 elements, interleaving the rows every 32 elements.
  template <class Decoder>
  HWY_INLINE void add_parts() {
    alignas(64) float scales[4 * kScaleFloats];
    Decoder::scales(p0, scales);
    Decoder::scales(p1, scales + kScaleFloats);
    Decoder::scales(p2, scales + 2 * kScaleFloats);
    Decoder::scales(p3, scales + 3 * kScaleFloats);
    HWY_UNROLL(8)
    for (int i = 0; i < 8; ++i) {
      Decoder::part(p0, scales, i, s0);
      finish_loads();
      Decoder::part(p1, scales + kScaleFloats, i, s1);
      finish_loads();
      Decoder::part(p2, scales + 2 * kScaleFloats, i, s2);
      finish_loads();
      Decoder::part(p3, scales + 3 * kScaleFloats, i, s3);
      finish_loads();
    }
  }
  template <class Decoder>
  static HWY_INLINE void add_tail_row(const uint8_t* p, int64_t count, DotSink& sink) {
    alignas(64) float tail[16];
    decode_tail<Decoder>(p, count, tail);
    for (int i = 0; i < 16; i += kLanes) sink(i, hn::Load(FloatTag(), tail + i));
  }
};

// Returns the start values of rows [row, row + count) of one token, in lanes [0, count).
HWY_INLINE QuadVec start_value(const LinearArgs& a, const float* out, int64_t row, int64_t count) {
  HWY_ALIGN float lanes[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (a.accumulate) lanes[i] = out[row + i];
    if (a.bias != nullptr) lanes[i] += a.bias[row + i];
  }
  return hn::Load(QuadTag(), lanes);
}

HWY_INLINE void store_rows(QuadVec values, float* out, int64_t count) {
  if (count == 4) {
    hn::StoreU(values, QuadTag(), out);
    return;
  }
  HWY_ALIGN float lanes[4];
  hn::Store(values, QuadTag(), lanes);
  for (int64_t i = 0; i < count; ++i) out[i] = lanes[i];
}

// Returns rows row to row + 3 of the matrix, none past `last`.
HWY_INLINE RowQuad quad_at(const LinearArgs& a, int64_t row, int64_t last) {
  const FloatVec zero = hn::Zero(FloatTag());
  const DotSink sink{a.x, zero};
  return {a.w + HWY_MIN(row, last) * a.row_bytes,
          a.w + HWY_MIN(row + 1, last) * a.row_bytes,
          a.w + HWY_MIN(row + 2, last) * a.row_bytes,
          a.w + HWY_MIN(row + 3, last) * a.row_bytes,
          sink,
          sink,
          sink,
          sink};
}

// Multiplies one token with rows [begin, end). Plain types decode in one instruction, so that eight
// rows together are needed to hide the latency of the sums; quantized types keep the registers busy
// with four.
template <class Decoder>
void linear_one(const LinearArgs& a, int64_t begin, int64_t end) {
  constexpr bool kTwo = Decoder::kElements == 16;
  for (int64_t row = begin; row < end; row += kTwo ? 8 : 4) {
    RowQuad q0 = quad_at(a, row, end - 1), q1 = quad_at(a, row + 4, end - 1);
    const int64_t count0 = HWY_MIN(int64_t{4}, end - row);
    const int64_t count1 = kTwo ? HWY_MIN(int64_t{4}, end - row - 4) : 0;
    QuadVec sum0 = start_value(a, a.out, row, count0);
    QuadVec sum1 = start_value(a, a.out, row + 4, count1);
    // The distance to the next eight rows, if they are not another worker's.
    [[maybe_unused]] const int64_t ahead = row + 16 <= end ? 8 * a.row_bytes : 0;
    for (int64_t k = 0, next; k < a.k; k = next) {
      next = next_cut(k, a.k);
      q0.start_cut(a.x + k);
      if constexpr (kTwo) q1.start_cut(a.x + k);
      const int64_t blocks = (next - k) / Decoder::kElements;
      for (int64_t i = 0; i < blocks; ++i) {
        if constexpr (kTwo && kPrefetchRows) {
          if (i * Decoder::kBytes % 64 == 0) {
            q0.prefetch(ahead);
            q1.prefetch(ahead);
          }
        }
        q0.add_block<Decoder>();
        if constexpr (kTwo) q1.add_block<Decoder>();
      }
      if constexpr (kTwo) {
        const int64_t rest = (next - k) % Decoder::kElements;
        if (rest > 0) {
          q0.add_tail<Decoder>(rest);
          q1.add_tail<Decoder>(rest);
        }
        sum1 = hn::Add(sum1, q1.sum());
      }
      sum0 = hn::Add(sum0, q0.sum());
    }
    store_rows(sum0, a.out + row, count0);
    if constexpr (kTwo) store_rows(sum1, a.out + row + 4, count1);
  }
}

// Adds a tile's dot products to out.
struct AddToOut {
  const LinearArgs& a;
  float* out;  // of the tile's first token
  int64_t row, count;
  bool first;
  HWY_INLINE void operator()(int t, QuadVec dot) const {
    float* out_t = out + t * a.out_stride;
    QuadVec sum;
    if (count == 4 && (!first || (a.accumulate && a.bias == nullptr))) {
      sum = hn::LoadU(QuadTag(), out_t + row);
    } else if (first) {
      sum = start_value(a, out_t, row, count);
    } else {
      HWY_ALIGN float lanes[4] = {0, 0, 0, 0};
      for (int64_t i = 0; i < count; ++i) lanes[i] = out_t[row + i];
      sum = hn::Load(QuadTag(), lanes);
    }
    store_rows(hn::Add(sum, dot), out_t + row, count);
  }
};

// Multiplies several tokens with rows [begin, end). `panel` holds kPanelRows x kMaxCut floats: a
// cut of 16 decoded rows, which stays in the first-level cache while all tokens pass.
template <class Decoder>
void linear_many(const LinearArgs& a, int64_t begin, int64_t end, float* HWY_RESTRICT panel) {
  for (int64_t row = begin; row < end; row += kPanelRows) {
    const int64_t rows = HWY_MIN(int64_t{kPanelRows}, end - row);
    for (int64_t k = 0, next; k < a.k; k = next) {
      next = next_cut(k, a.k);
      const int64_t width = (next - k + 15) / 16 * 16;
      const uint8_t* w = a.w + row * a.row_bytes + k / Decoder::kElements * Decoder::kBytes;
      for (int64_t i = 0; i < rows; ++i) {
        decode_padded<Decoder>(w + i * a.row_bytes, next - k, panel + i * width);
      }
      for (int64_t t = 0; t < a.tokens; t += kTileColumns) {
        const int64_t columns = HWY_MIN(int64_t{kTileColumns}, a.tokens - t);
        const float* x = a.x + t * a.x_stride + k;
        for (int64_t i = 0; i < rows; i += 4) {
          const int64_t count = HWY_MIN(int64_t{4}, rows - i);
          const AddToOut add{a, a.out + t * a.out_stride, row + i, count, k == 0};
          // Rows past the last hold an older panel's values; their results are discarded.
          dot_tile_columns<FloatRows>(columns, panel + i * width, width, x, a.x_stride, width, add);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
