// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_source.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "memory/stream_extents.h"
#include "plan/weight_homes.h"
#include "storage/aligned_buffer.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/quantize_g4.h"
#include "tensor/transpose.h"

namespace spillway {
namespace {

// Quantizes rows of a weight from `stored`, which has them in the file's type, to `to`. Rows are
// those of WeightSlot::stored_rows; the first of them begins a group of 16 if the layout has
// groups. Returns false if there was a number that G4 cannot hold.
bool compress_rows(const WeightTarget& target, const std::byte* stored, std::byte* to,
                   int64_t rows) {
  const DType from = target.weight->file_dtype();
  const int64_t cols = target.weight->slot.cols, stored_row = row_bytes(from, cols),
                row = row_bytes(DType::kG4, cols);
  std::vector<std::byte> group(static_cast<size_t>(kGroupRows * row));
  bool good = true;
  for (int64_t first = 0; first < rows; first += kGroupRows) {
    const int64_t count = std::min(kGroupRows, rows - first);
    const bool pack = target.layout == WeightLayout::kGroups16 && count == kGroupRows;
    std::byte* const quantized = pack ? group.data() : to + first * row;
    good = quantize_g4(from, stored + first * stored_row, quantized, count * cols) && good;
    if (pack) pack_groups(DType::kG4, quantized, to + first * row, 1, cols);
  }
  return good;
}

// Copies rows whose type does not change, in the layout of the target.
void copy_rows(const WeightTarget& target, const std::byte* stored, std::byte* to, int64_t rows) {
  const DType type = target.weight->dtype;
  const int64_t cols = target.weight->slot.stored_cols(), row = row_bytes(type, cols);
  const int64_t groups = target.layout == WeightLayout::kGroups16 ? rows / kGroupRows : 0;
  if (groups > 0) pack_groups(type, stored, to, groups, cols);
  const int64_t packed = groups * kGroupRows;
  std::memcpy(to + packed * row, stored + packed * row, static_cast<size_t>((rows - packed) * row));
}

// Extents to read, and the rows and target that each of them holds.
struct Sources {
  struct Rows {
    size_t target = 0;
    int64_t first = 0;
  };
  std::vector<CutExtent> extents = {};
  std::vector<Rows> rows = {};

  void add(size_t target, const Extent& extent, int64_t first, uint64_t grain) {
    extents.push_back({extent, grain});
    rows.push_back({target, first});
  }
};

// Host memory. It is charged to `host`, unless only a device is known that the host cannot write
// to, as for stream_extents().
class HostMemory {
 public:
  HostMemory(Device& host, uint64_t bytes) : bytes_(bytes) {
    if (host.host_visible()) {
      charged_ = host.allocate(bytes, MemoryTag::kStaging);
    } else {
      uncharged_ = AlignedBuffer(bytes);
    }
  }
  std::byte* data() { return charged_.empty() ? uncharged_.data() : charged_.data(); }
  std::span<const std::byte> bytes() { return {data(), bytes_}; }

 private:
  uint64_t bytes_;
  Buffer charged_;
  AlignedBuffer uncharged_;
};

// Returns the bytes of a row (WeightSlot::stored_rows) in the file.
int64_t file_row_bytes(const BoundWeight& weight) {
  return row_bytes(weight.file_dtype(), weight.slot.stored_cols());
}

}  // namespace

class FileSource::Making {
 public:
  Making(Device& host, Device& device, std::span<const std::filesystem::path> paths,
         std::span<const WeightTarget> targets, const WeightLoadOptions& options)
      : host_(host), device_(device), paths_(paths), targets_(targets), options_(options) {}

  void run() {
    make_as_they_come();
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (is_assembled(*targets_[i].weight, targets_[i].layout)) make_assembled(i);
    }
  }

