// SPDX-License-Identifier: Apache-2.0
// Copies the KV of swapped layers, which lives in host memory (Pie; kv/layer_table.h), as the
// events of the step schedule say: to the device before a layer's projections, which append to it,
// and what the layer wrote to host memory after its attention.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/kv_group_cache.h"
#include "memory/transfer_scheduler.h"
#include "runtime/micro_batch.h"
#include "runtime/timeline.h"

namespace spillway {

// Copies KV for the layers of one layer group, which are numbered within the group. Host memory has
// all blocks of the swapped layers: what a step writes is stored there in that step. So when a
// layer leaves the device nothing else is copied, and loads, which ops may wait for, have the link
// to themselves.
//
// The step schedule (plan/block_schedule.h) decides which layer is loaded when, and does not depend
// on the clock. So all copies of a step are queued ahead: a load waits in its queue until the
// previous layer has left the buffer, and ops wait until the load has arrived. The first layers of
// the next step are loaded while this one ends, with the blocks that this one used; other blocks
// that the next step needs are loaded when it begins.
//
// Called from one thread. It waits only in change(), reset() and take_stats(), and in begin_step()
// for the step before. The scheduler must outlive it.
class LayerSwapper {
 public:
  // Without `overlap` a layer is loaded only when ops are about to need it, as FlexGen fetches what
  // is not on the device. This is the baseline that loading ahead is compared with.
  explicit LayerSwapper(TransferScheduler& transfers, bool overlap = true);

  // Call it before a step's first event. Notes which blocks of the cache, which is that of layer
  // group `group`, the sequences read and write. Blocks that are not on the device are ignored.
  void begin_step(KvGroupCache& kv, int group, std::span<const StepSequence> sequences);
  // Queues the copies of a swapped layer's KV to the next free buffer. If the layer has been
  // loading since the previous step, only blocks that did not come with that load are copied.
  void load(KvGroupCache& kv, int layer);
  // Makes ops queued from now on find the layer's KV in its buffer.
  void wait_for(KvGroupCache& kv, int layer);
  // store() queues the copies of what was written to host memory, after the last op that reads or
  // writes the layer's KV. release() gives up the layer's buffer.
  void store(const KvGroupCache& kv, int layer);
  void release(KvGroupCache& kv, int layer);
  // Call it after the step's last layer. Work queued from now on finds what the layers wrote in
  // host memory.
  void end_step();
  // After a step that ended early: waits until no copy is under way. The KV of sequences in swapped
  // layers is lost.
  void reset(KvGroupCache& kv);

  // Changes the number of swapped layers to `swapped`: 0, or a number that makes room for more
  // blocks. Blocks that exist both before and after keep their contents. First `moves` copies
  // blocks that will no longer exist to others. Call it between steps. Waits for the copies of
  // layers that become swapped. Throws kDevice; the contents of all blocks are then lost.
  void change(KvGroupCache& kv, int swapped, std::span<const KvGroupCache::BlockCopy> moves = {});

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;  // copied in steps
    uint64_t moved_bytes = 0;                         // copied between host and device by change()
    int64_t loads = 0;
    // Loads for the next step that were queued during the one before it, and how many of them had
    // arrived before the ops of that earlier step were done (the rule violation of the Pie paper,
    // 3.4.2). Loads that were extended when their step began do not count here: the arrival of
    // their first part is not recorded.
    int64_t ahead = 0, early = 0;
    int64_t waits = 0;    // times that ops waited for a layer that came late
    double waited_s = 0;  // how long these waits were
    double copied_s = 0;  // time in which the link copied copied_bytes
    uint64_t copied_bytes = 0;
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call; waits for the device.
  Stats take_stats();
  // Records copies and waits in the timeline from now on; null stops recording.
  void record(Timeline* timeline) { timeline_ = timeline; }

 private:
  // Events of one layer. The events of a load are read in the step after the one that used it, so
  // there are two sets, which alternate.
  struct LayerCopies {
    struct Timed {
      std::unique_ptr<DeviceEvent> begun, loaded, waits, waited;
      uint64_t bytes = 0;  // copied between begun and loaded; 0: not known
      int ahead_of = -1;   // of a load ahead: index in ended_ of the previous step; else -1
    };
    Timed timed[2];
    int current = 0;
    std::unique_ptr<DeviceEvent> attended, stored;
  };
  LayerCopies& copies_of(int layer);
  void begin_load(KvGroupCache& kv, int layer, int left);
  void complete_load(const KvGroupCache& kv, int layer);
  // Adds copies of blocks to pieces_; contiguous runs of blocks are one piece. `copies` names, by
  // target, the blocks whose contents come from another block.
  void add_pieces(const KvGroupCache& kv, const KvLayerView& from, const KvLayerView& to,
                  std::span<const DeviceBlock> blocks,
                  std::span<const KvGroupCache::BlockCopy> copies = {});
  // Queues pieces_ in `stream` and returns their bytes. `layer` is the layer that they belong to;
  // -1: several.
  uint64_t send(DeviceStream& stream, bool to_device, int layer);
  void collect_times();
  // Copies everything that a change of the buffers must preserve: the contents of all blocks ever
  // used.
  void carry_over(const KvGroupCache& kv, const LayerTable::Recut& cut);
  void copy_buffer(const KvGroupCache& kv, const KvLayerView& from, const KvLayerView& to,
                   bool to_device);

  Device& device_;
  const bool overlap_;
  std::unique_ptr<DeviceStream> in_, out_;
  std::unique_ptr<DeviceEvent> cut_, begun_;
  // Ends of steps with swapped layers. Loads ahead of a step are evaluated after that step has
  // ended, too, so there are two, which alternate.
  std::unique_ptr<DeviceEvent> ended_[2];
  int ending_ = 0;                   // index in ended_ for the current step
  int left_ = -1;                    // the last layer of the current step that gave up its buffer
  std::vector<LayerCopies> layers_;  // [layer]
  // Sorted blocks of the current step: those with content that it reads, and those that it writes
  // to.
  std::vector<DeviceBlock> read_, written_;
  std::vector<KvGroupCache::BlockCopy> copies_;
  std::vector<DeviceBlock> ahead_;    // blocks that layers loaded ahead of their step have
  std::vector<DeviceBlock> missing_;  // other blocks that these layers need in the current step
  int32_t used_ = 0;                  // no step has used a block with this number or above
  std::vector<CopyPiece> pieces_;
  // Loads whose events are yet to be read: the layer, and the index in LayerCopies::timed.
  std::vector<std::pair<int, int>> timed_;
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
