// SPDX-License-Identifier: Apache-2.0
// Brings the weights that do not live on the device there, layer by layer, ahead of the compute.
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
#include "plan/weight_homes.h"
#include "runtime/model_weights.h"
#include "runtime/stall_clock.h"
#include "storage/extent_reader.h"

namespace spillway {

struct WeightStreamOptions {
  int slots = kStreamSlots;  // layers in device memory at once: one computes, the others arrive
  bool overlap = true;       // false: nothing comes before load_next() or acquire() ask for it
  int stages =
      kStreamStages;  // staging buffers of 2 MiB, where bytes do not go straight into place
};

// Layers go round: 0, 1, ..., n - 1, 0, ..., where pieces of a head that streams are layers behind
// the others. A thread of its own fills the slots in that order: all
// of them at once, then one more for each load_next(), as soon as the compute queue has left the
// slot (plan/block_schedule.h says when). Weights come from host memory in large copies, from disk
// through pinned staging buffers, or straight into the slot where the host can write to that.
//
// acquire() and release() are called from one thread, in order of the layers. A load that failed
// ahead of time is tried again when the layer is asked for; if it fails then (kIo), acquire()
// throws it, and the next call tries again. Reads go through the engine's queue, and its thread
// waits there for its own alone. The devices, the queue and the weights must outlive it.
class WeightStream {
 public:
  WeightStream(Device& device, Device& host, IoQueue& queue, const WeightViews& weights,
               const WeightStreamOptions& options);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // One more layer comes: the next that nobody has asked for.
  void load_next();
  // The weights of a layer, all on the device for ops called from now on, until release().
  const LayerWeights& acquire(int layer, StallClock& stalls);
  // After the last op that reads them was called.
  void release(int layer);

  // Bytes count when a layer is handed out: what comes ahead belongs to the step that uses it.
  struct Stats {
    uint64_t host_bytes = 0;  // copied to the device
    uint64_t disk_bytes = 0;  // read
    double load_s = 0;        // the loading itself, without overlap
    Stats& operator+=(const Stats& other);
  };
  // Since the last call.
  Stats take_stats();
  // That have been brought so far, also those that nobody has asked for yet.
  int64_t layers_brought() const;
  // That have something to stream, in order; and what they come into.
  const std::vector<int>& layers() const { return layers_; }
  int slots() const { return static_cast<int>(slots_.size()); }
  // Device memory for each slot.
  static uint64_t slot_bytes(const WeightViews& weights);

 private:
  struct Slot {
    Buffer memory;
    LayerWeights views;
    std::unique_ptr<DeviceEvent> loaded, left;
    // Where the host can write to the slot: the item that is being read into it, or -1.
    int64_t reading = -1;
    ExtentBatch read = {};
  };
  struct Stage;  // a staging buffer
  Slot& slot(int64_t item) { return slots_[static_cast<size_t>(item) % slots_.size()]; }
  int layer_of(int64_t item) const {
    return layers_[static_cast<size_t>(item % static_cast<int64_t>(layers_.size()))];
  }
  bool streams(int layer) const { return !weights_.streamed_at(layer).empty(); }
  void work();
  void load(int64_t item);
  void load_in_place(int64_t item);
  void begin_reads(int64_t item);
  void send_layer(int layer, Slot& slot);
  // Of one layer: where each weight is and where it goes.
  struct Move {
    const StreamedWeight* weight;
    std::byte* to;
  };
  void read_through_stages(std::span<const Move> moves);
  void copy_through_stages(std::span<const Move> moves);
  void send(Stage& stage, std::byte* to, std::span<const std::byte> bytes);
  void wait_until_loaded();
  void hand_out();
  void skip_item();

  Device& device_;
  const WeightViews& weights_;
  const WeightStreamOptions options_;
  std::vector<int> layers_;  // that have something to stream
  std::vector<Slot> slots_;
  std::unique_ptr<DeviceStream> stream_;
  std::mutex stream_mutex_;  // who copies through stages fills stream_ in turn
  std::unique_ptr<ExtentReader> reader_;
  std::vector<std::unique_ptr<Stage>> stages_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t loaded_ = 0;    // items whose loading is queued
  int64_t acquired_ = 0;  // items handed out
  int64_t released_ = 0;
  int64_t asked_ = 0;  // items that may be loaded
  bool closing_ = false;
  int64_t attempts_ = 0;  // to load an item
  std::exception_ptr failure_;
  int64_t failed_attempt_ = 0;  // which that was
  Stats stats_;
  std::thread mover_;  // last: it uses all of the above
};

}  // namespace spillway
