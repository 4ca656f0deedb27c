// SPDX-License-Identifier: Apache-2.0
// KV beyond the pools: copies of blocks in host memory and on disk, under their keys.
//
// A block that is full never changes, so it may be in the pool and have a copy here at the same
// time; then evicting it moves nothing. What the pool evicts without a copy goes out, on a stream
// of its own, and what a step begins with comes in before the step. Host memory is divided into
// slots of a block each. Behind them may be a folder (BlockFolder), which a thread of the store
// writes and reads; blocks go through a slot both ways, so that none is begun with before it has
// come whole. See docs/kv-cache.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"
#include "kv/eviction_order.h"
#include "kv/kv_cache.h"
#include "kv/kv_costs.h"
#include "kv/kv_store_stats.h"
#include "memory/block_folder.h"
#include "memory/pinned_buffer.h"
#include "tensor/state_rule.h"

namespace spillway {

// One store is for the blocks of one group of layers. Owns the slots and the folder. Its methods
// are the engine's thread's, which also fills the device's queues. The cache (of which blocks on
// the device are taken) and the devices must outlive it.
class KvStore {
 public:
  struct Options {
    int32_t slots = 0;  // at least 2
    KvCosts costs = {};
    int group = 0;
    // A block of a full group is useful only with all blocks before it, and is stored behind them;
    // a window's last blocks and a recurrent state are useful by themselves.
    StateRule rule = {};
    // Bytes that a part of a block takes in all groups together, which are loaded or computed
    // together. 0: those of this group.
    double part_bytes = 0;
  };
  // `host` is the CPU; the device itself where that is the CPU. Throws kOutOfMemory; the folder is
  // then still the caller's.
  KvStore(const KvCache& kv, Device& device, Device& host, const Options& options,
          std::unique_ptr<BlockFolder>&& folder = nullptr);
  // What is on its way to the disk gets there first.
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Host memory that a slot takes, for blocks of a group.
  static uint64_t slot_bytes(const KvCache& kv, int group = 0);
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  // What is on disk outlasts the process: then all is written, not only what the pool evicts.
  bool lasts() const { return folder_ != nullptr; }

  enum class Place : uint8_t { kNowhere, kHost, kComing, kDisk };
  Place place_of(const BlockKey& key) const;
  bool has(const BlockKey& key) const { return place_of(key) != Place::kNowhere; }
  // The bytes that these blocks, all of which are here, bring to the device, and those of them that
  // are still on disk.
  struct LoadBytes {
    double device = 0, disk = 0;
  };
  LoadBytes load_bytes(std::span<const BlockKey> keys) const;
  const KvCosts& costs() const { return costs_; }

  // Brings the first of these from the disk to host memory, as far as there is room, where all of
  // them then stay until unpin(): how many.
  size_t fetch(std::span<const BlockKey> keys);
  void unpin(std::span<const BlockKey> keys);
  // Whether a fetch has ended since the last call, or is not even on its way; waits no longer.
  void wait_for_fetch(std::chrono::milliseconds most);

  struct Copy {
    BlockContents contents = {};
    DeviceBlock block;
  };
  // Copies blocks of the pool, as ops queued so far leave them; those that are here already, or
  // find no room, are passed over, and parts of blocks that are computed faster than they come. May
  // return before the copies are made.
  void put(std::span<const Copy> copies);
  struct Load {
    BlockKey key = {};
    DeviceBlock block;
  };
  // Fills blocks of the pool, before ops that are queued from now on. All are in host memory.
  void load(std::span<const Load> loads);
  // Ops that are queued from now on change these blocks: they wait for copies of them.
  void before_writing(std::span<const DeviceBlock> blocks);

  // Until the copies that were asked for are made: then blocks may lie elsewhere.
  void wait_for_copies() { stream_->synchronize(); }

  // These are not to be used again, whatever is wrong with them.
  void drop(std::span<const BlockKey> keys);
  // The device failed: what had not arrived in host memory never does.
  void drop_unfinished();

  KvStoreStats stats() const;

 private:
  using SlotId = int32_t;
  struct Slot {
    enum class State : uint8_t { kFree, kFilling, kFetching, kReady };
    State state = State::kFree;
    BlockContents contents = {};
    int pins = 0;             // wanted where it is, to be loaded
    int readers = 0;          // loads on their way
    bool is_writing = false;  // to disk
    bool is_dropped = false;  // free as soon as nobody is at it
  };
  std::byte* bytes_of(SlotId id) const { return memory_ + static_cast<size_t>(id) * stride_; }
  void evict_excess();  // once, before the folder's thread runs
  double worth_of(const BlockContents& contents) const;
  // The block without which one is of no use; no key where there is none.
  BlockKey parent_of(const BlockContents& contents) const {
    return follows_ ? contents.parent : BlockKey{};
  }
  bool is_worth_a_slot(const BlockContents& contents) const;
  // These with the mutex held.
  SlotId take_slot_locked(const BlockKey& parent);  // for one behind it; -1: all are at work
  void add_locked(SlotId id, const BlockContents& contents, Slot::State state);
  void remove_locked(SlotId id);
  void release_locked(SlotId id);  // free, once nobody is at it
  void wait_quietly();
  // On a stream's thread: copies have arrived.
  void filled(std::span<const SlotId> slots, std::span<const DeviceBlock> blocks);
  void have_been_read(std::span<const SlotId> slots);
  // The folder's thread.
  void work();
  void read(const std::vector<SlotId>& slots);
  void write(const std::vector<SlotId>& slots);
  void make_disk_room(const std::vector<BlockContents>& coming);

  const KvCache& kv_;
  Device& device_;
  KvCosts costs_;
  bool follows_;  // blocks are of use behind others
  size_t block_bytes_, stride_;
  double part_bytes_;
  PinnedBuffer buffer_;
  std::byte* memory_ = nullptr;  // of the first slot
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> computed_, copied_;

  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_come_;
  std::vector<Slot> slots_;
  std::vector<SlotId> free_;
  int32_t at_work_ = 0;  // slots that wait for their copy, or to be written
  std::unordered_map<BlockKey, SlotId> by_key_;
  EvictionOrder order_, disk_order_;
  std::unordered_map<BlockKey, BlockContents> on_disk_;
  std::unordered_map<DeviceBlock, int> leaving_;  // blocks of the pool that are being copied
  std::deque<SlotId> to_read_, to_write_;
  std::vector<BlockKey> unwanted_;  // on disk, to be dropped
  int fetching_ = 0;
  bool is_closing_ = false;
  KvStoreStats stats_;

  std::unique_ptr<BlockFolder> folder_;  // its thread's, once that runs
  std::thread thread_;                   // the last member: it uses all others
};

}  // namespace spillway
