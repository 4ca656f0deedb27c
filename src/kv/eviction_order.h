// SPDX-License-Identifier: Apache-2.0
// Which block of a store goes when there is no room for another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>

#include "kv/block_key.h"

namespace spillway {

// The one that is the cheapest to compute again, and was not used for long: each block begins with
// what it is worth above what the last one that went was worth, and is back there when it is used
// (GreedyDual-Size; all blocks have one size). Blocks that others go on from stay as long as these:
// without them the others are of no use. Of equals the oldest goes. Not thread-safe.
class EvictionOrder {
 public:
  // `worth` is not negative. A key comes once.
  void add(const BlockKey& key, const BlockKey& parent, double worth);
  void use(const BlockKey& key);  // does nothing for a key that is not there
  void remove(const BlockKey& key);
  size_t size() const { return entries_.size(); }

  // The first of those that may go; it stays until evicted().
  using MayGo = std::function<bool(const BlockKey&)>;
  std::optional<BlockKey> try_next(const MayGo& may_go) const;
  // Went: what comes now is measured against it.
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
  std::unordered_map<BlockKey, int> children_;  // of keys that are here or not
  std::set<Place> leaves_;
  double floor_ = 0;
  uint64_t next_age_ = 0;
};

}  // namespace spillway
