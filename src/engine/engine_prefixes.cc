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
  FoundPrefix found;
  const std::span<const BlockKey> keys = keys_of(request, most / kKvBlockTokens);
  const bool spans = scheduler_.spans(id);
  for (const BlockKey& key : keys) {
    const auto block = allocator_.try_peek(key);
    if (!block || !allocator_.can_follow(found.blocks[0], *block, spans)) break;
    found.blocks[0].push_back(*block);
  }
  found.tokens = static_cast<int32_t>(found.blocks[0].size()) * kKvBlockTokens;
  const auto comes = [&](size_t block) {
    const auto owner = coming_.find(keys[block]);
    if (owner != coming_.end() && owner->second != id) return true;
    return std::ranges::any_of(beginning, [&](RequestId other) {
      const Request& computing = *requests_.at(other);
      return computing.params.prompt_logprobs < 0 && block < computing.keys.size() &&
             computing.keys[block] == keys[block];
    });
  };
  const size_t next = found.blocks[0].size();
  if (next + kWorthWaiting <= keys.size() && comes(next + kWorthWaiting - 1) && comes(next)) {
    found.is_coming = true;
    return found;
  }
  if (store_ != nullptr && !find_stored(request, keys, found)) return found;
  const bool ends_in_load = found.tokens % kKvBlockTokens != 0;
  if (!ends_in_load) find_tail(request, most, found);
  return found;
}

const BlockKey& Engine::key_before(const Request& request, size_t blocks) const {
  return blocks == 0 ? request.first_key : request.keys[blocks - 1];
}

// Behind whole blocks one that others go on with, or may: its first tokens are copied.
void Engine::find_tail(const Request& request, size_t most, FoundPrefix& found) const {
  const BlockKey before = key_before(request, found.blocks[0].size() + found.loads[0].size());
  const auto rest =
      std::span<const TokenId>(request.tokens).subspan(static_cast<size_t>(found.tokens));
  const size_t wanted = std::min<size_t>(rest.size(), kKvBlockTokens);
  for (size_t tokens = wanted; tokens > 0; --tokens) {
    const auto block = allocator_.try_peek(next_key(before, rest.first(tokens)));
    // Elsewhere stores may still be on their way, and what a step moves hides a few tokens.
    if (!block || block->tier != Tier::kDevice) continue;
    if (!found.blocks[0].empty() && block->tier != found.blocks[0].back().tier) break;
    const size_t used = std::min(tokens, most - static_cast<size_t>(found.tokens));
    if (used == 0) break;
    found.partly[0] = block;
    found.tokens += static_cast<int32_t>(used);
    break;
  }
}

// Goes on with what the store has. False: some of it is on its way to host memory, and it pays to
// wait.
bool Engine::find_stored(const Request& request, std::span<const BlockKey> keys,
                         FoundPrefix& found) const {
  const size_t begun = found.blocks[0].size();
  if (kv_.device_blocks() == 0) return true;
  if (begun > 0 && found.blocks[0].back().tier != Tier::kDevice) return true;
  std::span<const BlockKey> rest = keys.subspan(begun);
  rest = rest.first(store_->worth_loading(rest, found.tokens));
  std::vector<BlockKey> wanted(rest.begin(), rest.end());
  size_t tail = 0;  // tokens of the last of these, where it is not whole
  const size_t position = (begun + wanted.size()) * kKvBlockTokens;
  // One that goes on after it was preempted needs its own last tokens as they were.
  if (begun + wanted.size() == keys.size() && request.generated() > 0) {
    const auto last = std::span<const TokenId>(request.tokens).subspan(position);
    for (tail = last.size() - 1; tail > 0; --tail) {
      const BlockKey key = next_key(key_before(request, keys.size()), last.first(tail));
      const bool is_in_pool = allocator_.try_peek(key).has_value();  // then it is copied
      if (is_in_pool) tail = 0;
      if (!is_in_pool && store_->has(key)) wanted.push_back(key);
      if (is_in_pool || wanted.size() + begun > keys.size()) break;
    }
  }
  size_t whole = wanted.size() - (tail > 0 ? 1 : 0);
  const auto are_in_host = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (store_->place_of(wanted[i]) != KvStore::Place::kHost) return i;
    }
    return count;
  };
  if (are_in_host(wanted.size()) < wanted.size() && !request.has_fetched) {
    found.is_coming = true;
    found.fetch[0] = std::move(wanted);
    return false;
  }
  for (const BlockKey& key : wanted) {
    if (store_->place_of(key) != KvStore::Place::kComing) continue;
    found.is_coming = true;
    return false;
  }
  const size_t here = are_in_host(wanted.size());
  if (here < wanted.size()) tail = 0;
  whole = std::min(whole, here);
  wanted.resize(here);
  found.loads[0] = std::move(wanted);
  found.tokens += static_cast<int32_t>(whole * kKvBlockTokens + tail);
  return true;
}

