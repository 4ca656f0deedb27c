// SPDX-License-Identifier: Apache-2.0
// The vector types and helpers of the kernels, once per instruction set: tags, unaligned loads,
// sums.
//
// It is included by *_inl.h and by the sources that go through foreach_target. It may contain only
// always-inlined or per-target code: an ordinary inline function would be compiled for one
// instruction set and linked into another.
#if defined(SPILLWAY_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_SIMD_INL_H_
#undef SPILLWAY_CPU_SIMD_INL_H_
#else
#define SPILLWAY_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "tensor/half.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using QuadTag = hn::FixedTag<float, 4>;
using QuadVec = hn::Vec<QuadTag>;
// The number of lanes is 4, 8 or 16, which divides every sub-block of the stored types.
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

// Kernels choose their tiles by these: 32 registers allow larger tiles; SSE4 has neither fused
// multiply-add nor half floats.
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
inline constexpr bool kManyRegisters = false, kFusedMultiplyAdd = false, kHalfFloats = false;
#elif HWY_TARGET == HWY_AVX2
inline constexpr bool kManyRegisters = false, kFusedMultiplyAdd = true, kHalfFloats = true;
#else
inline constexpr bool kManyRegisters = true, kFusedMultiplyAdd = true, kHalfFloats = true;
#endif

HWY_INLINE float half_at(const uint8_t* p) {
  Half half;
  memcpy(&half, p, sizeof(half));
  return to_float(half);
}

HWY_INLINE float bfloat_at(const uint8_t* p) {
  BFloat16 value;
  memcpy(&value, p, sizeof(value));
  return to_float(value);
}

// These load kLanes elements of stored F16, BF16 or F32 from any byte address.
template <class D = FloatTag>
HWY_INLINE FloatVec load_f16(const uint8_t* p) {
  if constexpr (kHalfFloats) {
    const hn::Rebind<hwy::float16_t, D> dh;
    const hn::Repartition<uint8_t, decltype(dh)> du8;
    return hn::PromoteTo(D(), hn::BitCast(dh, hn::LoadU(du8, p)));
  } else {
    HWY_ALIGN float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = half_at(p + 2 * i);
    return hn::Load(D(), lanes);
  }
}
template <class D = FloatTag>
HWY_INLINE FloatVec load_bf16(const uint8_t* p) {
  const hn::Rebind<hwy::bfloat16_t, D> dh;
  const hn::Repartition<uint8_t, decltype(dh)> du8;
  return hn::PromoteTo(D(), hn::BitCast(dh, hn::LoadU(du8, p)));
}
template <class D = FloatTag>
HWY_INLINE FloatVec load_f32(const uint8_t* p) {
  const hn::Repartition<uint8_t, D> du8;
  return hn::BitCast(D(), hn::LoadU(du8, p));
}

// sum4() returns {sum of a, sum of b, sum of c, sum of d}. Lanes are always added up in this order
// only.
template <class V, class D = hn::DFromV<V>>
HWY_INLINE QuadVec fold_blocks(V v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_blocks(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
HWY_INLINE QuadVec sum4(FloatVec a, FloatVec b, FloatVec c, FloatVec d) {
  const FloatTag df;
  const FloatVec ac = hn::Add(hn::InterleaveLower(df, a, c), hn::InterleaveUpper(df, a, c));
  const FloatVec bd = hn::Add(hn::InterleaveLower(df, b, d), hn::InterleaveUpper(df, b, d));
  return fold_blocks(hn::Add(hn::InterleaveLower(df, ac, bd), hn::InterleaveUpper(df, ac, bd)));
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
