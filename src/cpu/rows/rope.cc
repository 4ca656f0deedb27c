// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/rope.h"

#include <cmath>

#include "base/error.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows/rope.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Rotates the pairs (2 i, 2 i + 1) of one head. angles: `pairs` of (cos, sin).
void rotate_interleaved(float* x, const float* angles, int64_t pairs) {
  const FloatTag df;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    FloatVec a, b, cosine, sine;
    hn::LoadInterleaved2(df, x + 2 * i, a, b);
    hn::LoadInterleaved2(df, angles + 2 * i, cosine, sine);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)),
                          hn::Add(hn::Mul(a, sine), hn::Mul(b, cosine)), df, x + 2 * i);
  }
  for (; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * angles[2 * i] - b * angles[2 * i + 1];
    x[2 * i + 1] = a * angles[2 * i + 1] + b * angles[2 * i];
  }
}

// Rotates the pairs (i, i + pairs) of one head.
void rotate_halves(float* x, const float* angles, int64_t pairs) {
  const FloatTag df;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const FloatVec a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + pairs + i);
    FloatVec cosine, sine;
    hn::LoadInterleaved2(df, angles + 2 * i, cosine, sine);
    hn::StoreU(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), df, x + i);
    hn::StoreU(hn::Add(hn::Mul(a, sine), hn::Mul(b, cosine)), df, x + pairs + i);
  }
  for (; i < pairs; ++i) {
    const float a = x[i], b = x[pairs + i];
    x[i] = a * angles[2 * i] - b * angles[2 * i + 1];
    x[pairs + i] = a * angles[2 * i + 1] + b * angles[2 * i];
  }
}

void rotate_heads(float* x, int64_t heads, int64_t head_dim, const float* angles, int64_t pairs,
                  RopeStyle style) {
  for (int64_t h = 0; h < heads; ++h) {
    if (style == RopeStyle::kInterleaved) {
      rotate_interleaved(x + h * head_dim, angles, pairs);
    } else {
      rotate_halves(x + h * head_dim, angles, pairs);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(rotate_heads);

namespace cpu {

void rope_angles(ThreadPool& pool, std::span<const int32_t> positions,
                 std::span<const float> inverse_frequency, float scale, const Activations& out) {
  const auto count = static_cast<int64_t>(positions.size());
  const auto pairs = static_cast<int64_t>(inverse_frequency.size());
  SPW_ASSERT(out.dtype == DType::kF32 && out.rows == count && out.cols == 2 * pairs);
  constexpr int64_t kWorkPerAngle = 64;
  parallel_if_large(pool, count * pairs * kWorkPerAngle, count, 1,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t i = begin; i < end; ++i) {
                        const double position = positions[static_cast<size_t>(i)];
                        float* row = out.f32(i);
                        for (const float frequency : inverse_frequency) {
                          const double angle = position * double{frequency};
                          *row++ = static_cast<float>(std::cos(angle) * double{scale});
                          *row++ = static_cast<float>(std::sin(angle) * double{scale});
                        }
                      }
                    });
}

void rope(ThreadPool& pool, const Activations& x, int head_dim, const Activations& angles,
          RopeStyle style) {
  SPW_ASSERT(x.dtype == DType::kF32 && angles.dtype == DType::kF32);
  SPW_ASSERT(head_dim > 0 && x.cols % head_dim == 0 && angles.rows == x.rows);
  SPW_ASSERT(angles.cols % 2 == 0 && angles.cols <= head_dim);
  parallel_if_large(pool, x.rows * x.cols * 2, x.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      HWY_DYNAMIC_DISPATCH(rotate_heads)
      (x.f32(t), x.cols / head_dim, head_dim, angles.f32(t), angles.cols / 2, style);
    }
  });
}

}  // namespace cpu
}  // namespace spillway
#endif
