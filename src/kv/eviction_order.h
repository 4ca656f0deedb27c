// SPDX-License-Identifier: Apache-2.0
// Chooses which block of a KV store (kv_store.h) is evicted when there is no room for another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>

#include "kv/block_key.h"

namespace spillway {

// Orders blocks so that the next one to evict is cheapest to compute again and has not been used
// for long (GreedyDual-Size; all blocks have one size). A block's priority is its worth above the
// priority of the last evicted block, and is restored to that when the block is used. A block stays
// as long as there are blocks that continue it, because those are of no use without it. Among
// equals the oldest is evicted first. Not thread-safe.
class EvictionOrder {
 public:
  // `worth` is not negative. A key is added only once.
  void add(const BlockKey& key, const BlockKey& parent, double worth);
  void use(const BlockKey& key);  // does nothing for a key that is not there
  void remove(const BlockKey& key);
  size_t size() const { return entries_.size(); }

  // Returns the first block that may be evicted; it stays in the order until evicted().
  using MayGo = std::function<bool(const BlockKey&)>;
  std::optional<BlockKey> try_next(const MayGo& may_go) const;
  // Removes an evicted block; the priority of blocks that are added or used later is relative to
  // its own.
  void evicted(const BlockKey& key);

 private:
  struct Place {
    double priority = 0;
    uint64_t age = 0;
    BlockKey key = {};
    bool operator<(const Place& other) const {
      return priority != other.priority ? priority < other.priority : age < other.age;
    }
  };
  struct Entry {
    BlockKey parent = {};
    double worth = 0;
    Place place = {};
  };
  bool is_leaf(const BlockKey& key) const { return !children_.contains(key); }

  std::unordered_map<BlockKey, Entry> entries_;
  // The number of children of each key, also of keys without an entry.
  std::unordered_map<BlockKey, int> children_;
  std::set<Place> leaves_;
  double floor_ = 0;
  uint64_t next_age_ = 0;
};

}  // namespace spillway
