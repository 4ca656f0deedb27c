// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/norm.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows/norm.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Adds up the lanes of four accumulators, then in double: the error stays near one unit in the last
// place of x.
HWY_INLINE double sum_lanes(FloatVec a, FloatVec b, FloatVec c, FloatVec d) {
  HWY_ALIGN float lanes[4];
  hn::Store(sum4(a, b, c, d), QuadTag(), lanes);
  return (double{lanes[0]} + double{lanes[1]}) + (double{lanes[2]} + double{lanes[3]});
}

// Returns the sum of (x - shift), or of its square.
template <bool square>
double sum_shifted(const float* x, float shift, int64_t count) {
  const FloatTag df;
  const FloatVec offset = hn::Set(df, shift);
  FloatVec s0 = hn::Zero(df), s1 = s0, s2 = s0, s3 = s0;
  const auto add = [offset](FloatVec sum, FloatVec values) HWY_ATTR {
    const FloatVec v = hn::Sub(values, offset);
    return square ? hn::MulAdd(v, v, sum) : hn::Add(v, sum);
  };
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    s0 = add(s0, hn::LoadU(df, x + i));
    s1 = add(s1, hn::LoadU(df, x + i + kLanes));
    s2 = add(s2, hn::LoadU(df, x + i + 2 * kLanes));
    s3 = add(s3, hn::LoadU(df, x + i + 3 * kLanes));
  }
  double total = sum_lanes(s0, s1, s2, s3);
  for (; i < count; ++i) {
    const double v = double{x[i]} - double{shift};
    total += square ? v * v : v;
  }
  return total;
}

double norm_sum(const float* x, float shift, int64_t count, bool square) {
  return square ? sum_shifted<true>(x, shift, count) : sum_shifted<false>(x, shift, count);
}

// Computes out = (x - shift) * scale * weight + bias.
void norm_apply(const float* x, float shift, float scale, const float* weight, const float* bias,
                float* out, int64_t count) {
  const FloatTag df;
  const FloatVec shifts = hn::Set(df, shift), scales = hn::Set(df, scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    FloatVec v = hn::Mul(hn::Sub(hn::LoadU(df, x + i), shifts), scales);
    v = hn::Mul(v, hn::LoadU(df, weight + i));
    if (bias != nullptr) v = hn::Add(v, hn::LoadU(df, bias + i));
    hn::StoreU(v, df, out + i);
  }
  for (; i < count; ++i) {
    const float v = (x[i] - shift) * scale * weight[i];
    out[i] = bias == nullptr ? v : v + bias[i];
  }
}

// Computes out += (x - shift) * scale * weight + bias.
void norm_add(const float* x, float shift, float scale, const float* weight, const float* bias,
              float* out, int64_t count) {
  const FloatTag df;
  const FloatVec shifts = hn::Set(df, shift), scales = hn::Set(df, scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    FloatVec v = hn::Mul(hn::Sub(hn::LoadU(df, x + i), shifts), scales);
    v = hn::Mul(v, hn::LoadU(df, weight + i));
    if (bias != nullptr) v = hn::Add(v, hn::LoadU(df, bias + i));
    hn::StoreU(hn::Add(hn::LoadU(df, out + i), v), df, out + i);
  }
  for (; i < count; ++i) {
    const float v = (x[i] - shift) * scale * weight[i];
    out[i] += bias == nullptr ? v : v + bias[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(norm_sum);
HWY_EXPORT(norm_apply);
HWY_EXPORT(norm_add);

namespace cpu {
namespace {

void norm_rows(ThreadPool& pool, Workspace& workspace, NormKind kind, const Activations& x,
               const WeightView& weight, const WeightView& bias, float eps, const Activations& out,
               bool adds) {
  const int64_t dim = x.cols;
  SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
  SPW_ASSERT(out.rows == x.rows && out.cols == dim);
  SPW_ASSERT(weight.empty() || weight.cols == dim);
  SPW_ASSERT(bias.empty() || bias.cols == dim);
  float* weights = workspace.shared(static_cast<size_t>(2 * dim));
  float* biases = bias.empty() ? nullptr : weights + dim;
  if (weight.empty()) {
    std::fill_n(weights, dim, 1.0F);
  } else {
    decode_row(weight.dtype, weight.data, weights, dim);
  }
  if (biases != nullptr) decode_row(bias.dtype, bias.data, biases, dim);

  parallel_if_large(pool, x.rows * dim * 2, x.rows, 1, [&](int64_t begin, int64_t end, int) {
    const auto size = static_cast<double>(dim);
    for (int64_t t = begin; t < end; ++t) {
      const float* row = x.f32(t);
      float mean = 0;
      if (kind == NormKind::kLayer) {
        mean = static_cast<float>(HWY_DYNAMIC_DISPATCH(norm_sum)(row, 0, dim, false) / size);
      }
      const double squares = HWY_DYNAMIC_DISPATCH(norm_sum)(row, mean, dim, true);
      const auto scale = static_cast<float>(1 / std::sqrt(squares / size + double{eps}));
      if (adds) {
        HWY_DYNAMIC_DISPATCH(norm_add)(row, mean, scale, weights, biases, out.f32(t), dim);
      } else {
        HWY_DYNAMIC_DISPATCH(norm_apply)(row, mean, scale, weights, biases, out.f32(t), dim);
      }
    }
  });
}

}  // namespace

void norm(ThreadPool& pool, Workspace& workspace, NormKind kind, const Activations& x,
          const WeightView& weight, const WeightView& bias, float eps, const Activations& out) {
  norm_rows(pool, workspace, kind, x, weight, bias, eps, out, /*adds=*/false);
}

void add_norm(ThreadPool& pool, Workspace& workspace, NormKind kind, const Activations& x,
              const WeightView& weight, const WeightView& bias, float eps, const Activations& out) {
  norm_rows(pool, workspace, kind, x, weight, bias, eps, out, /*adds=*/true);
}

void scale(ThreadPool& pool, const Activations& x, float factor) {
  SPW_ASSERT(x.dtype == DType::kF32);
  parallel_if_large(pool, x.rows * x.cols, x.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* const row = x.f32(t);
      for (int64_t i = 0; i < x.cols; ++i) row[i] *= factor;
    }
  });
}

}  // namespace cpu
}  // namespace spillway
#endif
