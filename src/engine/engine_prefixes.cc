// SPDX-License-Identifier: Apache-2.0
// Of an engine: which KV is there already for what a request begins with, and what is kept for
// others.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_request.h"

namespace spillway {
namespace {

// Blocks of a prompt that somebody computes: for these a request waits.
constexpr size_t kWorthWaiting = 4;
// Blocks of the pool that are about to be given out and have a copy by then, beside those of a
// step.
constexpr int64_t kLeastAhead = 16;
// So many times the pool's blocks are room for copies of those that are in it.
constexpr int64_t kPoolsWorth = 2;

}  // namespace

std::span<const BlockKey> Engine::keys_of(Request& request, size_t blocks) const {
  std::vector<BlockKey>& keys = request.keys;
  while (keys.size() < blocks) {
    const auto tokens = std::span<const TokenId>(request.tokens)
                            .subspan(keys.size() * kKvBlockTokens, kKvBlockTokens);
    keys.push_back(next_key(keys.empty() ? request.first_key : keys.back(), tokens));
  }
  return std::span(keys).first(blocks);
}

FoundPrefix Engine::find(RequestId id, std::span<const RequestId> beginning) const {
  Request& request = *requests_.at(id);
  const size_t most = request.tokens.size() - 1;  // something is left to compute: logits come of it
  const std::span<const BlockKey> keys = keys_of(request, most / kKvBlockTokens);
  const PrefixSearch search(allocator_, {.tokens = request.tokens,
                                         .most = most,
                                         .first_key = request.first_key,
                                         .keys = keys,
                                         .spans = scheduler_.spans(id),
                                         .has_stored_tail = request.generated() > 0});
  FoundPrefix found = search.longest();
  const auto comes = [&](size_t block) {
    const auto owner = coming_.find(keys[block]);
    if (owner != coming_.end() && owner->second != id) return true;
    return std::ranges::any_of(beginning, [&](RequestId other) {
      const Request& computing = *requests_.at(other);
      return computing.params.prompt_logprobs < 0 && block < computing.keys.size() &&
             computing.keys[block] == keys[block];
    });
  };
  const size_t next = static_cast<size_t>(found.tokens) / kKvBlockTokens;
  if (!allocator_.has_states() && next + kWorthWaiting <= keys.size() &&
      comes(next + kWorthWaiting - 1) && comes(next)) {
    found.is_coming = true;
    return found;
  }
  if (store_ == nullptr || kv_.device_blocks() == 0) return found;
  return find_stored(request, search, std::move(found));
}

const BlockKey& Engine::key_before(const Request& request, size_t blocks) const {
  return blocks == 0 ? request.first_key : request.keys[blocks - 1];
}

// Where some of it is on its way to host memory, it pays to wait.
FoundPrefix Engine::find_stored(const Request& request, const PrefixSearch& search,
                                FoundPrefix in_pools) const {
  using Place = KvStore::Place;
  const auto place_of = [this](const BlockKey& key, int group) {
    return store_->of(group).place_of(key);
  };
  const auto is_stored = [&](const BlockKey& key, int group) {
    return place_of(key, group) != Place::kNowhere;
  };
  const auto is_in_host = [&](const BlockKey& key, int group) {
    return place_of(key, group) == Place::kHost;
  };
  const auto needs_no_disk = [&](const BlockKey& key, int group) {
    const Place place = place_of(key, group);
    return place == Place::kHost || place == Place::kComing;
  };
  FoundPrefix found = search.longest(is_stored);
  if (!loading_pays(found, in_pools)) found = search.longest(needs_no_disk);
  if (!loading_pays(found, in_pools)) return in_pools;
  bool all_in_host = true, some_are_coming = false;
  for (int group = 0; group < allocator_.groups(); ++group) {
    for (const BlockKey& key : found.loads[index_of(group)]) {
      const Place place = place_of(key, group);
      all_in_host &= place == Place::kHost;
      some_are_coming |= place == Place::kComing;
    }
  }
  if (!all_in_host && !request.has_fetched) {
    in_pools.is_coming = true;
    in_pools.fetch = std::move(found.loads);
    return in_pools;
  }
  in_pools.is_coming = some_are_coming;
  if (some_are_coming) return in_pools;
  return all_in_host ? found : search.longest(is_in_host);
}

// Compares whole blocks: a part of one is stored only where loading it pays.
bool Engine::loading_pays(const FoundPrefix& found, const FoundPrefix& in_pools) const {
  const auto whole = static_cast<size_t>(found.tokens) / kKvBlockTokens;
  const auto whole_in_pools = static_cast<size_t>(in_pools.tokens) / kKvBlockTokens;
  if (whole <= whole_in_pools) return true;
  PerGroup<std::span<const BlockKey>> loads;
  for (int group = 0; group < allocator_.groups(); ++group) {
    const std::span<const BlockKey> all = found.loads[index_of(group)];
    const size_t whole_loads =
        allocator_.rule(group).is_paged() ? whole - found.blocks[index_of(group)].size() : 1;
    loads[index_of(group)] = all.first(std::min(all.size(), whole_loads));
  }
  return store_->loading_pays(loads, static_cast<int64_t>(whole_in_pools) * kKvBlockTokens,
                              static_cast<int64_t>(whole - whole_in_pools) * kKvBlockTokens);
}

BlockContents Engine::contents_of(const Request& request, size_t block, int group) const {
  return {.key = group_key(request.keys[block], group),
          .parent = group_key(key_before(request, block), group),
          .position = static_cast<int32_t>(block) * kKvBlockTokens};
}

void Engine::keep_tail(Request& request, int64_t computed) {
  const auto whole = static_cast<size_t>(computed / kKvBlockTokens);
  const auto rest = static_cast<size_t>(computed % kKvBlockTokens);
  if (!reuses_ || decoder_.attention_topk() > 0) return;
  std::vector<KvStore::Copy> copies;  // drafts that were right in the last step
  keep_blocks(request, scheduler_.table_of(request.id), request.kept, computed, copies);
  if (store_ != nullptr && !copies.empty()) store_ahead(copies);
  if (rest == 0) return;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  const auto tokens =
      std::span<const TokenId>(request.tokens).subspan(whole * kKvBlockTokens, rest);
  const BlockKey& parent = keys.empty() ? request.first_key : keys.back();
  const BlockKey key = next_key(parent, tokens);
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (!allocator_.rule(group).is_paged()) continue;
    allocator_.keep(scheduler_.blocks_of(request.id, group).at(whole),
                    BlockContents{.key = group_key(key, group),
                                  .parent = group_key(parent, group),
                                  .position = static_cast<int32_t>(whole) * kKvBlockTokens,
                                  .tokens = static_cast<int32_t>(rest)});
  }
}

