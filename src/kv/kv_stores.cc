// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_stores.h"

#include <algorithm>
#include <iterator>

namespace spillway {
namespace {

template <class T>
PerGroup<std::vector<T>> by_group(std::span<const T> all) {
  PerGroup<std::vector<T>> parts;
  for (const T& one : all) parts[one.block.group].push_back(one);
  return parts;
}

}  // namespace

KvStores::KvStores(KvStore* store) {
  if (store != nullptr) stores_.push_back(store);
}

KvStores::KvStores(const std::vector<std::unique_ptr<KvStore>>& stores) {
  for (const std::unique_ptr<KvStore>& store : stores) stores_.push_back(store.get());
}

int64_t KvStores::slots() const {
  int64_t fewest = stores_[0]->slots();
  for (const KvStore* const store : stores_) fewest = std::min(fewest, store->slots());
  return fewest;
}

bool KvStores::loading_pays(const PerGroup<std::span<const BlockKey>>& blocks, int64_t position,
                            int64_t tokens) const {
  KvStore::LoadBytes bytes;  // all groups share the link
  for (size_t group = 0; group < stores_.size(); ++group) {
    const KvStore::LoadBytes more = stores_[group]->load_bytes(blocks[group]);
    bytes.device += more.device;
    bytes.disk += more.disk;
  }
  return stores_[0]->costs().loading_pays(static_cast<double>(position),
                                          static_cast<double>(tokens), bytes.device, bytes.disk);
}

void KvStores::wait_for_fetch(std::chrono::milliseconds most) const {
  for (KvStore* const store : stores_) store->wait_for_fetch(most / std::ssize(stores_));
}

void KvStores::wait_for_copies() const {
  for (KvStore* const store : stores_) store->wait_for_copies();
}

void KvStores::put(std::span<const KvStore::Copy> copies) const {
  if (stores_.size() == 1) return stores_[0]->put(copies);
  const auto parts = by_group(copies);
  for (size_t group = 0; group < stores_.size(); ++group) stores_[group]->put(parts[group]);
}

void KvStores::load(std::span<const KvStore::Load> loads) const {
  if (stores_.size() == 1) return stores_[0]->load(loads);
  const auto parts = by_group(loads);
  for (size_t group = 0; group < stores_.size(); ++group) stores_[group]->load(parts[group]);
}

void KvStores::before_writing(std::span<const DeviceBlock> blocks) const {
  for (KvStore* const store : stores_) store->before_writing(blocks);
}

void KvStores::drop(std::span<const BlockKey> keys) const {
  for (KvStore* const store : stores_) store->drop(keys);
}

void KvStores::drop_unfinished() const {
  for (KvStore* const store : stores_) store->drop_unfinished();
}

KvStoreStats KvStores::stats() const {
  KvStoreStats all;
  for (const KvStore* const store : stores_) all += store->stats();
  return all;
}

}  // namespace spillway
