// SPDX-License-Identifier: Apache-2.0
// The micro-kernel of linear and attention: dot products of 4 rows with a few columns in one pass.
//
// Lanes run along the reduced dimension: both operands are read as stored, nothing is broadcast,
// and every product of a row and a column has an accumulator of its own. So a result does not
// depend on what else is in the tile: it has the same bits for one token and for 512.
#if defined(SPILLWAY_CPU_DOT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_DOT_TILE_INL_H_
#undef SPILLWAY_CPU_DOT_TILE_INL_H_
#else
#define SPILLWAY_CPU_DOT_TILE_INL_H_
#endif

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// The columns of one tile: 4 x kTileColumns accumulators and one vector of each row stay in
// registers.
inline constexpr int kTileColumns = kManyRegisters ? 5 : 2;

// The accumulators of one column. They are named members because an array would live in memory, and
// an aggregate because g++ compiles implicit constructors for the baseline instruction set, which
// cannot inline vector code.
struct TileColumn {
  FloatVec r0, r1, r2, r3;
  HWY_INLINE void add(FloatVec a0, FloatVec a1, FloatVec a2, FloatVec a3, FloatVec b) {
    r0 = hn::MulAdd(a0, b, r0);
    r1 = hn::MulAdd(a1, b, r1);
    r2 = hn::MulAdd(a2, b, r2);
    r3 = hn::MulAdd(a3, b, r3);
  }
  HWY_INLINE QuadVec sum() const { return sum4(r0, r1, r2, r3); }
};

// These types read the 4 rows in their stored type.
struct FloatRows {
  using Element = float;
  static HWY_INLINE FloatVec at(const float* row, int64_t i) {
    return hn::LoadU(FloatTag(), row + i);
  }
};
struct HalfRows {
  using Element = uint16_t;
  static HWY_INLINE FloatVec at(const uint16_t* row, int64_t i) {
    return load_f16(reinterpret_cast<const uint8_t*>(row + i));
  }
};

struct BfloatRows {
  using Element = uint16_t;
  static HWY_INLINE FloatVec at(const uint16_t* row, int64_t i) {
    return load_bf16(reinterpret_cast<const uint8_t*>(row + i));
  }
};

// Computes sums[t] = {a_0 . b_t, a_1 . b_t, a_2 . b_t, a_3 . b_t} for t in [0, T). a [4, k] with
// rows `a_stride` apart, b [T, k]; k is a multiple of kLanes. It is not inlined because the code
// around it would compete for the registers.
template <int T, class Rows>
HWY_NOINLINE void dot_tile(const typename Rows::Element* HWY_RESTRICT a, int64_t a_stride,
                           const float* HWY_RESTRICT b, int64_t b_stride, int64_t k,
                           float* HWY_RESTRICT sums) {
  static_assert(T >= 1 && T <= 5);
  const FloatTag df;
  const auto* HWY_RESTRICT a1 = a + a_stride;
  const auto* HWY_RESTRICT a2 = a + 2 * a_stride;
  const auto* HWY_RESTRICT a3 = a + 3 * a_stride;
  const float* HWY_RESTRICT b1 = b + (T > 1 ? 1 : 0) * b_stride;
  const float* HWY_RESTRICT b2 = b + (T > 2 ? 2 : 0) * b_stride;
  const float* HWY_RESTRICT b3 = b + (T > 3 ? 3 : 0) * b_stride;
  const float* HWY_RESTRICT b4 = b + (T > 4 ? 4 : 0) * b_stride;
  const FloatVec zero = hn::Zero(df);
  TileColumn c0{zero, zero, zero, zero}, c1 = c0, c2 = c0, c3 = c0, c4 = c0;
  for (int64_t i = 0; i < k; i += kLanes) {
    const FloatVec v0 = Rows::at(a, i), v1 = Rows::at(a1, i);
    const FloatVec v2 = Rows::at(a2, i), v3 = Rows::at(a3, i);
    c0.add(v0, v1, v2, v3, hn::LoadU(df, b + i));
    if constexpr (T > 1) c1.add(v0, v1, v2, v3, hn::LoadU(df, b1 + i));
    if constexpr (T > 2) c2.add(v0, v1, v2, v3, hn::LoadU(df, b2 + i));
    if constexpr (T > 3) c3.add(v0, v1, v2, v3, hn::LoadU(df, b3 + i));
    if constexpr (T > 4) c4.add(v0, v1, v2, v3, hn::LoadU(df, b4 + i));
  }
  const QuadTag dq;
  hn::StoreU(c0.sum(), dq, sums);
  if constexpr (T > 1) hn::StoreU(c1.sum(), dq, sums + 4);
  if constexpr (T > 2) hn::StoreU(c2.sum(), dq, sums + 8);
  if constexpr (T > 3) hn::StoreU(c3.sum(), dq, sums + 12);
  if constexpr (T > 4) hn::StoreU(c4.sum(), dq, sums + 16);
}

// Calls dot_tile with `columns` known at run time, 1 to kTileColumns, and then emit(t, sums[t]).
template <class Rows, class Emit>
HWY_INLINE void dot_tile_columns(int64_t columns, const typename Rows::Element* a, int64_t a_stride,
                                 const float* b, int64_t b_stride, int64_t k, const Emit& emit) {
  HWY_ALIGN float sums[4 * kTileColumns];
  switch (columns) {
    case 1:
      dot_tile<1, Rows>(a, a_stride, b, b_stride, k, sums);
      break;
    case 2:
      dot_tile<2, Rows>(a, a_stride, b, b_stride, k, sums);
      break;
    default:
      if constexpr (kManyRegisters) {
        if (columns == 3) dot_tile<3, Rows>(a, a_stride, b, b_stride, k, sums);
        if (columns == 4) dot_tile<4, Rows>(a, a_stride, b, b_stride, k, sums);
        if (columns == 5) dot_tile<5, Rows>(a, a_stride, b, b_stride, k, sums);
      }
  }
  for (int64_t t = 0; t < columns; ++t) {
    emit(static_cast<int>(t), hn::Load(QuadTag(), sums + 4 * t));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