void Engine::keep_last(Request& request, int64_t computed) {
  keep_tail(request, computed);
  if (!reuses_ || computed == 0 || decoder_.attention_topk() > 0) return;
  // A state that has drafts in it, which ended with the request, is not that of its tokens.
  if (scheduler_.computed_of(request.id) != computed) return;
  std::vector<KvStore::Copy> copies;
  const auto whole = static_cast<size_t>(computed / kKvBlockTokens);
  const auto rest = std::span<const TokenId>(request.tokens)
                        .first(static_cast<size_t>(computed))
                        .subspan(whole * kKvBlockTokens);
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (allocator_.rule(group).is_paged()) continue;
    const std::span<const BlockKey> keys = keys_of(request, whole);
    const BlockKey length = rest.empty() ? keys.back() : next_key(key_before(request, whole), rest);
    const BlockId state = scheduler_.blocks_of(request.id, group).at(0);
    const BlockContents contents{.key = group_key(length, group),
                                 .tokens = static_cast<int32_t>(computed)};
    if (allocator_.keep(state, contents) && state.tier == Tier::kDevice)
      copies.push_back({contents, state.in<Tier::kDevice>()});
  }
  if (store_ != nullptr && !copies.empty()) store_ahead(copies);
}

void Engine::keep_blocks(Request& request, const BlockTable& table, int64_t from, int64_t end,
                         std::vector<KvStore::Copy>& copies) {
  const auto behind = static_cast<size_t>(end / kKvBlockTokens);
  const std::span<const BlockKey> keys = keys_of(request, behind);
  for (auto i = static_cast<size_t>(from / kKvBlockTokens); i < behind; ++i) {
    for (int group = 0; group < allocator_.groups(); ++group) {
      if (!allocator_.rule(group).is_paged()) continue;
      const BlockId block = table.blocks(group)[i];
      if (block.is_released()) continue;
      const BlockContents contents = contents_of(request, i, group);
      if (allocator_.keep(block, contents) && block.tier == Tier::kDevice)
        copies.push_back({contents, block.in<Tier::kDevice>()});
    }
    coming_.erase(keys[i]);
  }
  request.kept = end;
}

