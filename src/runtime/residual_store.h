// SPDX-License-Identifier: Apache-2.0
// Keeps the hidden states of a step between layers: on the device, or offloaded to host memory or
// disk, from where one micro-batch at a time comes to the device.
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
#include "memory/transfer_scheduler.h"
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

// Holds rows of F32. A micro-batch lives in one tier, that of its last row. On the device it stays
// in place; offloaded micro-batches use slots there in turn, so that one arrives and one leaves
// while a third computes. Between a device and the disk rows pass through a bounce buffer in host
// memory, one for each direction; if the host can access the slots, the disk reads and writes them
// in place. Called from one thread.
class ResidualStore {
 public:
  // Throws kOutOfMemory, and for the disk kIo and kInvalidArgument. `host` is only used if not all
  // tokens are on the device. If the device's memory is the host's, the rows meant for host memory
  // are on the device.
  ResidualStore(TransferScheduler& transfers, Device& host, const ResidualStoreOptions& options);

  // Returns the rows of a micro-batch, on the device for ops queued from now on, until put() or
  // release(). With `fresh` their contents are undefined; otherwise they are as put last. Throws
  // kCorrupt if rows read from disk differ from what was written (or synchronize() throws that),
  // and kIo if something could not be written.
  Activations take(int64_t first_row, int64_t rows, bool fresh, StallClock& stalls);
  // Sends the rows that were taken back to where they live. The ops queued so far write them.
  void put(StallClock& stalls);
  // Call it instead of put() for rows that are not taken again before they are made anew.
  void release();
  // Whether these rows are offloaded, and come to the device when they are taken.
  bool is_away(int64_t first_row, int64_t rows) const {
    return home_of(first_row, rows) != Tier::kDevice;
  }
  // Queues the load that the next take() of these rows waits for; without this call take() queues
  // it. Does nothing for rows on the device, or if other rows are expected already.
  void expect(int64_t first_row, int64_t rows, StallClock& stalls);
  // Call it at the end of a step. Waits until all writes to disk have ended, and checks what was
  // read. Throws what take() throws. Costs little if nothing is on disk.
  void synchronize();
  // After a step that ended early: waits, and forgets what is taken or under way.
  void reset();

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;
    uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call.
  Stats take_stats() { return std::exchange(stats_, {}); }

 private:
  struct Slot {
    Buffer memory;
    std::byte* rows = nullptr;
    std::unique_ptr<DeviceEvent> loaded, written, stored;
    // Under way from and to the disk, if the host can access the slot.
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
  // Returns the event at which rows on disk, as put last, have arrived there.
  const DeviceEvent& arrival_of(int64_t first_row) const;

  Device& device_;
  ResidualStoreOptions options_;
  ResidualSizes sizes_;  // as they are on this device
  Buffer device_rows_;
  PinnedBuffer host_rows_, bounce_in_, bounce_out_;
  std::unique_ptr<RowFile> file_;
  std::vector<Slot> slots_;
  std::unique_ptr<DeviceStream> in_, out_;
  // Arrivals of the last items that went to disk through the bounce buffer. put_numbers_ has each
  // item's number.
  std::array<std::unique_ptr<DeviceEvent>, 8> arrivals_;
  std::map<int64_t, int64_t> put_numbers_;  // by first row
  int64_t disk_puts_ = 0;
  bool disk_pending_ = false;
  int64_t loaded_ = 0, taken_ = 0;  // number of items so far
  int64_t expected_row_ = -1;       // first row of the item that is loaded and not taken
  struct {
    Tier home = Tier::kDevice;
    int64_t first_row = 0, rows = 0;
  } current_;
  Stats stats_;
};

}  // namespace spillway
