// SPDX-License-Identifier: Apache-2.0
// The residual stream of a step, between the layers: on the device, or in host memory or on disk,
// from where one micro-batch at a time comes to the device.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "memory/row_file.h"
#include "plan/activation_sizes.h"
#include "runtime/stall_clock.h"

namespace spillway {

struct ResidualStoreOptions {
  ResidualSizes sizes;
  bool overlap = true;
  IoQueue* queue = nullptr;  // the engine's, which outlives this; needed for rows on disk
  std::filesystem::path disk_dir = {};
  uint64_t disk_budget = ~uint64_t{0};
};

// Rows of F32. A micro-batch lives in one tier, that of its last row. On the device it stays; the
// others have slots there in turn, so that one arrives and one leaves while a third computes.
// Between a device and the disk rows change over in a bounce buffer of host memory each way; where
// the host can write to the slots they come and go without it. Called from one thread.
class ResidualStore {
 public:
  // Throws kOutOfMemory; of the disk, kIo and kInvalidArgument. `host` is only used where not all
  // tokens are on the device. Where that is the host, none are in host memory instead.
  ResidualStore(Device& device, Device& host, const ResidualStoreOptions& options);

  // The rows of a micro-batch, on the device for ops called from now on, until put() or release().
  // Not `fresh`: as they were put last; throws kCorrupt where they did not come back so from disk
  // (or synchronize() does), kIo where something could not be written.
  Activations take(int64_t first_row, int64_t rows, bool fresh, StallClock& stalls);
  // Ops called so far have written the rows that were taken.
  void put(StallClock& stalls);
  // Instead of put(): nobody will take these rows again before they are made anew.
  void release();
  // Whether they live elsewhere, and come to the device to be taken.
  bool is_away(int64_t first_row, int64_t rows) const {
    return home_of(first_row, rows) != Tier::kDevice;
  }
  // Queues what the next take() of these rows will wait for; take() does so itself where nobody
  // has. Nothing happens for rows on the device, or where others are expected.
  void expect(int64_t first_row, int64_t rows, StallClock& stalls);
  // At the end of a step: all that goes to disk is there, and all that came was right. Throws what
  // take() throws. Cheap where nothing is on disk.
  void synchronize();
  // After a step that ended early: nothing is taken or on its way.
  void reset();

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;
    uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
    Stats& operator+=(const Stats& other);
  };
  // Since the last call.
  Stats take_stats() { return std::exchange(stats_, {}); }

 private:
  struct Slot {
    Buffer memory;
    std::byte* rows = nullptr;
    std::unique_ptr<DeviceEvent> loaded, written, stored;
    // Where the host can write to the slot: on their way from and to the disk.
    RowRead read = {};
    RowWrite write = {};
  };
  Tier home_of(int64_t first_row, int64_t rows) const;
  size_t bytes_of(int64_t rows) const;
  Slot& slot(int64_t item) { return slots_[static_cast<size_t>(item) % slots_.size()]; }
  bool in_place(Tier home) const { return home == Tier::kDisk && device_.host_visible(); }
  std::byte* in_host_memory(int64_t first_row) const;
  Activations rows_at(std::byte* data, int64_t rows) const;
  void load(int64_t first_row, int64_t rows, StallClock& stalls);
  // When rows on disk, as they were put last, have arrived there.
  const DeviceEvent& arrival_of(int64_t first_row) const;

  Device& device_;
  ResidualStoreOptions options_;
  ResidualSizes sizes_;  // on this device
  Buffer device_rows_;
  PinnedBuffer host_rows_, bounce_in_, bounce_out_;
  std::unique_ptr<RowFile> file_;
  std::vector<Slot> slots_;
  std::unique_ptr<DeviceStream> in_, out_;
  // Of the last items that went to disk by way of the bounce buffer, and which those were.
  std::array<std::unique_ptr<DeviceEvent>, 8> arrivals_;
  std::map<int64_t, int64_t> put_numbers_;  // by first row
  int64_t disk_puts_ = 0;
  bool disk_pending_ = false;
  int64_t loaded_ = 0, taken_ = 0;  // items so far
  int64_t expected_row_ = -1;       // of the item that is loaded and not taken
  struct {
    Tier home = Tier::kDevice;
    int64_t first_row = 0, rows = 0;
  } current_;
  Stats stats_;
};

}  // namespace spillway
