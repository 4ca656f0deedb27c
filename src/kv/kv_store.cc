// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_store.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

BlockKey key_of(const BlockName& name) { return {name.low, name.high}; }

}  // namespace

uint64_t KvStore::slot_bytes(const KvCache& kv, int group) {
  return align_up(static_cast<uint64_t>(kv.block_bytes(group)));
}

KvStore::KvStore(const KvCache& kv, TransferScheduler& transfers, Device& host,
                 const Options& options, std::unique_ptr<BlockFolder>&& folder)
    : kv_(kv),
      device_(transfers.device()),
      costs_(options.costs),
      follows_(options.rule.kind == StateKind::kFull),
      block_bytes_(static_cast<size_t>(kv.block_bytes(options.group))),
      stride_(slot_bytes(kv, options.group)),
      part_bytes_(options.part_bytes > 0 ? options.part_bytes : static_cast<double>(block_bytes_)),
      buffer_(
          host, device_, static_cast<size_t>(options.slots) * stride_ + kDirectAlignment,
          MemoryTag::kKv,
          device_.host_visible() ? PinnedBuffer::Pin::kNever : PinnedBuffer::Pin::kWherePossible),
      memory_(first_aligned(buffer_.data())),
      in_(transfers.open_awaited(TransferUse::kStoredKv, LinkDirection::kToDevice)),
      computed_(device_.make_event()),
      copied_(device_.make_event()),
      slots_(static_cast<size_t>(options.slots)),
      folder_(std::move(folder)),
      out_(transfers.open_copies_out(TransferUse::kStoredKv)) {
  SPW_ASSERT(options.slots >= 2);
  for (SlotId id = options.slots; id-- > 0;) free_.push_back(id);
  if (!folder_) return;
  SPW_ASSERT(folder_->stride() == stride_);
  for (const FolderBlock& block : folder_->blocks()) {
    const BlockContents contents{.key = key_of(block.name),
                                 .parent = key_of(block.parent),
                                 .position = static_cast<int32_t>(block.position)};
    on_disk_.emplace(contents.key, contents);
    disk_order_.add(contents.key, parent_of(contents), worth_of(contents));
  }
  evict_excess();
  stats_.damaged = static_cast<int64_t>(folder_->stats().damaged);
  thread_ = std::thread([this] { work(); });
}

KvStore::~KvStore() {
  wait_quietly();
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  has_work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// If an earlier run allowed the folder more bytes, the blocks of least worth are evicted, as
// while serving.
void KvStore::evict_excess() {
  std::vector<BlockName> names;
  for (uint32_t excess = folder_->excess(); excess > 0; --excess) {
    const auto victim = disk_order_.try_next([](const BlockKey&) { return true; });
    SPW_ASSERT(victim);
    disk_order_.evicted(*victim);
    on_disk_.erase(*victim);
    names.push_back({victim->low, victim->high});
    ++stats_.disk.evicted;
  }
  if (!names.empty()) folder_->shrink(names);
}

double KvStore::worth_of(const BlockContents& contents) const {
  return costs_.token_s > 0 ? costs_.compute_s(contents.position, contents.tokens)
                            : contents.tokens;
}

// Whole blocks always get a slot: whether loading them pays depends on how many a request finds
// (KvStores::loading_pays()). A partial block is copied out when its room is needed, and a step
// waits for that as well, so both directions count.
bool KvStore::is_worth_a_slot(const BlockContents& contents) const {
  return contents.tokens == kKvBlockTokens ||
         costs_.loading_pays(contents.position, contents.tokens, 2 * part_bytes_, 0);
}

KvStore::Place KvStore::place_of(const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    const bool is_in_flight =
        slots_[static_cast<size_t>(found->second)].state == Slot::State::kFetching;
    return is_in_flight ? Place::kInFlight : Place::kHost;
  }
  return on_disk_.contains(key) ? Place::kDisk : Place::kNowhere;
}

KvStore::LoadBytes KvStore::load_bytes(std::span<const BlockKey> keys) const {
  LoadBytes bytes;
  for (const BlockKey& key : keys) {
    bytes.device += static_cast<double>(block_bytes_);
    if (place_of(key) == Place::kDisk) bytes.disk += static_cast<double>(block_bytes_);
  }
  return bytes;
}

