// SPDX-License-Identifier: Apache-2.0
#include "cpu/embed.h"

#include "base/error.h"
#include "cpu/decode_row.h"
#include "cpu/parallel.h"

namespace spillway::cpu {

void embed(ThreadPool& pool, const WeightView& table, std::span<const int32_t> ids,
           const Activations& out, LinearMode mode) {
  const auto count = static_cast<int64_t>(ids.size());
  SPW_ASSERT(out.dtype == DType::kF32 && out.rows == count && out.cols == table.cols);
  for (const int32_t id : ids) SPW_ASSERT(id >= 0 && id < table.rows);
  parallel_if_large(pool, count * table.cols, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* row = table.row(ids[static_cast<size_t>(i)]);
      if (mode == LinearMode::kAccumulate) {
        decode_row_add(table.dtype, row, out.f32(i), table.cols);
      } else {
        decode_row(table.dtype, row, out.f32(i), table.cols);
      }
    }
  });
}

}  // namespace spillway::cpu
