// SPDX-License-Identifier: Apache-2.0
// Rows that the CPU multiplies of matrices that live on disk: they come into host memory ahead of
// their op (HeteGen's staging, where the disk is the third that works beside CPU and link).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "plan/stream_order.h"
#include "runtime/model_weights.h"
#include "storage/extent_reader.h"

namespace spillway {

// Two buffers: an op's rows are multiplied in one while the next op's are read into the other.
// Called by the host lane, in the order of ops; what came ahead for an op that is not the next one
// is dropped. Queue and weights must outlive it.
class DiskRows {
 public:
  // For steps by these orders. Throws kOutOfMemory.
  DiskRows(Device& host, IoQueue& queue, const WeightViews& weights,
           std::span<const StreamOrder* const> orders);

  // Whether an op has such rows.
  static bool has(const WeightViews& weights, const StreamedLinear& linear);
  bool has(const StreamedLinear& linear) const { return has(weights_, linear); }
  // Where they are, in the order of linear.on_cpu; waits until they are there. The next op's begin
  // to come. Throws kIo; a later call tries again.
  const std::vector<const std::byte*>& take(const StreamedLinear& linear);

 private:
  struct Slot {
    const StreamedLinear* linear = nullptr;  // whose rows are in it, or on their way
    Buffer memory;
    std::vector<const std::byte*> places = {};  // of linear->on_cpu; empty until they are there
    ExtentBatch read = {};                      // into it; last: it waits before the memory goes
  };
  std::vector<Extent> extents_of(const StreamedLinear& linear) const;
  void begin(Slot& slot, const StreamedLinear& linear);
  const StreamedLinear* next_of(const StreamedLinear& linear) const;

  const WeightViews& weights_;
  std::vector<const StreamOrder*> orders_;
  ExtentReader reader_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
};

}  // namespace spillway
