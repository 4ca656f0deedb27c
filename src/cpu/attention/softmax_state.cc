// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/softmax_state.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cpu/parallel.h"

namespace spillway::cpu {
namespace {

constexpr float kNothingSeen = -3.0e38F;  // below any score

template <class F>
void each_row(ThreadPool& pool, const SoftmaxState& sums, const F& f) {
  parallel_if_large(pool, sums.rows() * sums.memory.cols, sums.rows(), 1,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t row = begin; row < end; ++row) f(row);
                    });
}

void check(const SoftmaxState& sums) {
  SPW_ASSERT(sums.memory.dtype == DType::kF32 && sums.heads > 0 && sums.head_dim > 0 &&
             sums.memory.cols == softmax_state_columns(sums.heads, sums.head_dim));
}

}  // namespace

void clear_state(ThreadPool& pool, const SoftmaxState& sums) {
  check(sums);
  each_row(pool, sums, [&](int64_t row) {
    float* const x = sums.memory.f32(row);
    std::fill_n(x, sums.memory.cols, 0.0F);
    std::fill_n(x + sums.maxima(), sums.heads, kNothingSeen);
  });
}

void merge_state(ThreadPool& pool, const SoftmaxState& seen, const SoftmaxState& sums) {
  check(sums);
  SPW_ASSERT(seen.rows() == sums.rows() && seen.heads == sums.heads &&
             seen.head_dim == sums.head_dim && seen.memory.dtype == DType::kF32);
  const int64_t dim = sums.head_dim;
  each_row(pool, sums, [&](int64_t row) {
    const float* const from = seen.memory.f32(row);
    float* const to = sums.memory.f32(row);
    for (int64_t head = 0; head < sums.heads; ++head) {
      const float new_maximum = from[seen.maxima() + head], new_sum = from[seen.sums() + head];
      float& maximum = to[sums.maxima() + head];
      float& sum = to[sums.sums() + head];
      if (new_sum == 0) continue;
      const float top = sum == 0 ? new_maximum : std::max(maximum, new_maximum);
      const float old_weight = sum == 0 ? 0 : std::exp(maximum - top);
      const float new_weight = std::exp(new_maximum - top);
      maximum = top;
      sum = sum * old_weight + new_sum * new_weight;
      float* const out = to + head * dim;
      const float* const add = from + head * dim;
      for (int64_t i = 0; i < dim; ++i) out[i] = out[i] * old_weight + add[i] * new_weight;
    }
  });
}

void finish_state(ThreadPool& pool, const SoftmaxState& sums, const Activations& out) {
  check(sums);
  SPW_ASSERT(out.dtype == DType::kF32 && out.rows == sums.rows() && out.cols == sums.maxima());
  const int64_t dim = sums.head_dim;
  each_row(pool, sums, [&](int64_t row) {
    const float* const from = sums.memory.f32(row);
    float* const to = out.f32(row);
    for (int64_t head = 0; head < sums.heads; ++head) {
      const float inverse = 1 / from[sums.sums() + head];
      for (int64_t i = head * dim; i < (head + 1) * dim; ++i) to[i] = from[i] * inverse;
    }
  });
}

}  // namespace spillway::cpu
