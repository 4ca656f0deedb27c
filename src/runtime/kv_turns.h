// SPDX-License-Identifier: Apache-2.0
// Copies of the KV of swapped layers (Pie; kv/layer_table.h), one for each event of the step
// schedule that is about it: to the device before a layer's projections, which append to it, and
// what it wrote to host memory behind its attention.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/kv_group_cache.h"
#include "runtime/micro_batch.h"
#include "runtime/timeline.h"

namespace spillway {

// Moves the KV of a group's layers, which are counted among themselves. Host memory has all blocks
// of the layers that take turns: each goes there when a step wrote to it, so that leaving the
// device moves nothing else, and copies to the device, the ones that compute may wait for, have the
// link to themselves.
//
// Which layer is loaded when is the step schedule's (plan/block_schedule.h), and does not depend on
// the clock, so all of a step is queued ahead: copies wait in their queue until the layer before
// has left the buffer, and ops until a copy has arrived. The first layers of the next step are
// loaded while this one ends, with the blocks that it used; what others the next step needs is
// loaded when it begins.
//
// Called from one thread, which waits only where a cache is cut anew. The device must outlive it.
class KvTurns {
 public:
  // Without `overlap` a layer comes when ops are about to need it and not before, as FlexGen
  // fetches what is not there: what coming ahead is measured by.
  explicit KvTurns(Device& device, bool overlap = true);

  // Before a step's first event: what of the cache, which is of that group, its sequences read and
  // write. Blocks that are not on the device are none of its business.
  void begin_step(KvGroupCache& kv, int group, std::span<const StepSequence> sequences);
  // Queues the copies that bring a swapped layer's KV to the buffer which is free next; of a layer
  // that is loading since the step before, those of blocks that did not come with it.
  void load(KvGroupCache& kv, int layer);
  // Ops called from now on find the layer's KV in its buffer.
  void wait_for(KvGroupCache& kv, int layer);
  // Behind the last op that reads or writes a layer's KV: queues the copies of what was written,
  // and gives the layer's buffer up.
  void store(const KvGroupCache& kv, int layer);
  void release(KvGroupCache& kv, int layer);
  // After its last layer: what ops are queued from now on find in host memory is what it wrote.
  void end_step();
  // After a step that ended early: nothing is on its way. What sequences have in layers that take
  // turns is lost.
  void reset(KvGroupCache& kv);

  // So many layers take turns from now on, 0 or a number that gains room; all blocks
  // that both cuts have keep what they have. Before that, `moves`: from blocks that there are no
  // more then, to others. Between steps. Waits for the copies of layers that begin to take turns.
  // Throws kDevice; what blocks have is then lost.
  void change(KvGroupCache& kv, int turning, std::span<const KvGroupCache::BlockCopy> moves = {});

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;  // while steps run
    uint64_t moved_bytes = 0;                         // between host and device by change()
    int64_t loads = 0;
    // Of these, for the next step while one was under way, and had arrived before that one's ops
    // were done: the paper's rule violation (3.4.2). But for those that were added to when their
    // step began: nobody knows when the first part of them arrived.
    int64_t ahead = 0, early = 0;
    int64_t waits = 0;    // ops for layers that came late
    double waited_s = 0;  // how long
    double copied_s = 0;  // the link was busy with so many of these bytes
    uint64_t copied_bytes = 0;
    Stats& operator+=(const Stats& other);
  };
  // Since the last call; waits for the device.
  Stats take_stats();
  // Draws what moves and waits from now on; null: not any more.
  void record(Timeline* timeline) { timeline_ = timeline; }

 private:
  // Of a layer. A load's events are read in the step behind the one that used it: by turns.
  struct Turn {
    struct Timed {
      std::unique_ptr<DeviceEvent> begun, loaded, waits, waited;
      uint64_t bytes = 0;  // between begun and loaded; 0: nobody knows
      int ahead_of = -1;   // where it came ahead: which of ended_ is the end of the step before
    };
    Timed timed[2];
    int current = 0;
    std::unique_ptr<DeviceEvent> attended, stored;
  };
  Turn& turn(int layer);
  void begin_load(KvGroupCache& kv, int layer, int left);
  void complete_load(const KvGroupCache& kv, int layer);
  // Adds to pieces_: runs of blocks that lie together move as one. `copies`: those of them that
  // another block is the source of, by target.
  void add_pieces(const KvGroupCache& kv, const KvLayerView& from, const KvLayerView& to,
                  std::span<const DeviceBlock> blocks,
                  std::span<const KvGroupCache::BlockCopy> copies = {});
  // The pieces are of `layer`; -1: of several.
  uint64_t send(DeviceStream& stream, bool to_device, int layer);
  void settle();
  // What a new cut of the cache takes: all that blocks have, as far as any has been used.
  void carry_over(const KvGroupCache& kv, const LayerTable::Recut& cut);
  void copy_buffer(const KvGroupCache& kv, const KvLayerView& from, const KvLayerView& to,
                   bool to_device);

  Device& device_;
  const bool overlap_;
  std::unique_ptr<DeviceStream> in_, out_;
  std::unique_ptr<DeviceEvent> cut_, begun_;
  // Ends of steps in which layers took turns. What came ahead of a step is looked at when that one
  // has ended, too: by turns.
  std::unique_ptr<DeviceEvent> ended_[2];
  int ending_ = 0;           // of the step at hand
  int left_ = -1;            // the last layer of the step that has gone
  std::vector<Turn> turns_;  // [layer]
  // Of the step at hand, in order: blocks that have something, and blocks that are written to.
  std::vector<DeviceBlock> read_, written_;
  std::vector<KvGroupCache::BlockCopy> copies_;
  std::vector<DeviceBlock> ahead_;    // what layers have that came before their step began
  std::vector<DeviceBlock> missing_;  // what these need beside it in the step at hand
  int32_t used_ = 0;                  // no step has used a block at or behind this
  std::vector<CopyPiece> pieces_;
  std::vector<std::pair<int, int>> timed_;  // layers whose events are to be read
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
