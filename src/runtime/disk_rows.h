// SPDX-License-Identifier: Apache-2.0
// Reads the rows that the CPU multiplies of matrices on disk into host memory, ahead of their op
// (HeteGen's staging, with the disk working beside CPU and link).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "plan/streaming_schedule.h"
#include "runtime/model_weights.h"
#include "storage/extent_reader.h"

namespace spillway {

// Has two buffers: an op's rows are multiplied in one while the next op's rows are read into the
// other. Called by the CPU executor, in the order of ops; rows read ahead for an op that turns out
// not to be the next one are dropped. Queue and weights must outlive it.
class DiskRows {
 public:
  // For steps with these streaming schedules. Throws kOutOfMemory.
  DiskRows(Device& host, IoQueue& queue, const WeightViews& weights,
           std::span<const StreamingSchedule* const> schedules);

  // Whether the CPU has rows of an op that are on disk.
  static bool has(const WeightViews& weights, const StreamedLinear& linear);
  bool has(const StreamedLinear& linear) const { return has(weights_, linear); }
  // Waits for an op's rows and returns where they are, in the order of linear.on_cpu. Starts
  // reading the next op's rows. Throws kIo; a later call tries again.
  const std::vector<const std::byte*>& take(const StreamedLinear& linear);

 private:
  struct Slot {
    const StreamedLinear* linear = nullptr;  // whose rows are in it, or being read
    Buffer memory;
    std::vector<const std::byte*> places = {};  // of linear->on_cpu; empty until they are read
    ExtentBatch read = {};  // into memory; last: it waits before the memory goes
  };
  std::vector<Extent> extents_of(const StreamedLinear& linear) const;
  void begin(Slot& slot, const StreamedLinear& linear);
  const StreamedLinear* next_of(const StreamedLinear& linear) const;

  const WeightViews& weights_;
  std::vector<const StreamingSchedule*> schedules_;
  ExtentReader reader_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
};

}  // namespace spillway
