// SPDX-License-Identifier: Apache-2.0
// Finds and keeps prefixes; prefix_reuse_stores.cc moves blocks between pools and stores.
#include "engine/prefix_reuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

// A request waits for a prefix that another one computes if it has at least this many blocks.
constexpr size_t kWorthWaiting = 4;

}  // namespace

PrefixReuse::PrefixReuse(Decoder& decoder, KvCache& kv, BlockAllocator& allocator,
                         const EngineRequests& requests, const EngineOptions& options)
    : decoder_(decoder),
      kv_(kv),
      allocator_(allocator),
      requests_(requests),
      reuses_(options.reuse_prefixes),
      stores_(options.reuse_prefixes && !options.store.empty()
                  ? std::make_unique<KvStores>(options.store)
                  : nullptr),
      base_key_(first_key(fmt::format("{} {} {}", decoder.spec().name,
                                      kv_type_name(kv.shape().type), options.kv_salt))) {
  if (stores_ == nullptr) return;
  SPW_ASSERT(stores_->groups() == allocator_.groups());
  allocator_.observe_evictions([this](BlockId block, const BlockContents& contents) {
    if (block.tier == Tier::kDevice) evicted_.push_back({contents, block.in<Tier::kDevice>()});
  });
}

std::span<const BlockKey> PrefixReuse::keys_of(EngineRequest& request, size_t blocks) {
  std::vector<BlockKey>& keys = request.keys;
  while (keys.size() < blocks) {
    const auto tokens = std::span<const TokenId>(request.tokens)
                            .subspan(keys.size() * kKvBlockTokens, kKvBlockTokens);
    keys.push_back(next_key(keys.empty() ? request.first_key : keys.back(), tokens));
  }
  return std::span(keys).first(blocks);
}

const BlockKey& PrefixReuse::key_before(const EngineRequest& request, size_t blocks) {
  return blocks == 0 ? request.first_key : request.keys[blocks - 1];
}

BlockContents PrefixReuse::contents_of(const EngineRequest& request, size_t block, int group) {
  return {.key = group_key(request.keys[block], group),
          .parent = group_key(key_before(request, block), group),
          .position = static_cast<int32_t>(block) * kKvBlockTokens};
}

FoundPrefix PrefixReuse::find(RequestId id, std::span<const RequestId> beginning) const {
  EngineRequest& request = *requests_.at(id);
  const size_t most = request.tokens.size() - 1;  // one token must be computed for its logits
  const std::span<const BlockKey> keys = keys_of(request, most / kKvBlockTokens);
  const PrefixSearch search(allocator_, {.tokens = request.tokens,
                                         .most = most,
                                         .first_key = request.first_key,
                                         .keys = keys,
                                         .spans = scheduler_->spans(id),
                                         .has_stored_tail = request.generated() > 0});
  FoundPrefix found = search.longest();
  const size_t next = static_cast<size_t>(found.tokens) / kKvBlockTokens;
  const size_t last = next + kWorthWaiting - 1;
  if (!allocator_.has_states() && last < keys.size() &&
      is_in_flight(id, beginning, keys[last], last) &&
      is_in_flight(id, beginning, keys[next], next)) {
    found.is_in_flight = true;
    return found;
  }
  if (stores_ == nullptr || kv_.device_blocks() == 0) return found;
  return find_stored(request, search, std::move(found));
}

bool PrefixReuse::is_in_flight(RequestId id, std::span<const RequestId> beginning,
                               const BlockKey& key, size_t block) const {
  const auto owner = in_flight_.find(key);
  if (owner != in_flight_.end() && owner->second != id) return true;
  return std::ranges::any_of(beginning, [&](RequestId other) {
    const EngineRequest& computing = *requests_.at(other);
    return computing.params.prompt_logprobs < 0 && block < computing.keys.size() &&
           computing.keys[block] == key;
  });
}