KvStore::SlotId KvStore::take_slot_locked(const BlockKey& parent) {
  if (free_.empty()) {
    const auto may_go = [&](const BlockKey& key) {
      const Slot& slot = slots_[static_cast<size_t>(by_key_.at(key))];
      // The new block is of no use without the one before it.
      const bool is_needed = key == parent && !on_disk_.contains(key);
      return !is_needed && slot.state == Slot::State::kReady && slot.pins == 0 &&
             slot.readers == 0 && !slot.is_writing;
    };
    const auto victim = order_.try_next(may_go);
    if (!victim) return -1;
    const SlotId id = by_key_.at(*victim);
    order_.evicted(*victim);
    by_key_.erase(*victim);
    slots_[static_cast<size_t>(id)] = {};
    free_.push_back(id);
    ++stats_.host.evicted;
  }
  const SlotId id = free_.back();
  free_.pop_back();
  return id;
}

void KvStore::add_locked(SlotId id, const BlockContents& contents, Slot::State state) {
  slots_[static_cast<size_t>(id)] = {.state = state, .contents = contents};
  by_key_.emplace(contents.key, id);
  order_.add(contents.key, parent_of(contents), worth_of(contents));
}

void KvStore::remove_locked(SlotId id) {
  Slot& slot = slots_[static_cast<size_t>(id)];
  by_key_.erase(slot.contents.key);
  order_.remove(slot.contents.key);
  slot.is_dropped = true;
  release_locked(id);
}

void KvStore::release_locked(SlotId id) {
  Slot& slot = slots_[static_cast<size_t>(id)];
  if (!slot.is_dropped || slot.is_writing || slot.readers > 0 || slot.state != Slot::State::kReady)
    return;
  slot = {};
  free_.push_back(id);
}

size_t KvStore::fetch(std::span<const BlockKey> keys) {
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const BlockKey& key : keys) {
      if (const auto found = by_key_.find(key); found != by_key_.end()) {
        ++slots_[static_cast<size_t>(found->second)].pins;
        order_.use(key);
      } else {
        const auto kept = on_disk_.find(key);
        if (kept == on_disk_.end()) break;
        // Leaves some of the slots to put().
        if (at_work_ + fetching_ >= static_cast<int32_t>(slots_.size() * 3 + 3) / 4) break;
        const SlotId id = take_slot_locked(parent_of(kept->second));
        if (id < 0) break;
        add_locked(id, kept->second, Slot::State::kFetching);
        slots_[static_cast<size_t>(id)].pins = 1;
        disk_order_.use(key);
        to_read_.push_back(id);
        ++fetching_;
      }
      ++count;
    }
  }
  has_work_.notify_all();
  return count;
}

void KvStore::unpin(std::span<const BlockKey> keys) {
  const std::lock_guard lock(mutex_);
  for (const BlockKey& key : keys) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) continue;
    Slot& slot = slots_[static_cast<size_t>(found->second)];
    slot.pins = std::max(0, slot.pins - 1);
  }
}

void KvStore::wait_for_fetch(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const int before = fetching_;
  has_come_.wait_for(lock, most, [&] { return fetching_ == 0 || fetching_ < before; });
}

void KvStore::put(std::span<const Copy> copies) {
  std::vector<SlotId> slots;
  std::vector<DeviceBlock> blocks;
  std::vector<CopyPiece> pieces;
  {
    const std::lock_guard lock(mutex_);
    for (const Copy& copy : copies) {
      if (by_key_.contains(copy.contents.key) || on_disk_.contains(copy.contents.key)) continue;
      if (!is_worth_a_slot(copy.contents)) continue;
      const bool is_behind = at_work_ >= static_cast<int32_t>(slots_.size() + 1) / 2;
      const SlotId id = is_behind ? -1 : take_slot_locked(parent_of(copy.contents));
      if (id < 0) {
        ++stats_.refused;
        continue;
      }
      add_locked(id, copy.contents, Slot::State::kFilling);
      ++at_work_;
      ++leaving_[copy.block];
      kv_.add_pieces(copy.block, bytes_of(id), KvCache::Direction::kToHost, pieces);
      slots.push_back(id);
      blocks.push_back(copy.block);
      stats_.to_host_bytes += block_bytes_;
    }
  }
  if (slots.empty()) return;
  out_->add(std::move(pieces),
            [this, slots, blocks](bool failed) { filled(slots, blocks, failed); });
}

