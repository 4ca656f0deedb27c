// SPDX-License-Identifier: Apache-2.0
#include "cpu/gather.h"

#include <cstring>

#include "base/error.h"
#include "cpu/parallel.h"

namespace spillway::cpu {

void gather_rows(ThreadPool& pool, const Activations& x, std::span<const int32_t> rows,
                 const Activations& out) {
  const auto count = static_cast<int64_t>(rows.size());
  SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
  SPW_ASSERT(out.rows == count && out.cols == x.cols);
  for (const int32_t row : rows) SPW_ASSERT(row >= 0 && row < x.rows);
  parallel_if_large(pool, count * x.cols / 4, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out.f32(i), x.f32(rows[static_cast<size_t>(i)]),
                  static_cast<size_t>(x.cols) * sizeof(float));
    }
  });
}

}  // namespace spillway::cpu
