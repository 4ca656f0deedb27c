// SPDX-License-Identifier: Apache-2.0
// Copies of KV blocks beyond the pools, in host memory and on disk, found by their keys.
//
// A full block never changes, so it may be in the pool and have a copy here at the same time; then
// evicting it from the pool moves nothing. A block without a copy that the pool evicts is copied
// out on a stream of its own, and blocks that a request begins with are loaded before the step.
// Host memory is divided into slots of one block each. Besides them there may be a folder on disk
// (BlockFolder), which a thread of the store writes and reads; blocks pass through a slot both
// ways, so that no request begins with a block that has not arrived whole. See docs/kv-cache.md.
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
#include "memory/transfer_scheduler.h"
#include "tensor/state_rule.h"

namespace spillway {

// A store for the blocks of one group of layers. Owns the slots and the folder. All methods are
// called on the engine's thread, which also fills the device's queues. The scheduler, and the cache
// whose device blocks are copied, must outlive it.
class KvStore {
 public:
  struct Options {
    int32_t slots = 0;  // at least 2
    KvCosts costs = {};
    int group = 0;
    // A block of a full group is useful only with all blocks before it, and is stored after them; a
    // window's last blocks and a recurrent state are useful by themselves.
    StateRule rule = {};
    // Bytes of a partial block in all groups together, because these are loaded or computed
    // together. 0: the bytes of this group.
    double part_bytes = 0;
  };
  // `host` is the CPU; if the device is the CPU, it is the device itself. If this throws
  // kOutOfMemory, the caller still owns the folder.
  KvStore(const KvCache& kv, TransferScheduler& transfers, Device& host, const Options& options,
          std::unique_ptr<BlockFolder>&& folder = nullptr);
  // Waits for copies and writes that are under way.
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Host memory that a slot takes, for blocks of a group.
  static uint64_t slot_bytes(const KvCache& kv, int group = 0);
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  // Whether there is a folder, which outlasts the process: then all full blocks are stored, not
  // only those that the pool evicts.
  bool lasts() const { return folder_ != nullptr; }

  enum class Place : uint8_t { kNowhere, kHost, kInFlight, kDisk };
  Place place_of(const BlockKey& key) const;
  bool has(const BlockKey& key) const { return place_of(key) != Place::kNowhere; }
  // The bytes that loading these blocks, which must be stored here, brings to the device, and how
  // many of those are still to be read from disk.
  struct LoadBytes {
    double device = 0, disk = 0;
  };
  LoadBytes load_bytes(std::span<const BlockKey> keys) const;
  const KvCosts& costs() const { return costs_; }

  // Brings the first of these blocks into host memory, as far as there is room, where they all stay
  // until unpin(). Returns their number.
  size_t fetch(std::span<const BlockKey> keys);
  void unpin(std::span<const BlockKey> keys);
  // Waits, `most` at the longest, until a fetched block arrives; returns immediately if none is
  // being fetched.
  void wait_for_fetch(std::chrono::milliseconds most);

  struct Copy {
    BlockContents contents = {};
    DeviceBlock block;
  };
  // Copies blocks of the pool, as the ops queued so far leave them, when the link has nothing more
  // urgent to copy. Skips blocks that are stored
  // already or find no room, and partial blocks that are computed faster than they are loaded. May
  // return before the copies are made.
  void put(std::span<const Copy> copies);
  struct Load {
    BlockKey key = {};
    DeviceBlock block;
  };
  // Fills blocks of the pool before the ops that are queued from now on. All must be in
  // host memory.
  void load(std::span<const Load> loads);
  // Makes the ops queued from now on, which change these blocks, wait for copies of them.
  void before_writing(std::span<const DeviceBlock> blocks);

  // Waits until the requested copies are made; only then may blocks be moved.
  void wait_for_copies();

  // Removes these blocks, so that they are not used again.
  void drop(std::span<const BlockKey> keys);
  // Called when the device has failed: copies that have not arrived in host memory never will.
  void drop_unfinished();

  KvStoreStats stats() const;

 private:
  using SlotId = int32_t;
  struct Slot {
    enum class State : uint8_t { kFree, kFilling, kFetching, kReady };
    State state = State::kFree;
    BlockContents contents = {};
    int pins = 0;             // requests that want it kept here, to be loaded
    int readers = 0;          // loads in flight
    bool is_writing = false;  // being copied to disk
    bool is_dropped = false;  // free as soon as its copies and writes are done
  };
  std::byte* bytes_of(SlotId id) const { return memory_ + static_cast<size_t>(id) * stride_; }
  void evict_excess();  // called once, before the folder's thread runs
  double worth_of(const BlockContents& contents) const;
  // The block without which one is of no use; an empty key if there is none.
  BlockKey parent_of(const BlockContents& contents) const {
    return follows_ ? contents.parent : BlockKey{};
  }
  bool is_worth_a_slot(const BlockContents& contents) const;
  // Functions whose names end in _locked are called with the mutex held. This one takes a slot for
  // a block that follows `parent`; -1 if all are in use.
  SlotId take_slot_locked(const BlockKey& parent);
  void add_locked(SlotId id, const BlockContents& contents, Slot::State state);
  void remove_locked(SlotId id);
  void release_locked(SlotId id);  // frees the slot, once no copy uses it
  void wait_quietly();
  // These run on a stream's thread, when copies have arrived.
  void filled(std::span<const SlotId> slots, std::span<const DeviceBlock> blocks, bool failed);
  void have_been_read(std::span<const SlotId> slots);
  // These run on the folder's thread.
  void work();
  void read(const std::vector<SlotId>& slots);
  void write(const std::vector<SlotId>& slots);
  void make_disk_room(const std::vector<BlockContents>& incoming);

  const KvCache& kv_;
  Device& device_;
  KvCosts costs_;
  bool follows_;  // a block is of use only with the blocks before it
  size_t block_bytes_, stride_;
  double part_bytes_;
  PinnedBuffer buffer_;
  std::byte* memory_ = nullptr;  // the first slot
  std::unique_ptr<DeviceStream> in_;
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
  std::vector<BlockKey> unwanted_;  // blocks on disk that are to be dropped
  int fetching_ = 0;
  bool is_closing_ = false;
  KvStoreStats stats_;

  std::unique_ptr<BlockFolder> folder_;  // used by its thread alone, once that runs
  std::thread thread_;                   // uses all members above
  std::unique_ptr<CopyOutQueue> out_;    // the last member: its copies end with calls of filled()
};

}  // namespace spillway