// Waiting pays if some of the blocks are on their way to host memory. Blocks on disk are fetched
// first: until they are in host memory, the request waits.
FoundPrefix PrefixReuse::find_stored(const EngineRequest& request, const PrefixSearch& search,
                                     FoundPrefix in_pools) const {
  using Place = KvStore::Place;
  const auto place_of = [this](const BlockKey& key, int group) {
    return stores_->of(group).place_of(key);
  };
  const auto is_stored = [&](const BlockKey& key, int group) {
    return place_of(key, group) != Place::kNowhere;
  };
  const auto is_in_host = [&](const BlockKey& key, int group) {
    return place_of(key, group) == Place::kHost;
  };
  const auto needs_no_disk = [&](const BlockKey& key, int group) {
    const Place place = place_of(key, group);
    return place == Place::kHost || place == Place::kInFlight;
  };
  FoundPrefix found = search.longest(is_stored);
  if (!loading_pays(found, in_pools)) found = search.longest(needs_no_disk);
  if (!loading_pays(found, in_pools)) return in_pools;
  bool all_in_host = true, some_in_flight = false;
  for (int group = 0; group < allocator_.groups(); ++group) {
    for (const BlockKey& key : found.loads[index_of(group)]) {
      const Place place = place_of(key, group);
      all_in_host &= place == Place::kHost;
      some_in_flight |= place == Place::kInFlight;
    }
  }
  if (!all_in_host && !request.has_fetched) {
    in_pools.is_in_flight = true;
    in_pools.fetch = std::move(found.loads);
    return in_pools;
  }
  in_pools.is_in_flight = some_in_flight;
  if (some_in_flight) return in_pools;
  return all_in_host ? found : search.longest(is_in_host);
}

// Compares whole blocks: a partly filled one is stored only if loading it pays.
bool PrefixReuse::loading_pays(const FoundPrefix& found, const FoundPrefix& in_pools) const {
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
  return stores_->loading_pays(loads, static_cast<int64_t>(whole_in_pools) * kKvBlockTokens,
                               static_cast<int64_t>(whole - whole_in_pools) * kKvBlockTokens);
}

void PrefixReuse::note_admitted(const StepPlan& plan) {
  if (!reuses_) return;
  for (const RequestId id : plan.preempted) end_in_flight(*requests_.at(id));
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    EngineRequest& request = *requests_.at(plan.chunks[beginning.chunk].id);
    if (request.params.prompt_logprobs >= 0) continue;
    const std::span<const BlockKey> keys = keys_of(request, request.tokens.size() / kKvBlockTokens);
    const size_t begun = beginning.found.blocks[index_of(allocator_.forecast_group())].size();
    for (const BlockKey& key : keys.subspan(begun)) in_flight_.emplace(key, request.id);
  }
}

void PrefixReuse::end_in_flight(const EngineRequest& request) {
  for (const BlockKey& key : request.keys) {
    const auto found = in_flight_.find(key);
    if (found != in_flight_.end() && found->second == request.id) in_flight_.erase(found);
  }
}

void PrefixReuse::release(EngineRequest& request) {
  end_in_flight(request);
  unpin(request);
}

void PrefixReuse::keep_preempted(const StepPlan& plan) {
  if (!reuses_) return;
  for (const RequestId id : plan.preempted)
    keep_last(*requests_.at(id), scheduler_->computed_of(id));
}

void PrefixReuse::on_preempt(EngineRequest& request, int64_t computed) {
  end_in_flight(request);
  keep_last(request, computed);
}

void PrefixReuse::keep_tail(EngineRequest& request, int64_t computed) {
  const auto whole = static_cast<size_t>(computed / kKvBlockTokens);
  const auto rest = static_cast<size_t>(computed % kKvBlockTokens);
  if (!reuses_ || decoder_.attention_topk() > 0) return;
  std::vector<KvStore::Copy> copies;  // blocks of drafts that the last step found right
  keep_blocks(request, scheduler_->table_of(request.id), request.kept, computed, copies);
  if (stores_ != nullptr && !copies.empty()) store_ahead(copies);
  if (rest == 0) return;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  const auto tokens =
      std::span<const TokenId>(request.tokens).subspan(whole * kKvBlockTokens, rest);
  const BlockKey& parent = keys.empty() ? request.first_key : keys.back();
  const BlockKey key = next_key(parent, tokens);
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (!allocator_.rule(group).is_paged()) continue;
    allocator_.keep(scheduler_->blocks_of(request.id, group).at(whole),
                    BlockContents{.key = group_key(key, group),
                                  .parent = group_key(parent, group),
                                  .position = static_cast<int32_t>(whole) * kKvBlockTokens,
                                  .tokens = static_cast<int32_t>(rest)});
  }
}

