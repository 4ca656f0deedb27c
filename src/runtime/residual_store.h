// SPDX-License-Identifier: Apache-2.0
// The residual stream of a step, between the layers: on the device, or in host memory, from where
// one micro-batch at a time comes to the device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "runtime/stall_clock.h"

namespace spillway {

struct ResidualStoreOptions {
  int64_t tokens = 0;         // of a step
  int64_t device_tokens = 0;  // of those: on the device, the first ones
  int64_t micro_tokens = 0;   // of a micro-batch
  int64_t columns = 0;
  bool overlap = true;
};

// Rows of F32. Micro-batches that are on the device whole stay there; the others have two slots in
// turn, so that one arrives and one leaves while a third computes. Called from one thread.
class ResidualStore {
 public:
  // Throws kOutOfMemory. `host` is only used where not all tokens are on the device.
  ResidualStore(Device& device, Device& host, const ResidualStoreOptions& options);

  // The rows of a micro-batch, on the device for ops called from now on, until put(). Not `fresh`:
  // as they were put last.
  Activations take(int64_t first_row, int64_t rows, bool fresh, StallClock& stalls);
  // Ops called so far have written the rows that were taken.
  void put(StallClock& stalls);
  // Queues what the next take() of these rows will wait for.
  void expect(int64_t first_row, int64_t rows);
  // After a step that ended early: nothing is taken or on its way.
  void reset();

  std::byte* data() const { return device_rows_.data(); }
  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<DeviceEvent> loaded, written, stored;
  };
  bool on_device(int64_t first_row, int64_t rows) const {
    return first_row + rows <= options_.device_tokens;
  }
  size_t bytes_of(int64_t rows) const;
  Slot& slot(int64_t item) { return slots_[static_cast<size_t>(item) % slots_.size()]; }
  void load(int64_t first_row, int64_t rows);

  Device& device_;
  ResidualStoreOptions options_;
  Buffer device_rows_;
  PinnedBuffer host_rows_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<DeviceStream> in_, out_;
  int64_t loaded_ = 0, taken_ = 0;  // items so far
  int64_t expected_row_ = -1;       // of the item that is loaded and not taken
  struct {
    bool on_device = true;
    int64_t first_row = 0, rows = 0;
  } current_;
  Stats stats_;
};

}  // namespace spillway
