// SPDX-License-Identifier: Apache-2.0
// Brings the weights that do not live on the device there, piece by piece, ahead of the compute
// (HeteGen's parameter manager, 4.3).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "plan/stream_order.h"
#include "plan/weight_homes.h"
#include "runtime/model_weights.h"
#include "runtime/read_ahead.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"
#include "storage/extent_reader.h"

namespace spillway {

struct WeightStreamOptions {
  int slots = kLayerSlots;  // slotfuls in device memory at once: one computes, the others arrive
  bool overlap = true;      // false: nothing comes before load_next() or acquire() ask for it
  int stages =
      kStreamStages;  // staging buffers of 2 MiB, where bytes do not go straight into place
};

// Pieces go round: 0, 1, ..., n - 1, 0, ... A thread of its own fills the slots in that order: all
// of them at once, then one more piece for each load_next(), as soon as the compute queue has left
// the slot (plan/block_schedule.h says when). Weights come from host memory in large copies, from
// disk through pinned staging buffers, which are filled before there is room in a slot (ReadAhead),
// or straight into the slot where the host can write to that.
//
// There are several orders (plan/stream_order.h), one for each way in which steps share their
// weights with the CPU: a step begins with begin_step(). What came ahead of one that then goes by
// another is dropped.
//
// acquire() and release() are called from one thread, in order of the pieces; several may be held.
// A load that failed ahead of time is tried again when the piece is asked for; if it fails then
// (kIo), acquire() throws it, and the next call tries again. Reads go through the engine's queue,
// and its thread waits there for its own alone. The devices, the queue and the weights must outlive
// it.
class WeightStream {
 public:
  WeightStream(Device& device, Device& host, IoQueue& queue, const WeightViews& weights,
               std::vector<StreamOrder> orders, const WeightStreamOptions& options);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // By which of the orders the pieces are numbered and come from now on.
  void begin_step(size_t order);
  const StreamOrder& order(size_t number) const { return orders_[number].order; }

  // One more piece comes: the next that nobody has asked for.
  void load_next();
  // The rows of a piece, each part on the device for ops called from now on, until release().
  std::span<const WeightView> acquire(int piece, StallClock& stalls);
  // After the last op that reads them was called.
  void release(int piece);

  // Bytes count when a piece is handed out: what comes ahead belongs to the step that uses it.
  struct Stats {
    uint64_t host_bytes = 0;  // copied to the device
    uint64_t disk_bytes = 0;  // read
    double load_s = 0;        // the loading itself, without overlap
    Stats& operator+=(const Stats& other);
  };
  // Since the last call.
  Stats take_stats();
  // That have been brought so far, also those that nobody has asked for yet.
  int64_t pieces_brought() const;
  // Draws what comes from now on; null: not any more. Between steps.
  void record(Timeline* timeline);
  int slots() const { return static_cast<int>(slots_.size()); }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  // Rows of a weight, and where they come from and go to.
  struct Part {
    const StreamedWeight* weight = nullptr;
    WeightView view = {};                 // its data is set on the device
    const std::byte* host = nullptr;      // null: in a file
    std::vector<Extent> extents = {};     // there, in the order of the rows
    uint64_t offset = 0, slot_bytes = 0;  // in the slot
  };
  struct Delivery {
    std::vector<Part> parts = {};
    int slotful = 0;
    size_t in_slotful = 0;
    bool last_of_slotful = false;
    uint64_t offset = 0;               // in the slot
    size_t first_read = 0, reads = 0;  // of the order's
  };
  // A piece of a file, and the bytes of a part that it is.
  struct Read {
    Extent extent = {};
    size_t part = 0;
    uint64_t offset = 0;
  };
  struct Order {
    StreamOrder order;
    std::vector<Delivery> pieces;
    std::vector<Read> reads;  // of a round
    int slotfuls = 0;
  };
  // What is in a slot.
  struct Arrival {
    std::unique_ptr<DeviceEvent> loaded;
    std::vector<WeightView> views = {};
    // Where the host can write to the slot: the item that is being read into it, or -1.
    int64_t reading = -1;
    ExtentBatch read = {};
  };
  struct Slot {
    Buffer memory;
    std::byte* base = nullptr;
    std::unique_ptr<DeviceEvent> left;
    std::vector<Arrival> arrivals;  // of the pieces of a slotful
  };
  struct Stage;  // where bytes of host memory that is not pinned change over

  Order describe(StreamOrder order);
  static void add_reads(Order& order, Delivery& piece);
  // Items are the pieces in the order they come, counted on and on.
  const Order& current() const { return orders_[current_]; }
  const Delivery& piece_of(int64_t item) const;
  int64_t slotful_of(int64_t item) const;
  int number_of(int64_t item) const;
  Slot& slot(int64_t item) { return slots_[static_cast<size_t>(slotful_of(item)) % slots_.size()]; }
  Arrival& arrival(int64_t item) { return slot(item).arrivals[piece_of(item).in_slotful]; }
  bool has_room(int64_t item) const;
  int64_t items_at_first() const;
  void work();
  void load(int64_t item);
  void load_in_place(int64_t item);
  void begin_reads(int64_t item);
  void send_piece(int64_t item);
  struct Move {
    const Part* part;
    std::byte* to;
  };
  void send_what_is_read(int64_t item);
  void copy_through_stages(std::span<const Move> moves);
  void send(std::byte* to, std::span<const std::byte> bytes);
  void read_on(std::unique_lock<std::mutex>& lock);
  void restart_reading();
  void wait_until_loaded();
  void hand_out();
  void skip_item();

  Device& device_;
  const WeightViews& weights_;
  const WeightStreamOptions options_;
  std::vector<Order> orders_;
  uint64_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<DeviceStream> stream_;
  std::mutex stream_mutex_;  // who copies through stages fills stream_ in turn
  std::unique_ptr<ExtentReader> reader_;
  std::unique_ptr<ReadAhead> ahead_;  // null: nothing comes from disk, or the host writes in place
  std::vector<std::unique_ptr<Stage>> stages_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t current_ = 0;  // order; its first item and slotful
  int64_t first_item_ = 0, first_slotful_ = 0;
  int64_t loaded_ = 0;    // items whose loading is queued
  int64_t acquired_ = 0;  // items handed out
  int64_t released_ = 0;
  int64_t left_ = 0;   // slotfuls, all of whose items are released
  int64_t asked_ = 0;  // items that may be loaded
  bool loading_ = false;
  bool closing_ = false;
  int64_t attempts_ = 0;  // to load an item
  std::exception_ptr failure_;
  int64_t failed_attempt_ = 0;  // which that was
  Stats stats_;
  Timeline* timeline_ = nullptr;
  std::thread mover_;  // last: it uses all of the above
};

}  // namespace spillway