// Errors are ignored, because the code that uses the failed device reports them.
void KvStore::wait_quietly() {
  out_->synchronize();
  try {
    in_->synchronize();
  } catch (const std::exception&) {
  }
}

void KvStore::filled(std::span<const SlotId> slots, std::span<const DeviceBlock> blocks,
                     bool failed) {
  {
    const std::lock_guard lock(mutex_);
    for (const SlotId id : slots)
      if (failed && !slots_[static_cast<size_t>(id)].is_dropped) remove_locked(id);
    for (const DeviceBlock block : blocks) {
      if (--leaving_[block] == 0) leaving_.erase(block);
    }
    for (const SlotId id : slots) {
      Slot& slot = slots_[static_cast<size_t>(id)];
      slot.state = Slot::State::kReady;
      const bool goes_on = folder_ && !slot.is_dropped;
      slot.is_writing = goes_on;
      if (goes_on) {
        to_write_.push_back(id);
      } else {
        --at_work_;
        release_locked(id);
      }
    }
  }
  has_work_.notify_all();
}

void KvStore::load(std::span<const Load> loads) {
  std::vector<SlotId> slots;
  std::vector<CopyPiece> pieces;
  bool follows_copies = false;
  {
    const std::lock_guard lock(mutex_);
    for (const Load& load : loads) {
      const SlotId id = by_key_.at(load.key);
      Slot& slot = slots_[static_cast<size_t>(id)];
      SPW_ASSERT(slot.state != Slot::State::kFetching);
      follows_copies =
          follows_copies || slot.state == Slot::State::kFilling || leaving_.contains(load.block);
      ++slot.readers;
      order_.use(load.key);
      disk_order_.use(load.key);
      kv_.add_pieces(load.block, bytes_of(id), KvCache::Direction::kToDevice, pieces);
      slots.push_back(id);
      stats_.to_device_bytes += block_bytes_;
    }
  }
  if (slots.empty()) return;
  try {
    device_.compute().record(*computed_);
    in_->wait(*computed_);
    if (follows_copies) out_->make_wait(*in_);
    in_->copy_to_device(pieces);
    in_->record(*copied_);
    device_.compute().wait(*copied_);
    in_->run_on_host([this, slots] { have_been_read(slots); });
  } catch (...) {
    wait_quietly();
    have_been_read(slots);
    throw;
  }
}

void KvStore::have_been_read(std::span<const SlotId> slots) {
  const std::lock_guard lock(mutex_);
  for (const SlotId id : slots) {
    --slots_[static_cast<size_t>(id)].readers;
    release_locked(id);
  }
}

void KvStore::before_writing(std::span<const DeviceBlock> blocks) {
  const bool is_leaving = [&] {
    const std::lock_guard lock(mutex_);
    return !leaving_.empty() &&
           std::ranges::any_of(blocks, [&](DeviceBlock block) { return leaving_.contains(block); });
  }();
  if (is_leaving) out_->make_wait(device_.compute());
}

void KvStore::drop(std::span<const BlockKey> keys) {
  const std::lock_guard lock(mutex_);
  for (const BlockKey& key : keys) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) remove_locked(found->second);
    if (on_disk_.erase(key) == 0) continue;
    disk_order_.remove(key);
    unwanted_.push_back(key);
  }
  has_work_.notify_all();
}

void KvStore::wait_for_copies() {
  out_->synchronize();
  in_->synchronize();
}

void KvStore::drop_unfinished() {
  out_->abandon();
  const std::lock_guard lock(mutex_);
  for (SlotId id = 0; id < static_cast<SlotId>(slots_.size()); ++id) {
    const Slot& slot = slots_[static_cast<size_t>(id)];
    if (slot.state == Slot::State::kFilling && !slot.is_dropped) remove_locked(id);
  }
}

KvStoreStats KvStore::stats() const {
  const std::lock_guard lock(mutex_);
  KvStoreStats stats = stats_;
  stats.host.blocks = static_cast<int64_t>(by_key_.size());
  stats.host.bytes = stats.host.blocks * static_cast<int64_t>(stride_);
  stats.disk.blocks = static_cast<int64_t>(on_disk_.size());
  stats.disk.bytes = stats.disk.blocks * static_cast<int64_t>(stride_);
  return stats;
}

}  // namespace spillway
