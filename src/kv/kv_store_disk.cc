// SPDX-License-Identifier: Apache-2.0
// The part of KvStore that runs on its thread and uses the folder.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread_name.h"
#include "kv/kv_store.h"

namespace spillway {
namespace {

// The most blocks that one write, or one read, of the folder takes.
constexpr size_t kWrittenTogether = 16, kReadTogether = 64;

BlockName name_of(const BlockKey& key) { return {key.low, key.high}; }

template <class T>
std::vector<T> take_first(std::deque<T>& from, size_t most) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(most, from.size()));
  std::vector<T> taken(from.begin(), end);
  from.erase(from.begin(), end);
  return taken;
}

}  // namespace

void KvStore::work() {
  name_this_thread("kv-store");
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] {
      return is_closing_ || !to_read_.empty() || !to_write_.empty() || !unwanted_.empty();
    });
    // Reads go first, because requests wait for them.
    const std::vector<SlotId> reads = take_first(to_read_, kReadTogether);
    const std::vector<SlotId> writes =
        reads.empty() ? take_first(to_write_, kWrittenTogether) : std::vector<SlotId>();
    const std::vector<BlockKey> unwanted = std::exchange(unwanted_, {});
    if (reads.empty() && writes.empty() && unwanted.empty()) return;
    lock.unlock();
    for (const BlockKey& key : unwanted) folder_->drop(name_of(key));
    if (!reads.empty()) read(reads);
    if (!writes.empty()) write(writes);
    lock.lock();
    const BlockFolder::Stats& stats = folder_->stats();
    stats_.damaged = static_cast<int64_t>(stats.damaged);
    stats_.disk_read_bytes = stats.read_bytes;
    stats_.disk_written_bytes = stats.written_bytes;
    has_come_.notify_all();
  }
}

void KvStore::read(const std::vector<SlotId>& slots) {
  std::vector<FolderRead> reads;
  {
    const std::lock_guard lock(mutex_);
    for (const SlotId id : slots)
      reads.push_back({name_of(slots_[static_cast<size_t>(id)].contents.key), bytes_of(id)});
  }
  const std::vector<bool> good = folder_->read(reads);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots_[static_cast<size_t>(slots[i])];
    slot.state = Slot::State::kReady;
    --fetching_;
    if (good[i] && !slot.is_dropped) continue;
    const BlockKey key = slot.contents.key;
    if (slot.is_dropped) {
      release_locked(slots[i]);
    } else {
      remove_locked(slots[i]);
    }
    if (!good[i] && on_disk_.erase(key) > 0) disk_order_.remove(key);
  }
}

// Evicts blocks from the folder until those to be written have room, but none that these follow.
void KvStore::make_disk_room(const std::vector<BlockContents>& incoming) {
  while (folder_->room() < incoming.size()) {
    std::optional<BlockKey> victim;
    {
      const std::lock_guard lock(mutex_);
      victim = disk_order_.try_next([&](const BlockKey& key) {
        return std::ranges::none_of(incoming,
                                    [&](const BlockContents& of) { return parent_of(of) == key; });
      });
      if (!victim) return;
      disk_order_.evicted(*victim);
      on_disk_.erase(*victim);
      ++stats_.disk.evicted;
    }
    folder_->drop(name_of(*victim));
  }
}

void KvStore::write(const std::vector<SlotId>& slots) {
  std::vector<BlockContents> incoming;
  std::vector<SlotId> written;
  {
    const std::lock_guard lock(mutex_);
    for (const SlotId id : slots) {
      const Slot& slot = slots_[static_cast<size_t>(id)];
      const BlockContents& contents = slot.contents;
      if (slot.is_dropped || on_disk_.contains(contents.key)) continue;
      // Without its parent on disk, a block could never be used.
      const bool has_parent =
          !follows_ || contents.position == 0 || on_disk_.contains(contents.parent) ||
          std::ranges::any_of(incoming,
                              [&](const BlockContents& of) { return of.key == contents.parent; });
      if (!has_parent) {
        ++stats_.refused;
        continue;
      }
      incoming.push_back(contents);
      written.push_back(id);
    }
  }
  make_disk_room(incoming);
  const size_t count = std::min<size_t>(incoming.size(), folder_->room());
  written.resize(count);
  std::vector<FolderWrite> writes;
  for (size_t i = 0; i < count; ++i) {
    writes.push_back({.block = {.name = name_of(incoming[i].key),
                                .parent = name_of(incoming[i].parent),
                                .position = static_cast<uint32_t>(incoming[i].position)},
                      .bytes = bytes_of(written[i])});
  }
  const std::vector<bool> good = folder_->write(writes);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < written.size(); ++i) {
    const Slot& slot = slots_[static_cast<size_t>(written[i])];
    if (!good[i]) continue;
    if (slot.is_dropped) {
      unwanted_.push_back(slot.contents.key);
      continue;
    }
    on_disk_.emplace(slot.contents.key, slot.contents);
    disk_order_.add(slot.contents.key, parent_of(slot.contents), worth_of(slot.contents));
  }
  for (const SlotId id : slots) {
    slots_[static_cast<size_t>(id)].is_writing = false;
    --at_work_;
    release_locked(id);
  }
}

}  // namespace spillway
