// SPDX-License-Identifier: Apache-2.0
// Moves blocks between the pools and the KV stores.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/prefix_reuse.h"

namespace spillway {
namespace {

// Blocks that the pool gives out next are copied before it does: at least this many, and as many
// more as a step may fill.
constexpr int64_t kLeastAhead = 16;
// A store has room for copies of blocks that are still in the pool if it has this many times the
// pool's blocks.
constexpr int64_t kPoolsWorth = 2;

}  // namespace

// Copies are made ahead of the step that needs the room, which then need not wait for them. If
// blocks are short, a step takes those of the requests that ended just before it: their copies are
// made while they still run, as long as the store has room for more than the pool's blocks.
void PrefixReuse::store_ahead(std::span<const KvStore::Copy> filled) {
  const int64_t ahead = kLeastAhead + decoder_.max_tokens() / kKvBlockTokens;
  std::vector<KvStore::Copy> copies;
  for (int group = 0; group < allocator_.groups(); ++group) {
    const bool is_short = allocator_.unkept(Tier::kDevice, group) < ahead;
    const bool has_room =
        stores_->of(group).slots() >= kPoolsWorth * int64_t{allocator_.total(Tier::kDevice, group)};
    for (const KvStore::Copy& copy : filled) {
      if (copy.block.group != group || !(stores_->lasts() || (is_short && has_room))) continue;
      if (!stores_->of(group).has(copy.contents.key)) stored_by_step_.push_back(copy.contents.key);
      copies.push_back(copy);
    }
    if (!is_short || stores_->lasts()) continue;
    for (const auto& [block, contents] : allocator_.next_evictions(Tier::kDevice, ahead, group))
      copies.push_back({contents, block.in<Tier::kDevice>()});
  }
  stores_->put(copies);
}

void PrefixReuse::fill_blocks(const StepPlan& plan) {
  if (stores_ == nullptr) return;
  load_blocks(plan);
  for (const StepPlan::Beginning& beginning : plan.beginning) keep_loaded(plan, beginning);
}

void PrefixReuse::load_blocks(const StepPlan& plan) {
  PerGroup<std::vector<BlockKey>> keys;
  std::vector<KvStore::Load> loads;
  std::vector<DeviceBlock> written;
  for (const StepPlan::Load& load : plan.loads) {
    keys[load.to.group].push_back(load.key);
    loads.push_back({load.key, load.to});
  }
  for (const ScheduledChunk& chunk : plan.chunks) {
    const auto first = static_cast<size_t>(chunk.start / kKvBlockTokens);
    const auto end = static_cast<size_t>(blocks_for_tokens(chunk.start + chunk.tokens));
    for (int group = 0; group < allocator_.groups(); ++group) {
      const bool is_paged = allocator_.rule(group).is_paged();
      const std::span<const BlockId> all = chunk.table->blocks(group);
      for (const BlockId block : is_paged ? all.subspan(first, end - first) : all)
        if (block.tier == Tier::kDevice) written.push_back(block.in<Tier::kDevice>());
    }
  }
  for (const StepPlan::Copy& copy : plan.copies) written.push_back(copy.to.in<Tier::kDevice>());
  // Blocks that the step loads must not be evicted from the stores by the copies that come first,
  // nor by the fetches for waiting requests.
  PerGroup<std::vector<BlockKey>> pinned;
  const auto unpin = [this](PerGroup<std::vector<BlockKey>>* of) { unpin_all(*of); };
  const std::unique_ptr<PerGroup<std::vector<BlockKey>>, decltype(unpin)> until_loaded(&pinned,
                                                                                       unpin);
  fetch_all(keys, pinned);
  SPW_ASSERT(pinned == keys);
  stores_->put(std::exchange(evicted_, {}));
  stores_->before_writing(written);
  stores_->load(loads);
  for (const KvStore::Load& load : loads) kv_.reload(load.block);
  start_fetches(plan);
}

void PrefixReuse::keep_loaded(const StepPlan& plan, const StepPlan::Beginning& beginning) {
  const ScheduledChunk& chunk = plan.chunks[beginning.chunk];
  EngineRequest& request = *requests_.at(chunk.id);
  const FoundPrefix& found = beginning.found;
  const size_t whole = static_cast<size_t>(found.tokens) / kKvBlockTokens;
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (!allocator_.rule(group).is_paged()) continue;
    const size_t first = found.blocks[index_of(group)].size();
    const size_t end = std::min(whole, first + found.loads[index_of(group)].size());
    for (size_t i = first; i < end; ++i) {
      allocator_.keep(chunk.table->blocks(group)[i], contents_of(request, i, group));
      in_flight_.erase(request.keys[i]);
    }
  }
  const size_t counted = index_of(allocator_.forecast_group());
  const size_t begun = found.blocks[counted].size();
  const auto loaded = static_cast<int64_t>(found.loads[counted].size());
  // Some of the blocks that were fetched may have been damaged and are not loaded.
  const int64_t from_disk = std::ranges::count_if(
      found.loads[counted], [&](const BlockKey& key) { return request.from_disk.contains(key); });
  const int64_t tokens = std::min<int64_t>(
      loaded * kKvBlockTokens, found.tokens - static_cast<int64_t>(begun) * kKvBlockTokens);
  const int64_t disk_tokens = std::min<int64_t>(tokens, from_disk * kKvBlockTokens);
  stored_reuse_.disk_tokens += disk_tokens;
  stored_reuse_.host_tokens += tokens - disk_tokens;
  unpin(request);
}

