// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows/score.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/vector_math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

float largest_of(const float* x, int64_t count) {
  const FloatTag df;
  float largest = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  if (count >= kLanes) {
    FloatVec lanes = hn::LoadU(df, x);
    for (i = kLanes; i + kLanes <= count; i += kLanes) lanes = hn::Max(lanes, hn::LoadU(df, x + i));
    largest = hn::GetLane(hn::MaxOfLanes(df, lanes));
  }
  for (; i < count; ++i) largest = std::max(largest, x[i]);
  return largest;
}

// Returns the sum of e^(x - top); NaN if any term is. Within a piece it is added up in F32, which
// is as accurate as the terms, and across pieces in double.
double sum_of_exponents(const float* x, int64_t count, float top) {
  constexpr int64_t kPiece = 64;  // vectors
  const FloatTag df;
  const FloatVec off = hn::Set(df, top);
  double sum = 0;
  int64_t i = 0;
  while (i + kLanes <= count) {
    const int64_t end = std::min(count - kLanes + 1, i + kPiece * kLanes);
    FloatVec lanes = hn::Zero(df);
    for (; i < end; i += kLanes)
      lanes = hn::Add(lanes, exp_vec(hn::Sub(hn::LoadU(df, x + i), off)));
    sum += hn::GetLane(hn::SumOfLanes(df, lanes));
  }
  for (; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(largest_of);
HWY_EXPORT(sum_of_exponents);

namespace cpu {
namespace {

constexpr int64_t kWorkPerLogit = 8;  // relative to one multiply-add

TokenScore score_row(const float* row, int64_t count, int32_t id) {
  const float top = HWY_DYNAMIC_DISPATCH(largest_of)(row, count);
  const double sum = HWY_DYNAMIC_DISPATCH(sum_of_exponents)(row, count, top);
  const auto best = static_cast<int32_t>(std::find(row, row + count, top) - row);
  return {static_cast<float>(static_cast<double>(row[id]) - top - std::log(sum)), best};
}

}  // namespace

void score(ThreadPool& pool, const Activations& logits, std::span<const int32_t> ids,
           std::span<TokenScore> scores) {
  SPW_ASSERT(logits.dtype == DType::kF32 && logits.rows == static_cast<int64_t>(ids.size()) &&
             ids.size() == scores.size());
  for (const int32_t id : ids) SPW_ASSERT(id >= 0 && id < logits.cols);
  parallel_if_large(pool, logits.rows * logits.cols * kWorkPerLogit, logits.rows, 1,
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t i = begin; i < end; ++i) {
                        const auto at = static_cast<size_t>(i);
                        scores[at] = score_row(logits.f32(i), logits.cols, ids[at]);
                      }
                    });
}

}  // namespace cpu
}  // namespace spillway
#endif
