// SPDX-License-Identifier: Apache-2.0
// The KV stores of a model, which keep blocks beyond the pools for later requests: one for each
// group of layers (model/state_group.h), used together.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_store.h"
#include "tensor/state_rule.h"

namespace spillway {

// Does not own the stores, which must outlive it. Keys are those of the groups (group_key()), so no
// two stores share one, and block ids say which group they belong to.
class KvStores {
 public:
  KvStores() = default;
  KvStores(KvStore* store);  // for a model with one group; null: no store
  KvStores(const std::vector<std::unique_ptr<KvStore>>& stores);  // one for each group

  bool empty() const { return stores_.empty(); }
  KvStore& of(int group) const { return *stores_.at(static_cast<size_t>(group)); }
  int groups() const { return static_cast<int>(stores_.size()); }
  // Whether `tokens` tokens after `position` come faster from the stores, if these blocks of each
  // group bring them, than they are computed. All of the blocks are stored.
  bool loading_pays(const PerGroup<std::span<const BlockKey>>& blocks, int64_t position,
                    int64_t tokens) const;
  int64_t slots() const;  // of the group with the fewest
  bool lasts() const { return stores_[0]->lasts(); }
  void wait_for_fetch(std::chrono::milliseconds most) const;
  void wait_for_copies() const;
  // These do what KvStore's methods do, in the stores of the groups that the blocks or
  // keys belong to.
  void put(std::span<const KvStore::Copy> copies) const;
  void load(std::span<const KvStore::Load> loads) const;
  void before_writing(std::span<const DeviceBlock> blocks) const;
  void drop(std::span<const BlockKey> keys) const;
  void drop_unfinished() const;
  KvStoreStats stats() const;  // the sum over all stores

 private:
  std::vector<KvStore*> stores_;  // by group
};

}  // namespace spillway