// Not what rows have that attended to a part of their context: prompts attend to everything. Nor
// what drafts have, which may be wrong; those that were right are kept in the step after theirs.
void Engine::keep_full_blocks(const StepPlan& plan) {
  std::vector<KvStore::Copy> kept;
  for (const ScheduledChunk& chunk : plan.chunks) {
    if (decoder_.attention_topk() > 0 && chunk.generates) continue;
    Request& request = *requests_.at(chunk.id);
    const int64_t start = chunk.start, end = start + chunk.tokens - chunk.drafted;
    const int64_t from = chunk.generates ? std::min(start, request.kept) : start;
    keep_blocks(request, *chunk.table, from, end, kept);
    const bool ends_prompt = chunk.last && !chunk.generates;
    if (ends_prompt) keep_tail(request, end);
  }
  if (store_ != nullptr) store_ahead(kept);
}

// Ahead of the step that needs the room, which then need not wait for the copies. Where blocks are
// short, a step takes those that ended before it: they have their copies while they are still at
// work, as long as there is room here for more than what the pool has.
void Engine::store_ahead(std::span<const KvStore::Copy> filled) {
  const int64_t ahead = kLeastAhead + decoder_.max_tokens() / kKvBlockTokens;
  std::vector<KvStore::Copy> copies;
  for (int group = 0; group < allocator_.groups(); ++group) {
    const bool is_short = allocator_.unkept(Tier::kDevice, group) < ahead;
    const bool has_room =
        store_->of(group).slots() >= kPoolsWorth * int64_t{allocator_.total(Tier::kDevice, group)};
    for (const KvStore::Copy& copy : filled) {
      if (copy.block.group != group || !(store_->lasts() || (is_short && has_room))) continue;
      if (!store_->of(group).has(copy.contents.key)) stored_by_step_.push_back(copy.contents.key);
      copies.push_back(copy);
    }
    if (!is_short || store_->lasts()) continue;
    for (const auto& [block, contents] : allocator_.next_evictions(Tier::kDevice, ahead, group))
      copies.push_back({contents, block.in<Tier::kDevice>()});
  }
  store_->put(copies);
}

void Engine::keep_preempted(const StepPlan& plan) {
  for (const RequestId id : plan.preempted)
    keep_last(*requests_.at(id), scheduler_.computed_of(id));
}

void Engine::move_blocks(const StepPlan& plan) {
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
  {
    // What is to come must not make room for what goes, nor for what others wait for.
    PerGroup<std::vector<BlockKey>> pinned;
    const auto unpin = [this](PerGroup<std::vector<BlockKey>>* of) { unpin_all(*of); };
    const std::unique_ptr<PerGroup<std::vector<BlockKey>>, decltype(unpin)> until_loaded(&pinned,
                                                                                         unpin);
    fetch_all(keys, pinned);
    SPW_ASSERT(pinned == keys);
    store_->put(std::exchange(evicted_, {}));
    store_->before_writing(written);
    store_->load(loads);
    for (const KvStore::Load& load : loads) kv_.reload(load.block);
    start_fetches(plan);
  }
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Request& request = *requests_.at(plan.chunks[beginning.chunk].id);
    const FoundPrefix& found = beginning.found;
    const size_t whole = static_cast<size_t>(found.tokens) / kKvBlockTokens;
    for (int group = 0; group < allocator_.groups(); ++group) {
      if (!allocator_.rule(group).is_paged()) continue;
      const size_t first = found.blocks[index_of(group)].size();
      const size_t end = std::min(whole, first + found.loads[index_of(group)].size());
      for (size_t i = first; i < end; ++i) {
        allocator_.keep(plan.chunks[beginning.chunk].table->blocks(group)[i],
                        contents_of(request, i, group));
        coming_.erase(request.keys[i]);
      }
    }
    const size_t counted = index_of(allocator_.forecast_group());
    const size_t begun = found.blocks[counted].size();
    const auto loaded = static_cast<int64_t>(found.loads[counted].size());
    // Not all that were asked for: some may have been damaged.
    const int64_t from_disk = std::ranges::count_if(
        found.loads[counted], [&](const BlockKey& key) { return request.from_disk.contains(key); });
    const int64_t tokens = std::min<int64_t>(
        loaded * kKvBlockTokens, found.tokens - static_cast<int64_t>(begun) * kKvBlockTokens);
    const int64_t disk_tokens = std::min<int64_t>(tokens, from_disk * kKvBlockTokens);
    stats_.reused_disk_tokens += disk_tokens;
    stats_.reused_host_tokens += tokens - disk_tokens;
    unpin(request);
  }
}