// Recurrent states are kept at exactly this length.
void PrefixReuse::keep_last(EngineRequest& request, int64_t computed) {
  keep_tail(request, computed);
  if (!reuses_ || computed == 0 || decoder_.attention_topk() > 0) return;
  // If the request ended within accepted drafts, the state includes tokens that are not the
  // request's.
  if (scheduler_->computed_of(request.id) != computed) return;
  std::vector<KvStore::Copy> copies;
  const auto whole = static_cast<size_t>(computed / kKvBlockTokens);
  const auto rest = std::span<const TokenId>(request.tokens)
                        .first(static_cast<size_t>(computed))
                        .subspan(whole * kKvBlockTokens);
  for (int group = 0; group < allocator_.groups(); ++group) {
    if (allocator_.rule(group).is_paged()) continue;
    const std::span<const BlockKey> keys = keys_of(request, whole);
    const BlockKey length = rest.empty() ? keys.back() : next_key(key_before(request, whole), rest);
    const BlockId state = scheduler_->blocks_of(request.id, group).at(0);
    const BlockContents contents{.key = group_key(length, group),
                                 .tokens = static_cast<int32_t>(computed)};
    if (allocator_.keep(state, contents) && state.tier == Tier::kDevice)
      copies.push_back({contents, state.in<Tier::kDevice>()});
  }
  if (stores_ != nullptr && !copies.empty()) store_ahead(copies);
}

void PrefixReuse::keep_blocks(EngineRequest& request, const BlockTable& table, int64_t from,
                              int64_t end, std::vector<KvStore::Copy>& copies) {
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
    in_flight_.erase(keys[i]);
  }
  request.kept = end;
}

// With sparse attention, the KV of generated tokens is not kept: they attended to a part of their
// context, where a prompt attends to all of it. Drafts may be wrong; those that are right are kept
// in the step after theirs.
void PrefixReuse::keep_full_blocks(const StepPlan& plan) {
  if (!reuses_) return;
  std::vector<KvStore::Copy> kept;
  for (const ScheduledChunk& chunk : plan.chunks) {
    if (decoder_.attention_topk() > 0 && chunk.generates) continue;
    EngineRequest& request = *requests_.at(chunk.id);
    const int64_t start = chunk.start, end = start + chunk.tokens - chunk.drafted;
    const int64_t from = chunk.generates ? std::min(start, request.kept) : start;
    keep_blocks(request, *chunk.table, from, end, kept);
    const bool ends_prompt = chunk.last && !chunk.generates;
    if (ends_prompt) keep_tail(request, end);
  }
  if (stores_ != nullptr) store_ahead(kept);
}

void PrefixReuse::invalidate(EngineRequest& request) {
  allocator_.forget_all();
  if (stores_ == nullptr) return;
  const size_t whole = request.tokens.size() / kKvBlockTokens;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  std::vector<BlockKey> all(keys.begin(), keys.end());
  // Only the last block can be kept partly filled; a recurrent state can be kept at any length.
  for (size_t block = allocator_.has_states() ? 0 : whole; block <= whole; ++block) {
    const auto rest = std::span<const TokenId>(request.tokens).subspan(block * kKvBlockTokens);
    for (size_t tokens = 1; tokens < kKvBlockTokens && tokens <= rest.size(); ++tokens)
      all.push_back(next_key(key_before(request, block), rest.first(tokens)));
  }
  const size_t keys_of_group = all.size();
  for (int group = 1; group < allocator_.groups(); ++group)
    for (size_t i = 0; i < keys_of_group; ++i) all.push_back(group_key(all[i], group));
  stores_->drop(all);
}

void PrefixReuse::lose_all() {
  in_flight_.clear();
  evicted_.clear();
  if (stores_ == nullptr) return;
  stores_->drop_unfinished();
  stores_->drop(std::exchange(stored_by_step_, {}));
}

}  // namespace spillway
