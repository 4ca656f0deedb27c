// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/embed.h"

#include <vector>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/parallel.h"
#include "tensor/packed_layout.h"

namespace spillway::cpu {

void embed(ThreadPool& pool, const WeightView& table, std::span<const int32_t> ids,
           const Activations& out, LinearMode mode) {
  const auto count = static_cast<int64_t>(ids.size());
  SPW_ASSERT(out.dtype == DType::kF32 && out.rows == count && out.cols == table.cols);
  for (const int32_t id : ids) SPW_ASSERT(id >= 0 && id < table.rows);
  const int64_t grouped = table.grouped_rows();
  parallel_if_large(pool, count * table.cols, count, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<std::byte> unpacked(grouped > 0 ? static_cast<size_t>(table.row_bytes()) : 0);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      const std::byte* row = table.row(id);
      if (id < grouped) {
        unpack_row(table.dtype, table.row(id / kGroupRows * kGroupRows), id % kGroupRows,
                   unpacked.data(), table.cols);
        row = unpacked.data();
      }
      if (mode == LinearMode::kAccumulate) {
        decode_row_add(table.dtype, row, out.f32(i), table.cols);
      } else {
        decode_row(table.dtype, row, out.f32(i), table.cols);
      }
    }
  });
}

}  // namespace spillway::cpu
