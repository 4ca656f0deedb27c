// SPDX-License-Identifier: Apache-2.0
// Copies the weights that do not live on the device there, segment by segment, ahead of the compute
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
#include "memory/transfer_scheduler.h"
#include "plan/streaming_schedule.h"
#include "plan/weight_homes.h"
#include "runtime/model_weights.h"
#include "runtime/read_ahead.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"
#include "storage/extent_reader.h"

namespace spillway {

struct WeightStreamOptions {
  int slots = kLayerSlots;  // slot groups on the device: one computes, the others arrive
  bool overlap = true;      // false: load only when load_next() or acquire() is called
  // Staging buffers of 2 MiB each, for bytes that do not go straight into place.
  int stages = kStreamStages;
};

// Weight segments are loaded in the order 0, 1, ..., n - 1, 0, ... A thread fills the slots in that
// order: all of them at first, then one more segment for each load_next(), as soon as the compute
// queue has left the slot (plan/block_schedule.h says when). Weights from host memory come in large
// copies. Weights from disk come through pinned staging buffers, which are filled before a slot has
// room (ReadAhead), or straight into the slot if the host can write to it.
//
// There are several streaming schedules (plan/streaming_schedule.h), one for each way in which
// linear ops are split between the GPU and the CPU. begin_step() selects one for a step; segments
// loaded ahead by another schedule are dropped.
//
// acquire() and release() are called from one thread, in the order of the segments; several may be
// held. A load that failed ahead of time is tried again when the segment is acquired. If it fails
// then (kIo), acquire() throws that, and the next call tries again. Reads go through the engine's
// queue, and the stream's thread waits there only for its own. The devices, the queue and the
// weights must outlive it.
class WeightStream {
 public:
  WeightStream(TransferScheduler& transfers, Device& host, IoQueue& queue,
               const WeightViews& weights, std::vector<StreamingSchedule> schedules,
               const WeightStreamOptions& options);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Selects the streaming schedule by which segments are numbered and loaded from now on.
  void begin_step(size_t schedule);
  const StreamingSchedule& schedule(size_t number) const { return schedules_[number].schedule; }

  // Allows one more segment to be loaded: the next in order.
  void load_next();
  // Returns the rows of a segment, each part on the device for ops queued from now on, until
  // release().
  std::span<const WeightView> acquire(int segment, StallClock& stalls);
  // Call it after the last op that reads the segment.
  void release(int segment);

  // Bytes count when a segment is acquired: what is loaded ahead belongs to the step that uses it.
  struct Stats {
    uint64_t host_bytes = 0;  // copied to the device
    uint64_t disk_bytes = 0;  // read
    double load_s = 0;        // time of the loading itself, without overlap
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call.
  Stats take_stats();
  // Segments loaded so far, including those that are not acquired yet.
  int64_t segments_loaded() const;
  // Records loads in the timeline from now on; null stops recording. Call it between steps.
  void record(Timeline* timeline);
  int slots() const { return static_cast<int>(slots_.size()); }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  // Rows of a weight in a segment, where they come from, and where they go.
  struct Part {
    const StreamedWeight* weight = nullptr;
    WeightView view = {};                 // without data, which is set in a slot
    const std::byte* host = nullptr;      // null: in a file
    std::vector<Extent> extents = {};     // in the file, in the order of the rows
    uint64_t offset = 0, slot_bytes = 0;  // in the slot
  };
  // A weight segment.
  struct Segment {
    std::vector<Part> parts = {};
    int slot_group = 0;
    size_t in_slot_group = 0;
    bool last_of_slot_group = false;
    uint64_t offset = 0;               // in the slot
    size_t first_read = 0, reads = 0;  // in Schedule::reads
  };
  // A piece of a file that is read at once, and the bytes of a part that it holds.
  struct Read {
    Extent extent = {};
    size_t part = 0;
    uint64_t offset = 0;
  };
  // A streaming schedule.
  struct Schedule {
    StreamingSchedule schedule;
    std::vector<Segment> segments;
    std::vector<Read> reads;  // from disk, for all segments once
    int slot_groups = 0;
  };
  // A segment in a slot.
  struct Arrival {
    std::unique_ptr<DeviceEvent> loaded;
    std::vector<WeightView> views = {};
    // If the host can write to the slot: the item that is being read into it; else -1.
    int64_t reading = -1;
    ExtentBatch read = {};
  };
  // Memory on the device for the segments of a slot group.
  struct Slot {
    Buffer memory;
    std::byte* base = nullptr;
    std::unique_ptr<DeviceEvent> left;
    std::vector<Arrival> arrivals;  // one for each segment of a slot group
  };
  struct Stage;  // staging memory for weights in host memory that is not pinned

  Schedule describe(StreamingSchedule schedule);
  static void add_reads(Schedule& schedule, Segment& segment);
  // An item is a segment in the order of loading; items are numbered on and on across rounds.
  const Schedule& current() const { return schedules_[current_]; }
  const Segment& segment_of(int64_t item) const;
  int64_t slot_group_of(int64_t item) const;
  int number_of(int64_t item) const;
  Slot& slot(int64_t item) {
    return slots_[static_cast<size_t>(slot_group_of(item)) % slots_.size()];
  }
  Arrival& arrival(int64_t item) { return slot(item).arrivals[segment_of(item).in_slot_group]; }
  bool has_room(int64_t item) const;
  int64_t items_at_first() const;
  void work();
  void load(int64_t item);
  void load_in_place(int64_t item);
  void begin_reads(int64_t item);
  void send_segment(int64_t item);
  struct Move {
    const Part* part;
    std::byte* to;
  };
  void send_read_bytes(int64_t item);
  void copy_through_stages(std::span<const Move> moves);
  void send(std::byte* to, std::span<const std::byte> bytes);
  void read_on(std::unique_lock<std::mutex>& lock);
  void restart_reading();
  void wait_until_loaded();
  void hand_out();
  void skip_item();

  TransferScheduler& transfers_;
  Device& device_;
  const WeightViews& weights_;
  const WeightStreamOptions options_;
  std::vector<Schedule> schedules_;
  uint64_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<ReadAheadStream> stream_;
  std::mutex stream_mutex_;  // held while stream_ is filled by copy_through_stages()
  std::unique_ptr<ExtentReader> reader_;
  std::unique_ptr<ReadAhead> ahead_;  // null: nothing comes from disk, or the host writes in place
  std::vector<std::unique_ptr<Stage>> stages_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t current_ = 0;                             // index of the current streaming schedule
  int64_t first_item_ = 0, first_slot_group_ = 0;  // with which it began
  int64_t loaded_ = 0;                             // items whose loading has been queued
  int64_t acquired_ = 0;                           // items acquired
  int64_t released_ = 0;
  int64_t left_ = 0;   // slot groups, all of whose items are released
  int64_t asked_ = 0;  // items that may be loaded
  bool loading_ = false;
  bool closing_ = false;
  int64_t attempts_ = 0;  // number of attempts so far to load an item
  std::exception_ptr failure_;
  int64_t failed_attempt_ = 0;  // number of the attempt that failed
  Stats stats_;
  Timeline* timeline_ = nullptr;
  std::thread mover_;  // last: it uses all of the above
};

}  // namespace spillway
