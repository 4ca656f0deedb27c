// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_tables.h"

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "tensor/packed_layout.h"

namespace spillway {
namespace {

int64_t row_bytes_of(const WeightView& table) { return table.empty() ? 0 : table.row_bytes(); }

void look_up(const WeightView& table, std::span<const int32_t> ids, std::byte* to) {
  for (const int32_t id : ids) {
    SPW_ASSERT(id >= 0 && id < table.rows);
    if (id < table.grouped_rows()) {
      unpack_row(table.dtype, table.row(id / kGroupRows * kGroupRows), id % kGroupRows, to,
                 table.cols);
    } else {
      std::memcpy(to, table.row(id), static_cast<size_t>(table.row_bytes()));
    }
    to += table.row_bytes();
  }
}

}  // namespace

HostTables::HostTables(Device& device, Device& host, const WeightViews::HostTables& tables,
                       int rows)
    : device_(device),
      tables_(tables),
      sizes_{row_bytes_of(tables.by_token), row_bytes_of(tables.by_position), rows},
      numbers_(static_cast<size_t>(rows)),
      rows_(host, device, static_cast<size_t>(sizes_.bytes()), MemoryTag::kStaging),
      copied_(device.make_event()) {
  std::iota(numbers_.begin(), numbers_.end(), 0);
}

// A copy may still read the pinned memory.
HostTables::~HostTables() { copied_->synchronize(); }

WeightViews::HostTables HostTables::bring(std::span<const int32_t> ids,
                                          std::span<const int32_t> positions, std::byte* to) {
  SPW_ASSERT(ids.size() <= numbers_.size());
  copied_->synchronize();
  WeightViews::HostTables small;
  std::vector<CopyPiece> copies;
  const auto add = [&](const WeightView& table, std::span<const int32_t> of, uint64_t offset) {
    const WeightView rows{table.dtype, static_cast<int64_t>(of.size()), table.cols, to + offset};
    look_up(table, of, rows_.data() + offset);
    copies.push_back({to + offset, rows_.data() + offset, static_cast<size_t>(rows.bytes())});
    return rows;
  };
  small.by_token = add(tables_.by_token, ids, 0);
  if (!tables_.by_position.empty()) {
    small.by_position = add(tables_.by_position, positions, sizes_.position_offset());
  }
  device_.compute().copy_to_device(copies);
  device_.compute().record(*copied_);
  return small;
}

}  // namespace spillway
