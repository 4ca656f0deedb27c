// SPDX-License-Identifier: Apache-2.0
// The two kernels of linear: one token streams the weights through registers; several tokens share
// a panel of decoded weights. Both reduce in the order that linear.h promises.
#if defined(SPILLWAY_CPU_LINEAR_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#undef SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#else
#define SPILLWAY_CPU_LINEAR_KERNELS_INL_H_
#endif

#include "cpu/decode_k_inl.h"
#include "cpu/dot_tile_inl.h"
#include "cpu/linear_args.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Multiplies what it is given with activations and adds it up.
struct DotSink {
  const float* HWY_RESTRICT x;
  FloatVec sum;
  HWY_INLINE void operator()(int k, FloatVec w) {
    sum = hn::MulAdd(w, hn::LoadU(FloatTag(), x + k), sum);
  }
};

// Elements [k, k + count) of one row, whose blocks start at p.
template <class Decoder>
HWY_INLINE FloatVec dot_cut(const uint8_t* HWY_RESTRICT p, const float* HWY_RESTRICT x,
                            int64_t count, FloatVec sum) {
  DotSink sink{x, sum};
  int64_t k = 0;
  for (; k + Decoder::kElements <= count; k += Decoder::kElements, p += Decoder::kBytes) {
    sink.x = x + k;
    Decoder::decode(p, sink);
  }
  if constexpr (Decoder::kElements == 16) {
    if (k < count) {
      alignas(64) float tail[16];
      decode_tail<Decoder>(p, count - k, tail);
      sink.x = x + k;
      for (int i = 0; i < 16; i += kLanes) sink(i, hn::Load(FloatTag(), tail + i));
    }
  }
  return sink.sum;
}

// Four rows (pointers p, advanced) against one token, interleaved block by block.
template <class Decoder>
HWY_INLINE QuadVec dot_cut4(const uint8_t* const* rows, int64_t offset, const float* HWY_RESTRICT x,
                            int64_t count) {
  const FloatTag df;
  const uint8_t* HWY_RESTRICT p0 = rows[0] + offset;
  const uint8_t* HWY_RESTRICT p1 = rows[1] + offset;
  const uint8_t* HWY_RESTRICT p2 = rows[2] + offset;
  const uint8_t* HWY_RESTRICT p3 = rows[3] + offset;
  DotSink s0{x, hn::Zero(df)}, s1{x, hn::Zero(df)}, s2{x, hn::Zero(df)}, s3{x, hn::Zero(df)};
  int64_t k = 0;
  for (; k + Decoder::kElements <= count; k += Decoder::kElements) {
    s0.x = s1.x = s2.x = s3.x = x + k;
    Decoder::decode(p0, s0);
    Decoder::decode(p1, s1);
    Decoder::decode(p2, s2);
    Decoder::decode(p3, s3);
    p0 += Decoder::kBytes;
    p1 += Decoder::kBytes;
    p2 += Decoder::kBytes;
    p3 += Decoder::kBytes;
  }
  if constexpr (Decoder::kElements == 16) {
    if (k < count) {
      s0.sum = dot_cut<Decoder>(p0, x + k, count - k, s0.sum);
      s1.sum = dot_cut<Decoder>(p1, x + k, count - k, s1.sum);
      s2.sum = dot_cut<Decoder>(p2, x + k, count - k, s2.sum);
      s3.sum = dot_cut<Decoder>(p3, x + k, count - k, s3.sum);
    }
  }
  return sum4(s0.sum, s1.sum, s2.sum, s3.sum);
}

// What rows [row, row + count) of one token start from, in lanes [0, count).
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

// One token, rows [begin, end).
template <class Decoder>
void linear_one(const LinearArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row += 4) {
    const int64_t count = HWY_MIN(int64_t{4}, end - row);
    const uint8_t* rows[4];
    for (int64_t i = 0; i < 4; ++i) rows[i] = a.w + (row + HWY_MIN(i, count - 1)) * a.row_bytes;
    QuadVec sum = start_value(a, a.out, row, count);
    for (int64_t k = 0, next; k < a.k; k = next) {
      next = next_cut(k, a.k);
      const int64_t offset = k / Decoder::kElements * Decoder::kBytes;
      sum = hn::Add(sum, dot_cut4<Decoder>(rows, offset, a.x + k, next - k));
    }
    store_rows(sum, a.out + row, count);
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

// Several tokens, rows [begin, end). `panel` holds kPanelRows x kMaxCut floats: a cut of 16 decoded
// rows, which stays in the first-level cache while all tokens pass.
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
          // Rows past the last hold an older panel's values; their results are dropped.
          dot_tile_columns(columns, panel + i * width, width, x, a.x_stride, width, add);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