void Engine::start_fetches(const StepPlan& plan) {
  for (const StepPlan::Fetch& fetch : plan.fetches) {
    Request& request = *requests_.at(fetch.id);
    request.has_fetched = true;
    for (int group = 0; group < allocator_.groups(); ++group) {
      for (const BlockKey& key : fetch.keys[index_of(group)])
        if (store_->of(group).place_of(key) == KvStore::Place::kDisk) request.from_disk.insert(key);
    }
    fetch_all(fetch.keys, request.pinned);
  }
}

// As far as there is room; what is pinned stays until unpin_all().
void Engine::fetch_all(const PerGroup<std::vector<BlockKey>>& keys,
                       PerGroup<std::vector<BlockKey>>& pinned) {
  for (int group = 0; group < allocator_.groups(); ++group) {
    const std::vector<BlockKey>& wanted = keys[index_of(group)];
    const auto count = static_cast<std::ptrdiff_t>(store_->of(group).fetch(wanted));
    pinned[index_of(group)].assign(wanted.begin(), wanted.begin() + count);
  }
}

void Engine::unpin_all(PerGroup<std::vector<BlockKey>>& pinned) {
  for (int group = 0; group < allocator_.groups(); ++group)
    store_->of(group).unpin(std::exchange(pinned[index_of(group)], {}));
}

void Engine::unpin(Request& request) {
  if (store_ == nullptr) return;
  unpin_all(request.pinned);
  request.has_fetched = false;
  request.from_disk.clear();
}

// Everything that the request has computed may be wrong: nothing of it is found again.
void Engine::distrust(Request& request) {
  allocator_.forget_all();
  if (store_ == nullptr) return;
  const size_t whole = request.tokens.size() / kKvBlockTokens;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  std::vector<BlockKey> all(keys.begin(), keys.end());
  // Parts of blocks are kept of the last one; recurrent states of any length.
  for (size_t block = allocator_.has_states() ? 0 : whole; block <= whole; ++block) {
    const auto rest = std::span<const TokenId>(request.tokens).subspan(block * kKvBlockTokens);
    for (size_t tokens = 1; tokens < kKvBlockTokens && tokens <= rest.size(); ++tokens)
      all.push_back(next_key(key_before(request, block), rest.first(tokens)));
  }
  const size_t of_a_group = all.size();
  for (int group = 1; group < allocator_.groups(); ++group)
    for (size_t i = 0; i < of_a_group; ++i) all.push_back(group_key(all[i], group));
  store_->drop(all);
}

void Engine::announce(const StepPlan& plan) {
  for (const RequestId id : plan.preempted) no_longer_coming(id);
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Request& request = *requests_.at(plan.chunks[beginning.chunk].id);
    if (request.params.prompt_logprobs >= 0) continue;
    const std::span<const BlockKey> keys = keys_of(request, request.tokens.size() / kKvBlockTokens);
    const size_t begun = beginning.found.blocks[index_of(allocator_.forecast_group())].size();
    for (const BlockKey& key : keys.subspan(begun)) coming_.emplace(key, request.id);
  }
}

void Engine::no_longer_coming(RequestId id) {
  for (const BlockKey& key : requests_.at(id)->keys) {
    const auto found = coming_.find(key);
    if (found != coming_.end() && found->second == id) coming_.erase(found);
  }
}

void Engine::copy_blocks(const StepPlan& plan) {
  const auto release = [&](const StepPlan* of) { scheduler_.release_copies(*of); };
  const std::unique_ptr<const StepPlan, decltype(release)> held(&plan, release);
  for (const StepPlan::Copy& copy : plan.copies)
    kv_.copy_block(decoder_.device(), copy.from.in<Tier::kDevice>(), copy.to.in<Tier::kDevice>());
}

}  // namespace spillway
