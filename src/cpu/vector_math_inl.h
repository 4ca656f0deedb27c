// SPDX-License-Identifier: Apache-2.0
// Computes exp and the activation functions on vectors, accurate to a few units in the last place.
#if defined(SPILLWAY_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_VECTOR_MATH_INL_H_
#undef SPILLWAY_CPU_VECTOR_MATH_INL_H_
#else
#define SPILLWAY_CPU_VECTOR_MATH_INL_H_
#endif

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Returns e^x for x <= 88; 0 below -87.3 (where the result would be subnormal), also for -infinity;
// NaN for NaN. It uses Cody-Waite reduction to |r| <= ln(2) / 2, then a polynomial of degree 6; the
// error is below 2e-7.
HWY_INLINE FloatVec exp_vec(FloatVec x) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  const auto low = hn::Set(df, -87.3F);
  // Smaller x are set to 0 at the end. They are not clamped here because a maximum would turn NaN
  // into a number.
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(df, 1.44269504F)));
  const auto nf = hn::ConvertTo(df, n);
  auto r = hn::NegMulAdd(nf, hn::Set(df, 0.693359375F), x);
  r = hn::NegMulAdd(nf, hn::Set(df, -2.12194440e-4F), r);
  auto p = hn::Set(df, 1.0F / 720);
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F / 120));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F / 24));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F / 6));
  p = hn::MulAdd(p, r, hn::Set(df, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F));
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, low), hn::Mul(p, power));
}

// Returns 1 / (1 + e^-x).
HWY_INLINE FloatVec sigmoid_vec(FloatVec x) {
  const FloatTag df;
  const auto one = hn::Set(df, 1.0F);
  return hn::Div(one, hn::Add(one, exp_vec(hn::Min(hn::Neg(x), hn::Set(df, 88.0F)))));
}

// Returns half of erfc(z) for z >= 0: e^(-z^2) times a polynomial in t = 1 / (1 + p z), after
// Abramowitz and Stegun 7.1.26 (absolute error of erfc below 1.5e-7).
HWY_INLINE FloatVec half_erfc_vec(FloatVec z) {
  const FloatTag df;
  const auto one = hn::Set(df, 1.0F);
  const auto t = hn::Div(one, hn::MulAdd(hn::Set(df, 0.3275911F), z, one));
  auto p = hn::Set(df, 1.061405429F);
  p = hn::MulAdd(p, t, hn::Set(df, -1.453152027F));
  p = hn::MulAdd(p, t, hn::Set(df, 1.421413741F));
  p = hn::MulAdd(p, t, hn::Set(df, -0.284496736F));
  p = hn::MulAdd(p, t, hn::Set(df, 0.254829592F));
  const auto tail = exp_vec(hn::Neg(hn::Mul(z, z)));
  return hn::Mul(hn::Mul(hn::Mul(p, t), hn::Set(df, 0.5F)), tail);
}

struct ReluFn {
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const auto zero = hn::Zero(FloatTag());
    return hn::IfThenElse(hn::Lt(x, zero), zero, x);  // NaN stays NaN
  }
};
struct SiluFn {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, sigmoid_vec(x)); }
};
// Computes x * (1 + erf(x / sqrt(2))) / 2.
struct GeluFn {
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const FloatTag df;
    const auto tail = half_erfc_vec(hn::Abs(hn::Mul(x, hn::Set(df, 0.70710678F))));
    const auto below = hn::Lt(x, hn::Zero(df));
    return hn::Mul(x, hn::IfThenElse(below, tail, hn::Sub(hn::Set(df, 1.0F), tail)));
  }
};
// Computes x * (1 + tanh(u)) / 2 = x * sigmoid(2 u), with u = sqrt(2 / pi) * (x + 0.044715 x^3).
struct GeluTanhFn {
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const FloatTag df;
    const auto square = hn::Mul(x, x);
    const auto inner = hn::MulAdd(hn::Mul(square, x), hn::Set(df, 0.044715F), x);
    return hn::Mul(x, sigmoid_vec(hn::Mul(inner, hn::Set(df, 1.5957691216F))));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