void PrefixReuse::wait_for_disk(const StepPlan& plan, std::chrono::milliseconds most) {
  start_fetches(plan);
  if (stores_ != nullptr) stores_->wait_for_fetch(most);
}

void PrefixReuse::start_fetches(const StepPlan& plan) {
  for (const StepPlan::Fetch& fetch : plan.fetches) {
    EngineRequest& request = *requests_.at(fetch.id);
    request.has_fetched = true;
    for (int group = 0; group < allocator_.groups(); ++group) {
      for (const BlockKey& key : fetch.keys[index_of(group)])
        if (stores_->of(group).place_of(key) == KvStore::Place::kDisk)
          request.from_disk.insert(key);
    }
    fetch_all(fetch.keys, request.pinned);
  }
}

void PrefixReuse::fetch_all(const PerGroup<std::vector<BlockKey>>& keys,
                            PerGroup<std::vector<BlockKey>>& pinned) {
  for (int group = 0; group < allocator_.groups(); ++group) {
    const std::vector<BlockKey>& wanted = keys[index_of(group)];
    const auto count = static_cast<std::ptrdiff_t>(stores_->of(group).fetch(wanted));
    pinned[index_of(group)].assign(wanted.begin(), wanted.begin() + count);
  }
}

void PrefixReuse::unpin_all(PerGroup<std::vector<BlockKey>>& pinned) {
  for (int group = 0; group < allocator_.groups(); ++group)
    stores_->of(group).unpin(std::exchange(pinned[index_of(group)], {}));
}

void PrefixReuse::unpin(EngineRequest& request) {
  if (stores_ == nullptr) return;
  unpin_all(request.pinned);
  request.has_fetched = false;
  request.from_disk.clear();
}

// A store takes only half its slots of copies before the first of them have arrived. Blocks that
// others depend on go first: without them the others are of no use.
void PrefixReuse::store_all_evicted() {
  if (stores_ == nullptr) return;
  std::vector<KvStore::Copy> evicted = std::exchange(evicted_, {});
  std::ranges::stable_sort(evicted, {},
                           [](const KvStore::Copy& copy) { return copy.contents.position; });
  const auto most = static_cast<size_t>(stores_->slots() / 2);
  for (std::span<const KvStore::Copy> rest = evicted; !rest.empty();
       rest = rest.subspan(std::min(most, rest.size()))) {
    stores_->put(rest.first(std::min(most, rest.size())));
    stores_->wait_for_copies();
  }
  stores_->wait_for_copies();  // those of earlier steps, too
}

std::optional<KvStoreStats> PrefixReuse::store_stats() const {
  return stores_ != nullptr ? std::optional(stores_->stats()) : std::nullopt;
}

StoreTraffic PrefixReuse::take_store_traffic() {
  const KvStoreStats now = stores_ != nullptr ? stores_->stats() : KvStoreStats();
  const KvStoreStats before = std::exchange(counted_, now);
  return {.to_device = now.to_device_bytes - before.to_device_bytes,
          .to_host = now.to_host_bytes - before.to_host_bytes,
          .disk_read = now.disk_read_bytes - before.disk_read_bytes,
          .disk_written = now.disk_written_bytes - before.disk_written_bytes};
}

}  // namespace spillway
