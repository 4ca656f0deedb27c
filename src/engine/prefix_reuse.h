// SPDX-License-Identifier: Apache-2.0
// Reuse of KV among requests: finds the blocks that a prompt can begin with, keeps the blocks that
// requests fill, and moves blocks between the pools and the KV stores, which keep blocks beyond the
// pools for later requests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine_options.h"
#include "engine/engine_requests.h"
#include "kv/block_allocator.h"
#include "kv/kv_cache.h"
#include "kv/kv_stores.h"
#include "runtime/decoder.h"
#include "schedule/prefix_search.h"
#include "schedule/scheduler.h"

namespace spillway {

// Tokens that requests began with instead of computing them, because a KV store had their blocks:
// in host memory, or on disk until they were fetched.
struct StoredReuse {
  int64_t host_tokens = 0, disk_tokens = 0;
};

// Bytes that the KV stores moved.
struct StoreTraffic {
  uint64_t to_device = 0, to_host = 0, disk_read = 0, disk_written = 0;
};

// Owns nothing of the pools: it gives contents to the allocator's blocks and asks it for them. All
// methods but store_stats() are called from the engine's thread. Without
// EngineOptions::reuse_prefixes it finds and keeps nothing, and its methods return immediately. A
// step calls keep_preempted(), note_admitted(), fill_blocks(), keep_full_blocks() and step_done(),
// in this order.
class PrefixReuse final : public PrefixSource {
 public:
  // All references must outlive it. Takes the allocator's notices of evictions if there are stores.
  PrefixReuse(Decoder& decoder, KvCache& kv, BlockAllocator& allocator,
              const EngineRequests& requests, const EngineOptions& options);
  // Sets the scheduler, which is made after its prefix source. Call it before the first request.
  void attach(Scheduler& scheduler) { scheduler_ = &scheduler; }

  // Finds the longest beginning of a request in the pools and the stores.
  FoundPrefix find(RequestId id, std::span<const RequestId> beginning) const override;
  // The block keys of all sequences begin with this one: the model, the type of KV and the salt.
  const BlockKey& base_key() const { return base_key_; }

  // Before the scheduler applies the plan: keeps all that preempted sequences have computed.
  void keep_preempted(const StepPlan& plan);
  // Before the scheduler preempts a sequence outside a step: the same for this one.
  void on_preempt(EngineRequest& request, int64_t computed);
  // Makes the blocks of prompts that the step begins to compute in-flight prefixes, for which other
  // requests wait.
  void note_admitted(const StepPlan& plan);
  // Before the decoder's step: copies evicted blocks to the stores and loads those that requests
  // begin with. Does nothing without stores. Throws what copies throw.
  void fill_blocks(const StepPlan& plan);
  // While the device computes the step: gives the blocks that it fills their keys, and copies some
  // of them to the stores.
  void keep_full_blocks(const StepPlan& plan);
  // Call after a step that did not fail: what it filled is right.
  void step_done() { stored_by_step_.clear(); }
  // For a plan without chunks: begins to fetch blocks from disk and waits for one of them, at most
  // as long as `most`.
  void wait_for_disk(const StepPlan& plan, std::chrono::milliseconds most);

  // Call when the request leaves the engine: other requests no longer wait for its prefix, and
  // blocks that it had fetched may be evicted from host memory.
  void release(EngineRequest& request);
  // Keeps everything that the request has computed, to the last token.
  void keep_last(EngineRequest& request, int64_t computed);
  // Makes sure that nothing the request has computed is found again, as it may be wrong.
  void invalidate(EngineRequest& request);
  // Copies all blocks that were evicted and not copied yet, and waits for all copies: after that,
  // blocks of the pool may be moved.
  void store_all_evicted();
  // Call after a step that failed: forgets in-flight prefixes, evictions and copies that may be
  // wrong.
  void lose_all();

  // Returns the statistics of the stores, or nothing without stores. Any thread may call it.
  std::optional<KvStoreStats> store_stats() const;
  // Returns the traffic since the last call.
  StoreTraffic take_store_traffic();
  const StoredReuse& stored_reuse() const { return stored_reuse_; }

 private:
  FoundPrefix find_stored(const EngineRequest& request, const PrefixSearch& search,
                          FoundPrefix in_pools) const;
  bool loading_pays(const FoundPrefix& found, const FoundPrefix& in_pools) const;
  // Whether a request, running or admitted in the same step, computes the block with this key.
  bool is_in_flight(RequestId id, std::span<const RequestId> beginning, const BlockKey& key,
                    size_t block) const;
  static const BlockKey& key_before(const EngineRequest& request, size_t blocks);
  static BlockContents contents_of(const EngineRequest& request, size_t block, int group);
  // The keys of the request's first `blocks` blocks, which it keeps.
  static std::span<const BlockKey> keys_of(EngineRequest& request, size_t blocks);
  // Gives keys to the whole blocks that end between the tokens `from` and `end`; those that are new
  // on the device are added to `copies`.
  void keep_blocks(EngineRequest& request, const BlockTable& table, int64_t from, int64_t end,
                   std::vector<KvStore::Copy>& copies);
  // Keeps the last block, as far as `computed` tokens fill it, for requests that continue there.
  void keep_tail(EngineRequest& request, int64_t computed);
  // Copies to the stores what must last or will soon be evicted: some of `filled`, the blocks that
  // the step fills, and the blocks that the pool gives out next.
  void store_ahead(std::span<const KvStore::Copy> filled);
  void load_blocks(const StepPlan& plan);
  // Keeps the loaded blocks of a request that begins and counts its tokens.
  void keep_loaded(const StepPlan& plan, const StepPlan::Beginning& beginning);
  void start_fetches(const StepPlan& plan);
  // Fetches as many of the first blocks as there is room for; `pinned` says which, and these stay
  // in host memory until unpin_all().
  void fetch_all(const PerGroup<std::vector<BlockKey>>& keys,
                 PerGroup<std::vector<BlockKey>>& pinned);
  void unpin_all(PerGroup<std::vector<BlockKey>>& pinned);
  void unpin(EngineRequest& request);
  void end_in_flight(const EngineRequest& request);

  Decoder& decoder_;
  KvCache& kv_;
  BlockAllocator& allocator_;
  const EngineRequests& requests_;
  Scheduler* scheduler_ = nullptr;
  bool reuses_;
  std::unique_ptr<KvStores> stores_;  // null: there are none
  BlockKey base_key_;
  // Whole blocks of prompts that are being computed, and the request that computes each.
  std::unordered_map<BlockKey, RequestId> in_flight_;
  std::vector<KvStore::Copy> evicted_;  // since the last copies to the stores
  // Copies of blocks that the current step fills, which may still fail.
  std::vector<BlockKey> stored_by_step_;
  KvStoreStats counted_;  // as of the last take_store_traffic()
  StoredReuse stored_reuse_;
};

}  // namespace spillway
