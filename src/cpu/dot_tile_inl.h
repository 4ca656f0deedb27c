// SPDX-License-Identifier: Apache-2.0
// The micro-kernel of linear and attention: dot products of 4 rows with a few columns at once.
//
// Lanes run along the reduced dimension: both operands are read as they lie, nothing is broadcast,
// and every product of a row and a column has one accumulator of its own. So a result does not
// depend on what else is in the tile: the same bits for one token and for 512.
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

// Columns of one tile: 4 x kTileColumns accumulators and one vector of each row stay in registers.
inline constexpr int kTileColumns = kManyRegisters ? 5 : 2;

// The accumulators of one column. Named members, not arrays: arrays would live in memory. An
// aggregate: g++ compiles implicit constructors for the baseline, which cannot inline vector code.
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

// emit(t, {a_0 . b_t, a_1 . b_t, a_2 . b_t, a_3 . b_t}) for t in [0, T). a [4, k] with rows
// `a_stride` apart, b [T, k]; k is a multiple of kLanes.
template <int T, class Emit>
HWY_INLINE void dot_tile(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                         int64_t b_stride, int64_t k, const Emit& emit) {
  static_assert(T >= 1 && T <= 6);
  const FloatTag df;
  const float* HWY_RESTRICT a1 = a + a_stride;
  const float* HWY_RESTRICT a2 = a + 2 * a_stride;
  const float* HWY_RESTRICT a3 = a + 3 * a_stride;
  const float* HWY_RESTRICT b1 = b + (T > 1 ? 1 : 0) * b_stride;
  const float* HWY_RESTRICT b2 = b + (T > 2 ? 2 : 0) * b_stride;
  const float* HWY_RESTRICT b3 = b + (T > 3 ? 3 : 0) * b_stride;
  const float* HWY_RESTRICT b4 = b + (T > 4 ? 4 : 0) * b_stride;
  const float* HWY_RESTRICT b5 = b + (T > 5 ? 5 : 0) * b_stride;
  const FloatVec zero = hn::Zero(df);
  TileColumn c0{zero, zero, zero, zero}, c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;
  for (int64_t i = 0; i < k; i += kLanes) {
    const FloatVec v0 = hn::LoadU(df, a + i), v1 = hn::LoadU(df, a1 + i);
    const FloatVec v2 = hn::LoadU(df, a2 + i), v3 = hn::LoadU(df, a3 + i);
    c0.add(v0, v1, v2, v3, hn::LoadU(df, b + i));
    if constexpr (T > 1) c1.add(v0, v1, v2, v3, hn::LoadU(df, b1 + i));
    if constexpr (T > 2) c2.add(v0, v1, v2, v3, hn::LoadU(df, b2 + i));
    if constexpr (T > 3) c3.add(v0, v1, v2, v3, hn::LoadU(df, b3 + i));
    if constexpr (T > 4) c4.add(v0, v1, v2, v3, hn::LoadU(df, b4 + i));
    if constexpr (T > 5) c5.add(v0, v1, v2, v3, hn::LoadU(df, b5 + i));
  }
  emit(0, c0.sum());
  if constexpr (T > 1) emit(1, c1.sum());
  if constexpr (T > 2) emit(2, c2.sum());
  if constexpr (T > 3) emit(3, c3.sum());
  if constexpr (T > 4) emit(4, c4.sum());
  if constexpr (T > 5) emit(5, c5.sum());
}

// dot_tile with `columns` known at run time, 1 to kTileColumns.
template <class Emit>
HWY_INLINE void dot_tile_columns(int64_t columns, const float* a, int64_t a_stride, const float* b,
                                 int64_t b_stride, int64_t k, const Emit& emit) {
  static_assert(kTileColumns <= 6);
  switch (columns) {
    case 1:
      return dot_tile<1>(a, a_stride, b, b_stride, k, emit);
    case 2:
      return dot_tile<2>(a, a_stride, b, b_stride, k, emit);
#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_SSE4 && HWY_TARGET != HWY_SSSE3
    case 3:
      return dot_tile<3>(a, a_stride, b, b_stride, k, emit);
    case 4:
      return dot_tile<4>(a, a_stride, b, b_stride, k, emit);
    case 5:
      return dot_tile<5>(a, a_stride, b, b_stride, k, emit);
    case 6:
      return dot_tile<6>(a, a_stride, b, b_stride, k, emit);
#endif
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
