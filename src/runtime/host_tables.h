// SPDX-License-Identifier: Apache-2.0
// Embeddings that live in host memory: rows are looked up there, and only these are copied to the
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "plan/activation_sizes.h"
#include "runtime/model_weights.h"

namespace spillway {

// Copies the embedding rows of a micro-batch to the device as they are stored, as two small tables
// that have just these rows, in order. The device decodes them as it would from the whole tables,
// so results have the same bits. Used from one thread; the devices and the tables must outlive it.
class HostTables {
 public:
  // For at most `rows` rows at a time. Throws kOutOfMemory.
  HostTables(Device& device, Device& host, const WeightViews::HostTables& tables, int rows);
  ~HostTables();
  HostTables(const HostTables&) = delete;
  HostTables& operator=(const HostTables&) = delete;

  const LookedUpRows& sizes() const { return sizes_; }
  // Row numbers 0, 1, ..., rows - 1 of a small table. All calls return the same memory.
  std::span<const int32_t> numbers(int64_t rows) const {
    return std::span(numbers_).first(static_cast<size_t>(rows));
  }
  // Copies the rows of these ids to `to` on the device (at most sizes().bytes()), for ops queued
  // from now on. `positions` is ignored if there is no position table.
  WeightViews::HostTables bring(std::span<const int32_t> ids, std::span<const int32_t> positions,
                                std::byte* to);

 private:
  Device& device_;
  const WeightViews::HostTables& tables_;
  LookedUpRows sizes_;
  std::vector<int32_t> numbers_;
  PinnedBuffer rows_;
  std::unique_ptr<DeviceEvent> copied_;  // the last copy out of rows_ is done
};

}  // namespace spillway
