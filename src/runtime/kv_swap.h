// SPDX-License-Identifier: Apache-2.0
// Copies pages of KV in host memory to the device for one layer of one micro-batch, before its
// attention, and copies what changed back after it. For rows with sparse attention only K is copied
// (SwapGroup::key_loads): attention reads the chosen entries of V in host memory, over the bus.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/kv_cache.h"
#include "memory/pinned_buffer.h"
#include "memory/transfer_scheduler.h"
#include "plan/footprint.h"
#include "runtime/micro_batch.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// Owns the staging planes on the device, which are used in turn: while attention works on a group
// in one of them, the pages of the next group arrive in another. Items are loaded in the order in
// which they are used. Called from one thread; load() and end() wait only if `overlap` is off.
class KvSwap {
 public:
  // `blocks` is the number of blocks of the largest group. Throws kOutOfMemory.
  KvSwap(TransferScheduler& transfers, Device& host, const KvShapes& shapes, int32_t blocks,
         bool overlap);

  // Queues the copies of an item's pages: those of `layer` for the sequences of a group. At most
  // `kKvStagingBuffers` items are loaded and not yet ended.
  void load(const KvCache& kv, int layer, const SwapGroup& group);
  // Returns the staging planes of the oldest item. Ops queued from now on find its pages there, and
  // V that stayed in host memory in KvLayerView::home_v.
  KvLayerView begin(const KvCache& kv, int layer, const SwapGroup& group,
                    const AttentionParams& params, StallClock& stalls);
  // Copies what changed back, after the item's last op. The group is the one that was loaded, and
  // must live until synchronize().
  void end(const KvCache& kv, int layer, const SwapGroup& group, StallClock& stalls);
  // Waits until all KV on its way to or from the disk has arrived. Throws what went wrong there:
  // kIo, kCorrupt. Costs little if nothing is on disk.
  void synchronize();
  // Work queued in `stream` from now on sees, in host memory, the KV of all items that have ended.
  void wait_for_stores(DeviceStream& stream);
  // After a step that ended early: waits, and forgets what is loaded.
  void reset();

  // Records the copies in the timeline from now on; null stops recording.
  void record(Timeline* timeline) { timeline_ = timeline; }

  int loaded() const { return static_cast<int>(loaded_ - ended_); }
  int32_t blocks() const { return blocks_; }

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;
    // Bytes of V that attention reads in host memory. This is an upper bound: a few of the chosen
    // entries may be among the newest, which are on the device.
    uint64_t v_read_bytes = 0;
    uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
    double load_s = 0, store_s = 0;  // without overlap
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call. Call it only while no copy is under way.
  Stats take_stats() { return std::exchange(stats_, {}); }

 private:
  struct Staging {
    Buffer memory;
    std::unique_ptr<DeviceEvent> loaded, attended, stored;
  };
  Staging& staging(int64_t item) { return staging_[static_cast<size_t>(item % kKvStagingBuffers)]; }
  KvLayerView view(const Staging& staging, int layer) const;
  // A K or V plane of a layer, and the bytes of a block in it.
  struct Plane {
    std::byte* bytes = nullptr;
    int64_t block = 0;
  };
  struct Planes {
    std::array<Plane, 2> all;
    size_t count = 0;
  };
  Planes planes_of(const KvLayerView& view, int layer) const;
  // Adds copies to pieces_. Runs of blocks that are contiguous on both sides are copied as one
  // piece.
  void add_pieces(const Planes& host, const Planes& device, std::span<const BlockMove> moves,
                  bool to_device, bool keys_only = false);
  // Returns the copies between a bounce buffer, where blocks are laid out as in the file, and the
  // device.
  std::span<const CopyPiece> bounce_pieces(std::byte* bounce, const Planes& device,
                                           std::span<const BlockMove> moves, bool to_device);
  // Returns the blocks that a layer loads besides the group's `key_loads`. A layer that reads
  // another layer's KV also loads what that layer has written in this step.
  std::vector<BlockMove> loads_of(int layer, const SwapGroup& group) const;
  // Returns the blocks that a layer stores: none if it reads another layer's KV.
  std::span<const BlockMove> stores_of(int layer, const SwapGroup& group) const;
  std::byte* bounce(PinnedBuffer& memory);
  static std::vector<uint32_t> disk_ids(const KvCache& kv, int layer,
                                        std::span<const BlockMove> moves);

  Device& device_;
  Device& host_;
  KvShapes shapes_;
  int32_t blocks_;
  bool overlap_;
  std::array<Staging, kKvStagingBuffers> staging_;
  std::unique_ptr<DeviceStream> in_, out_;
  PinnedBuffer bounce_in_, bounce_out_;  // bounce buffers for pages from and to the disk
  bool disk_pending_ = false;
  std::vector<CopyPiece> pieces_;
  int64_t loaded_ = 0, ended_ = 0;
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
