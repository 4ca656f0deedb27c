// SPDX-License-Identifier: Apache-2.0
// The KV stores of a model: one for each group of layers (model/state_group.h), used together.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_store.h"
#include "tensor/state_rule.h"

namespace spillway {

// Owns none of them; they must outlive it. Keys are those of the groups (group_key()), so that no
// two stores have the same one, and blocks say which group they belong to.
class KvStores {
 public:
  KvStores() = default;
  KvStores(KvStore* store);  // of a model with one group; null: there is none
  KvStores(const std::vector<std::unique_ptr<KvStore>>& stores);  // by group

  bool empty() const { return stores_.empty(); }
  KvStore& of(int group) const { return *stores_.at(static_cast<size_t>(group)); }
  int groups() const { return static_cast<int>(stores_.size()); }
  // Whether `tokens` tokens behind `position` come faster from the stores than they are computed,
  // if these blocks of each group bring them. All of them are stored.
  bool loading_pays(const PerGroup<std::span<const BlockKey>>& blocks, int64_t position,
                    int64_t tokens) const;
  int64_t slots() const;  // of the group that has fewest
  bool lasts() const { return stores_[0]->lasts(); }
  void wait_for_fetch(std::chrono::milliseconds most) const;
  void wait_for_copies() const;
  // As a store's, for whichever groups the blocks and keys belong to.
  void put(std::span<const KvStore::Copy> copies) const;
  void load(std::span<const KvStore::Load> loads) const;
  void before_writing(std::span<const DeviceBlock> blocks) const;
  void drop(std::span<const BlockKey> keys) const;
  void drop_unfinished() const;
  KvStoreStats stats() const;  // all together

 private:
  std::vector<KvStore*> stores_;  // by group
};

}  // namespace spillway