 private:
  // Makes weights whose pieces can be converted as soon as they are read.
  void make_as_they_come() {
    Sources sources;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const BoundWeight& weight = *targets_[i].weight;
      if (is_assembled(weight, targets_[i].layout)) continue;
      const auto row = static_cast<uint64_t>(file_row_bytes(weight));
      int64_t first = 0;
      for (const Extent& extent : weight.file_extents(0, weight.slot.stored_rows())) {
        sources.add(i, extent, first, uint64_t{kGroupRows} * row);
        first += static_cast<int64_t>(extent.bytes / row);
      }
    }
    if (sources.extents.empty()) return;
    stream_extents(host_, paths_, sources.extents, options_,
                   [&](size_t i, uint64_t offset, std::span<const std::byte> piece) {
                     const auto [target, first] = sources.rows[i];
                     const int64_t row = file_row_bytes(*targets_[target].weight);
                     make_rows(targets_[target], first + static_cast<int64_t>(offset) / row,
                               piece.data(), static_cast<int64_t>(piece.size()) / row);
                   });
  }

  // Makes a weight that can only be converted when all of it has been read.
  void make_assembled(size_t number) {
    const WeightTarget& target = targets_[number];
    const BoundWeight& weight = *target.weight;
    const int64_t rows = weight.slot.stored_rows(), row = file_row_bytes(weight);
    const auto bytes = static_cast<uint64_t>(rows * row);
    HostMemory stored(host_, weight.is_transposed() ? weight.extent->bytes : bytes);
    std::vector<CutExtent> extents;
    std::vector<uint64_t> places;
    uint64_t place = 0;
    for (const Extent& extent : weight.is_transposed() ? std::vector<Extent>{*weight.extent}
                                                       : weight.file_extents(0, rows)) {
      extents.push_back({extent, kDirectAlignment});
      places.push_back(place);
      place += extent.bytes;
    }
    WeightLoadOptions quiet = options_;
    quiet.progress = nullptr;
    stream_extents(host_, paths_, extents, quiet,
                   [&](size_t i, uint64_t offset, std::span<const std::byte> piece) {
                     std::memcpy(stored.data() + places[i] + offset, piece.data(), piece.size());
                   });
    if (!weight.is_transposed()) return make_rows(target, 0, stored.data(), rows);
    HostMemory turned(host_, bytes);
    transpose_columns(stored.bytes(), weight.tensor_columns, weight.first_column, rows,
                      weight.slot.cols, row_bytes(weight.file_dtype(), 1), turned.data());
    make_rows(target, 0, turned.data(), rows);
  }

  // Called by several threads at a time.
  void make_rows(const WeightTarget& target, int64_t first, const std::byte* stored, int64_t rows) {
    const BoundWeight& weight = *target.weight;
    const int64_t cols = weight.slot.stored_cols(), row = row_bytes(weight.dtype, cols);
    std::byte* const to = target.to + first * row;
    std::vector<std::byte> made(device_.host_visible() ? 0 : static_cast<size_t>(rows * row));
    std::byte* const out = device_.host_visible() ? to : made.data();
    if (!weight.loaded_from) {
      copy_rows(target, stored, out, rows);
    } else if (weight.dtype == DType::kF32) {
      float* const values = reinterpret_cast<float*>(out);
      dequantize_reference(*weight.loaded_from, stored, values, rows * cols);
      for (int64_t i = 0; i < rows * cols; ++i)
        values[i] = (values[i] + (weight.less_one ? 1.0F : 0.0F)) * weight.slot.scale;
    } else {
      SPW_ASSERT(weight.dtype == DType::kG4);
      SPW_CHECK(
          compress_rows(target, stored, out, rows), kInvalidArgument,
          "{}: the {} weights at byte {} hold a NaN, an infinity or a number beyond F16, which "
          "4-bit groups cannot; load them without compression",
          printable_path(paths_[static_cast<size_t>(weight.extent->file)]),
          dtype_name(weight.file_dtype()), weight.extent->offset);
    }
    if (out == to) return;
    const std::lock_guard lock(copying_);
    device_.copy_to_device(to, out, made.size());
  }

  Device& host_;
  Device& device_;
  const std::span<const std::filesystem::path> paths_;
  const std::span<const WeightTarget> targets_;
  const WeightLoadOptions& options_;
  std::mutex copying_;  // held while copying to a device's memory
};

void FileSource::make(Device& device, std::span<const WeightTarget> targets,
                      const WeightLoadOptions& options) {
  Making(host_, device, paths_, targets, options).run();
}

}  // namespace spillway
