// SPDX-License-Identifier: Apache-2.0
#include "kv/eviction_order.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {

void EvictionOrder::add(const BlockKey& key, const BlockKey& parent, double worth) {
  const Place place{.priority = floor_ + worth, .age = next_age_++, .key = key};
  const bool is_new =
      entries_.emplace(key, Entry{.parent = parent, .worth = worth, .place = place}).second;
  SPW_ASSERT(is_new);
  if (is_leaf(key)) leaves_.insert(place);
  if (children_[parent]++ > 0) return;
  if (const auto found = entries_.find(parent); found != entries_.end())
    leaves_.erase(found->second.place);
}

void EvictionOrder::use(const BlockKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const bool was_leaf = leaves_.erase(entry.place) > 0;
  entry.place.priority = floor_ + entry.worth;
  entry.place.age = next_age_++;
  if (was_leaf) leaves_.insert(entry.place);
}

void EvictionOrder::remove(const BlockKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  const BlockKey parent = found->second.parent;
  leaves_.erase(found->second.place);
  entries_.erase(found);
  const auto count = children_.find(parent);
  if (--count->second > 0) return;
  children_.erase(count);
  if (const auto before = entries_.find(parent); before != entries_.end())
    leaves_.insert(before->second.place);
}

std::optional<BlockKey> EvictionOrder::try_next(const MayGo& may_go) const {
  for (const Place& place : leaves_) {
    if (may_go(place.key)) return place.key;
  }
  return std::nullopt;
}

void EvictionOrder::evicted(const BlockKey& key) {
  const auto found = entries_.find(key);
  SPW_ASSERT(found != entries_.end());
  floor_ = std::max(floor_, found->second.place.priority);
  remove(key);
}

}  // namespace spillway
