// SPDX-License-Identifier: Apache-2.0
// Pages of host memory on the device for one layer of one micro-batch: in before its attention,
// what changed back after it. Of rows that attend to few of their positions only K comes in
// (SwapGroup::key_loads): attention reads the V that it has chosen in host memory, over the bus.
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
#include "plan/footprint.h"
#include "runtime/micro_batch.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// Staging planes on the device, in turn: while a group is attended to in one, the pages of the next
// arrive in another. Items are loaded in the order in which they are used. Called from
// one thread; nothing here waits unless `overlap` is off.
class KvSwap {
 public:
  // `blocks`: of the largest group. Throws kOutOfMemory.
  KvSwap(Device& device, Device& host, const KvShapes& shapes, int32_t blocks, bool overlap);

  // Queues the pages of an item: `layer` of a group's sequences. At most `kKvStagingBuffers` are
  // loaded and not yet ended.
  void load(const KvCache& kv, int layer, const SwapGroup& group);
  // The staging planes of the oldest item: ops called from now on find its pages there, and V that
  // stayed at home in KvLayerView::home_v.
  KvLayerView begin(const KvCache& kv, int layer, const SwapGroup& group,
                    const AttentionParams& params, StallClock& stalls);
  // After its last op: what changed goes back. The group is the one that was loaded, and lives
  // until synchronize().
  void end(const KvCache& kv, int layer, const SwapGroup& group, StallClock& stalls);
  // Everything is where it lives. Throws what went wrong on the way to or from the disk: kIo,
  // kCorrupt. Cheap where nothing is on disk.
  void synchronize();
  // Work queued there from now on sees in host memory what has been ended.
  void wait_for_stores(DeviceStream& stream);
  // After a step that ended early: nothing is in flight or loaded.
  void reset();

  // Draws what moves from now on; null: not any more.
  void record(Timeline* timeline) { timeline_ = timeline; }

  int loaded() const { return static_cast<int>(loaded_ - ended_); }
  int32_t blocks() const { return blocks_; }

  struct Stats {
    uint64_t to_device_bytes = 0, to_host_bytes = 0;
    // V that attention reads in host memory: what it chooses, at most; a few of the chosen may be
    // among the newest, which are on the device.
    uint64_t v_read_bytes = 0;
    uint64_t disk_read_bytes = 0, disk_written_bytes = 0;
    double load_s = 0, store_s = 0;  // without overlap
    Stats& operator+=(const Stats& other);
  };
  // Since the last call; while nothing is on its way.
  Stats take_stats() { return std::exchange(stats_, {}); }

 private:
  struct Staging {
    Buffer memory;
    std::unique_ptr<DeviceEvent> loaded, attended, stored;
  };
  Staging& staging(int64_t item) { return staging_[static_cast<size_t>(item % kKvStagingBuffers)]; }
  KvLayerView view(const Staging& staging, int layer) const;
  // The planes of a layer, and the bytes of a block in each.
  struct Plane {
    std::byte* bytes = nullptr;
    int64_t block = 0;
  };
  struct Planes {
    std::array<Plane, 2> all;
    size_t count = 0;
  };
  Planes planes_of(const KvLayerView& view, int layer) const;
  // Adds to pieces_: runs of blocks that lie together on both sides move as one piece.
  void add_pieces(const Planes& host, const Planes& device, std::span<const BlockMove> moves,
                  bool to_device, bool keys_only = false);
  // Between a bounce buffer, where blocks are as in the file, and the device.
  std::span<const CopyPiece> bounce_pieces(std::byte* bounce, const Planes& device,
                                           std::span<const BlockMove> moves, bool to_device);
  // What a layer loads beside the group's `key_loads`. One that reads another's KV finds there what
  // that one has written in this step, too.
  std::vector<BlockMove> loads_of(int layer, const SwapGroup& group) const;
  // What a layer stores: nothing where it reads another's KV.
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
  PinnedBuffer bounce_in_, bounce_out_;  // where pages from and to the disk change over
  bool disk_pending_ = false;
  std::vector<CopyPiece> pieces_;
  int64_t loaded_ = 0, ended_ = 0;
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