BlockContents Engine::contents_of(const Request& request, size_t block) const {
  return {.key = request.keys[block],
          .parent = key_before(request, block),
          .position = static_cast<int32_t>(block) * kKvBlockTokens};
}

void Engine::keep_tail(Request& request, int64_t computed) {
  const auto whole = static_cast<size_t>(computed / kKvBlockTokens);
  const auto rest = static_cast<size_t>(computed % kKvBlockTokens);
  if (!reuses_ || decoder_.attention_topk() > 0) return;
  std::vector<KvStore::Copy> copies;  // drafts that were right in the last step
  keep_blocks(request, scheduler_.blocks_of(request.id), request.kept, computed, copies);
  if (store_ != nullptr && !copies.empty()) store_ahead(std::move(copies));
  if (rest == 0) return;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  const auto tokens =
      std::span<const TokenId>(request.tokens).subspan(whole * kKvBlockTokens, rest);
  const BlockKey& parent = keys.empty() ? request.first_key : keys.back();
  allocator_.keep(scheduler_.blocks_of(request.id).at(whole),
                  BlockContents{.key = next_key(parent, tokens),
                                .parent = parent,
                                .position = static_cast<int32_t>(whole) * kKvBlockTokens,
                                .tokens = static_cast<int32_t>(rest)});
}

void Engine::keep_blocks(Request& request, std::span<const BlockId> table, int64_t from,
                         int64_t end, std::vector<KvStore::Copy>& copies) {
  const auto behind = static_cast<size_t>(end / kKvBlockTokens);
  const std::span<const BlockKey> keys = keys_of(request, behind);
  for (auto i = static_cast<size_t>(from / kKvBlockTokens); i < behind; ++i) {
    const BlockContents contents = contents_of(request, i);
    if (allocator_.keep(table[i], contents) && table[i].tier == Tier::kDevice)
      copies.push_back({contents, table[i].in<Tier::kDevice>()});
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
    keep_blocks(request, *chunk.block_table, from, end, kept);
    const bool ends_prompt = chunk.last && !chunk.generates;
    if (ends_prompt) keep_tail(request, end);
  }
  if (store_ != nullptr) store_ahead(std::move(kept));
}

// Ahead of the step that needs the room, which then need not wait for the copies. Where blocks are
// short, a step takes those that ended before it: they have their copies while they are still at
// work, as long as there is room here for more than what the pool has.
void Engine::store_ahead(std::vector<KvStore::Copy>&& filled) {
  const int64_t ahead = kLeastAhead + decoder_.max_tokens() / kKvBlockTokens;
  const bool is_short = allocator_.unkept(Tier::kDevice) < ahead;
  const bool has_room = store_->slots() >= kPoolsWorth * int64_t{allocator_.total(Tier::kDevice)};
  std::vector<KvStore::Copy> copies;
  if (store_->lasts() || (is_short && has_room)) copies = std::move(filled);
  for (const KvStore::Copy& copy : copies)
    if (!store_->has(copy.contents.key)) stored_by_step_.push_back(copy.contents.key);
  if (is_short && !store_->lasts()) {
    for (const auto& [block, contents] : allocator_.next_evictions(Tier::kDevice, ahead))
      copies.push_back({contents, block.in<Tier::kDevice>()});
  }
  store_->put(copies);
}

void Engine::keep_preempted(const StepPlan& plan) {
  for (const RequestId id : plan.preempted)
    keep_tail(*requests_.at(id), scheduler_.computed_of(id));
}

