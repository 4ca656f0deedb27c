// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/activation.h"

#include "base/error.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows/activation.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/vector_math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Computes out = f(x) * up, or f(x) if there is no `up`. The end of a row goes through a padded
// copy, so that an element's value does not depend on its position.
template <class Fn>
void apply(const Fn& fn, const float* x, const float* up, float* out, int64_t count) {
  const FloatTag df;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec value = fn(hn::LoadU(df, x + i));
    hn::StoreU(up == nullptr ? value : hn::Mul(value, hn::LoadU(df, up + i)), df, out + i);
  }
  if (i == count) return;
  HWY_ALIGN float x_tail[kLanes] = {}, up_tail[kLanes] = {};
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  memcpy(x_tail, x + i, bytes);
  if (up != nullptr) memcpy(up_tail, up + i, bytes);
  FloatVec value = fn(hn::Load(df, x_tail));
  if (up != nullptr) value = hn::Mul(value, hn::Load(df, up_tail));
  hn::Store(value, df, x_tail);
  memcpy(out + i, x_tail, bytes);
}

void activate_row(ActivationKind kind, const float* x, const float* up, float* out, int64_t count) {
  switch (kind) {
    case ActivationKind::kRelu:
      return apply(ReluFn(), x, up, out, count);
    case ActivationKind::kGelu:
      return apply(GeluFn(), x, up, out, count);
    case ActivationKind::kGeluTanh:
      return apply(GeluTanhFn(), x, up, out, count);
    case ActivationKind::kSilu:
      return apply(SiluFn(), x, up, out, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(activate_row);

namespace cpu {
namespace {

constexpr int64_t kGrain = 256;          // the least number of elements per worker
constexpr int64_t kWorkPerElement = 16;  // relative to one multiply-add

// Threads split the columns of all rows if rows are few, so that a single long row is shared too.
void run(ThreadPool& pool, ActivationKind kind, const Activations& x, const Activations* up,
         const Activations& out) {
  SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
  SPW_ASSERT(out.rows == x.rows && out.cols == x.cols);
  SPW_ASSERT(up == nullptr ||
             (up->dtype == DType::kF32 && up->rows == x.rows && up->cols == x.cols));
  const bool split_columns = x.rows < pool.threads();
  const auto part = [&](int64_t first_row, int64_t last_row, int64_t begin, int64_t end) {
    for (int64_t t = first_row; t < last_row; ++t) {
      HWY_DYNAMIC_DISPATCH(activate_row)
      (kind, x.f32(t) + begin, up == nullptr ? nullptr : up->f32(t) + begin, out.f32(t) + begin,
       end - begin);
    }
  };
  parallel_if_large(pool, x.rows * x.cols * kWorkPerElement, split_columns ? x.cols : x.rows,
                    split_columns ? kGrain : 1, [&](int64_t begin, int64_t end, int) {
                      if (split_columns) {
                        part(0, x.rows, begin, end);
                      } else {
                        part(begin, end, 0, x.cols);
                      }
                    });
}

}  // namespace

void activate(ThreadPool& pool, ActivationKind kind, const Activations& x) {
  run(pool, kind, x, nullptr, x);
}

void gated_activate(ThreadPool& pool, ActivationKind kind, const Activations& gate,
                    const Activations& up, const Activations& out) {
  run(pool, kind, gate, &up, out);
}

}  // namespace cpu
}  // namespace spillway
#endif
