// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_source.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "memory/stream_extents.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/quantize_g4.h"

namespace spillway {
namespace {

// `rows` rows that begin with a group of 16 rows of the matrix, `plain` in the file's type; false
// when there was a number that does not fit.
bool compress_rows(const WeightTarget& target, const std::byte* plain, std::byte* to,
                   int64_t rows) {
  const DType from = target.weight->file_dtype();
  const int64_t cols = target.weight->slot.cols, plain_row = row_bytes(from, cols),
                row = row_bytes(DType::kG4, cols);
  std::vector<std::byte> group(static_cast<size_t>(kGroupRows * row));
  bool good = true;
  for (int64_t first = 0; first < rows; first += kGroupRows) {
    const int64_t count = std::min(kGroupRows, rows - first);
    const bool pack = target.layout == WeightLayout::kGroups16 && count == kGroupRows;
    std::byte* const quantized = pack ? group.data() : to + first * row;
    good = quantize_g4(from, plain + first * plain_row, quantized, count * cols) && good;
    if (pack) pack_groups(DType::kG4, quantized, to + first * row, 1, cols);
  }
  return good;
}

// As above, for rows whose type stays.
void copy_rows(const WeightTarget& target, const std::byte* stored, std::byte* to, int64_t rows) {
  const DType type = target.weight->dtype;
  const int64_t cols = target.weight->slot.cols, row = row_bytes(type, cols);
  const int64_t groups = target.layout == WeightLayout::kGroups16 ? rows / kGroupRows : 0;
  if (groups > 0) pack_groups(type, stored, to, groups, cols);
  const int64_t packed = groups * kGroupRows;
  std::memcpy(to + packed * row, stored + packed * row, static_cast<size_t>((rows - packed) * row));
}

}  // namespace

void FileSource::make(Device& device, std::span<const WeightTarget> targets,
                      const WeightLoadOptions& options) {
  std::vector<CutExtent> extents;
  for (const WeightTarget& target : targets) {
    const BoundWeight& weight = *target.weight;
    const int64_t row = row_bytes(weight.file_dtype(), weight.slot.cols);
    extents.push_back({weight.extent.value(), static_cast<uint64_t>(kGroupRows * row)});
  }
  std::mutex copying;  // into a device's memory: one piece at a time
  stream_extents(
      host_, paths_, extents, options,
      [&](size_t i, uint64_t offset, std::span<const std::byte> piece) {
        const WeightTarget& target = targets[i];
        const BoundWeight& weight = *target.weight;
        const int64_t file_row = row_bytes(weight.file_dtype(), weight.slot.cols),
                      row = row_bytes(weight.dtype, weight.slot.cols);
        const int64_t first = static_cast<int64_t>(offset) / file_row,
                      rows = static_cast<int64_t>(piece.size()) / file_row;
        std::byte* const to = target.to + first * row;
        std::vector<std::byte> made(device.host_visible() ? 0 : static_cast<size_t>(rows * row));
        std::byte* const out = device.host_visible() ? to : made.data();
        if (!weight.loaded_from) {
          copy_rows(target, piece.data(), out, rows);
        } else if (weight.dtype == DType::kF32) {
          dequantize_reference(*weight.loaded_from, piece.data(), reinterpret_cast<float*>(out),
                               rows * weight.slot.cols);
        } else {
          SPW_ASSERT(weight.dtype == DType::kG4);
          SPW_CHECK(
              compress_rows(target, piece.data(), out, rows), kInvalidArgument,
              "{}: the {} weights at byte {} hold a NaN, an infinity or a number beyond F16, which "
              "4-bit groups cannot; load them without compression",
              printable_path(paths_[static_cast<size_t>(weight.extent->file)]),
              dtype_name(weight.file_dtype()), weight.extent->offset);
        }
        if (out != to) {
          const std::lock_guard lock(copying);
          device.copy_to_device(to, out, made.size());
        }
      });
}

}  // namespace spillway
