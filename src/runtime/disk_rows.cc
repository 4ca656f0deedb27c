// SPDX-License-Identifier: Apache-2.0
#include "runtime/disk_rows.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/join_reads.h"
#include "storage/aligned_buffer.h"

namespace spillway {

DiskRows::DiskRows(Device& host, IoQueue& queue, const WeightViews& weights,
                   std::span<const StreamingSchedule* const> schedules)
    : weights_(weights),
      schedules_(schedules.begin(), schedules.end()),
      reader_(queue, weights.files) {
  size_t bytes = 0;
  for (const StreamingSchedule* schedule : schedules_) {
    for (const StreamedLinear& linear : schedule->linears) {
      if (has(linear)) bytes = std::max(bytes, ExtentReader::buffer_bytes(extents_of(linear)));
    }
  }
  SPW_ASSERT(bytes > 0);
  for (Slot& slot : slots_)
    slot.memory = host.allocate(bytes + kDirectAlignment, MemoryTag::kStaging);
}

bool DiskRows::has(const WeightViews& weights, const StreamedLinear& linear) {
  return std::ranges::any_of(linear.on_cpu, [&](const MatrixRows& rows) {
    return weights.streamed_of(linear.layer, linear.spec_op, rows.matrix).host == nullptr;
  });
}

std::vector<Extent> DiskRows::extents_of(const StreamedLinear& linear) const {
  std::vector<Extent> extents;
  for (const MatrixRows& rows : linear.on_cpu) {
    const StreamedWeight& weight = weights_.streamed_of(linear.layer, linear.spec_op, rows.matrix);
    const std::vector<Extent> some = weight.extents(rows.first, rows.count);
    extents.insert(extents.end(), some.begin(), some.end());
  }
  return extents;
}

void DiskRows::begin(Slot& slot, const StreamedLinear& linear) {
  slot.linear = nullptr;
  slot.read = {};  // waits for reads that were not used
  slot.read =
      reader_.begin(extents_of(linear), aligned_part(slot.memory.data(), slot.memory.bytes()));
  slot.linear = &linear;
  slot.places.clear();
}

// Returns the next op of the same streaming schedule with rows on disk; after the last op the
// first, for the next step.
const StreamedLinear* DiskRows::next_of(const StreamedLinear& linear) const {
  for (const StreamingSchedule* schedule : schedules_) {
    const auto& all = schedule->linears;
    if (all.empty() || &linear < all.data() || &linear >= all.data() + all.size()) continue;
    const auto at = static_cast<size_t>(&linear - all.data());
    for (size_t i = 1; i <= all.size(); ++i) {
      const StreamedLinear& next = all[(at + i) % all.size()];
      if (has(next)) return &next;
    }
  }
  return nullptr;
}

const std::vector<const std::byte*>& DiskRows::take(const StreamedLinear& linear) {
  if (slots_[current_].linear != &linear) current_ = 1 - current_;
  Slot& slot = slots_[current_];
  const bool came_ahead = slot.linear == &linear;
  if (!came_ahead) begin(slot, linear);
  try {
    slot.read.wait();
  } catch (const Error&) {
    slot.linear = nullptr;
    if (!came_ahead) throw;  // else the failure is from reading ahead
    begin(slot, linear);
    slot.linear = nullptr;
    slot.read.wait();
    slot.linear = &linear;
  }
  const StreamedLinear* const next = next_of(linear);
  Slot& other = slots_[1 - current_];
  if (next != nullptr && next != &linear && other.linear != next) {
    try {
      begin(other, *next);
    } catch (const Error&) {
      // take() tries it again when that op comes.
    }
  }
  if (slot.places.empty()) {
    size_t first = 0;
    for (const MatrixRows& rows : linear.on_cpu) {
      const StreamedWeight& weight =
          weights_.streamed_of(linear.layer, linear.spec_op, rows.matrix);
      const size_t count = weight.extents(rows.first, rows.count).size();
      slot.places.push_back(join_reads(slot.read, first, count, slot.memory));
      first += count;
    }
  }
  return slot.places;
}

}  // namespace spillway
