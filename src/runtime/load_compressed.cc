// SPDX-License-Identifier: Apache-2.0
#include "runtime/load_compressed.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "memory/stream_extents.h"
#include "tensor/packed_layout.h"
#include "tensor/quantize_g4.h"

namespace spillway {
namespace {

// Rows [begin, end) of a piece, which begins with a group of 16 rows of the matrix; false when
// there was a number that does not fit.
bool compress_rows(const CompressedWeight& w, const std::byte* plain, std::byte* to, int64_t begin,
                   int64_t end) {
  const DType from = w.weight->file_dtype();
  const int64_t cols = w.weight->slot.cols, plain_row = row_bytes(from, cols),
                row = row_bytes(DType::kG4, cols);
  std::vector<std::byte> group(static_cast<size_t>(kGroupRows * row));
  bool good = true;
  for (int64_t first = begin; first < end; first += kGroupRows) {
    const int64_t rows = std::min(kGroupRows, end - first);
    const bool pack = w.layout == WeightLayout::kGroups16 && rows == kGroupRows;
    std::byte* const quantized = pack ? group.data() : to + first * row;
    good = quantize_g4(from, plain + first * plain_row, quantized, rows * cols) && good;
    if (pack) pack_groups(DType::kG4, quantized, to + first * row, 1, cols);
  }
  return good;
}

}  // namespace

void load_compressed(Device& device, std::span<const std::filesystem::path> paths,
                     std::span<const CompressedWeight> weights, const WeightLoadOptions& options) {
  std::vector<StreamedExtent> extents;
  for (const CompressedWeight& w : weights) {
    SPW_ASSERT(w.weight->dtype == DType::kG4);
    const int64_t plain_row = row_bytes(w.weight->file_dtype(), w.weight->slot.cols);
    extents.push_back({w.weight->extent.value(), static_cast<uint64_t>(kGroupRows * plain_row)});
  }
  ThreadPool pool(device.info().threads);
  stream_extents(
      device, paths, extents, options,
      [&](size_t i, uint64_t offset, std::span<const std::byte> piece) {
        const CompressedWeight& w = weights[i];
        const int64_t cols = w.weight->slot.cols,
                      plain_row = row_bytes(w.weight->file_dtype(), cols);
        std::byte* const to =
            w.to + static_cast<int64_t>(offset) / plain_row * row_bytes(DType::kG4, cols);
        std::atomic<bool> good{true};
        pool.parallel_for(static_cast<int64_t>(piece.size()) / plain_row, kGroupRows,
                          [&](int64_t begin, int64_t end, int) {
                            if (!compress_rows(w, piece.data(), to, begin, end)) good = false;
                          });
        const Extent& extent = *w.weight->extent;
        SPW_CHECK(
            good, kInvalidArgument,
            "{}: the {} weights at byte {} hold a NaN, an infinity or a number beyond F16, which "
            "4-bit groups cannot; load them without compression",
            paths[static_cast<size_t>(extent.file)].string(), dtype_name(w.weight->file_dtype()),
            extent.offset);
      });
}

}  // namespace spillway