void Engine::move_blocks(const StepPlan& plan) {
  std::vector<BlockKey> keys;
  std::vector<KvStore::Load> loads;
  std::vector<DeviceBlock> written;
  for (const StepPlan::Load& load : plan.loads) {
    keys.push_back(load.key);
    loads.push_back({load.key, load.to});
  }
  for (const ScheduledChunk& chunk : plan.chunks) {
    const auto first = static_cast<size_t>(chunk.start / kKvBlockTokens);
    const auto end = static_cast<size_t>(blocks_for_tokens(chunk.start + chunk.tokens));
    for (const BlockId block : std::span(*chunk.block_table).subspan(first, end - first))
      if (block.tier == Tier::kDevice) written.push_back(block.in<Tier::kDevice>());
  }
  for (const StepPlan::Copy& copy : plan.copies) written.push_back(copy.to.in<Tier::kDevice>());
  {
    // What is to come must not make room for what goes, nor for what others wait for.
    const size_t pinned = store_->fetch(keys);
    const auto unpin = [this](const std::vector<BlockKey>* of) { store_->unpin(*of); };
    const std::unique_ptr<const std::vector<BlockKey>, decltype(unpin)> until_loaded(&keys, unpin);
    SPW_ASSERT(pinned == keys.size());
    store_->put(std::exchange(evicted_, {}));
    store_->before_writing(written);
    store_->load(loads);
    for (const KvStore::Load& load : loads) kv_.reload(load.block);
    start_fetches(plan);
  }
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Request& request = *requests_.at(plan.chunks[beginning.chunk].id);
    const FoundPrefix& found = beginning.found;
    const size_t begun = found.blocks[0].size();
    const size_t whole = static_cast<size_t>(found.tokens) / kKvBlockTokens;
    for (size_t i = begun; i < std::min(whole, begun + found.loads[0].size()); ++i) {
      allocator_.keep((*plan.chunks[beginning.chunk].block_table)[i], contents_of(request, i));
      coming_.erase(request.keys[i]);
    }
    const auto loaded = static_cast<int64_t>(found.loads[0].size());
    // Not all that were asked for: some may have been damaged.
    const int64_t from_disk = std::ranges::count_if(
        found.loads[0], [&](const BlockKey& key) { return request.from_disk.contains(key); });
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
    for (const BlockKey& key : fetch.keys[0]) {
      if (store_->place_of(key) == KvStore::Place::kDisk) request.from_disk.insert(key);
    }
    const auto pinned = static_cast<std::ptrdiff_t>(store_->fetch(fetch.keys[0]));
    request.pinned.assign(fetch.keys[0].begin(), fetch.keys[0].begin() + pinned);
  }
}

void Engine::unpin(Request& request) {
  if (store_ == nullptr) return;
  store_->unpin(std::exchange(request.pinned, {}));
  request.has_fetched = false;
  request.from_disk.clear();
}

// All that it has computed may be wrong, or of use to nobody.
void Engine::distrust(Request& request) {
  allocator_.forget_all();
  if (store_ == nullptr) return;
  const size_t whole = request.tokens.size() / kKvBlockTokens;
  const std::span<const BlockKey> keys = keys_of(request, whole);
  std::vector<BlockKey> all(keys.begin(), keys.end());
  const auto rest = std::span<const TokenId>(request.tokens).subspan(whole * kKvBlockTokens);
  for (size_t tokens = 1; tokens <= rest.size(); ++tokens)
    all.push_back(next_key(key_before(request, whole), rest.first(tokens)));
  store_->drop(all);
}

void Engine::announce(const StepPlan& plan) {
  for (const RequestId id : plan.preempted) no_longer_coming(id);
  for (const StepPlan::Beginning& beginning : plan.beginning) {
    Request& request = *requests_.at(plan.chunks[beginning.chunk].id);
    if (request.params.prompt_logprobs >= 0) continue;
    const std::span<const BlockKey> keys = keys_of(request, request.tokens.size() / kKvBlockTokens);
    for (const BlockKey& key : keys.subspan(beginning.found.blocks[0].size()))
      coming_.emplace(key, request.id);
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
