// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a step before anything is computed, with 256 running and 10,000 waiting
// requests. The goal is 500 us.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"
#include "schedule/predicted_policies.h"
#include "schedule/scheduler.h"
#include "tensor/kv_format.h"

namespace spillway {
namespace {

constexpr int kRunning = 256;
constexpr int kWaiting = 10'000;
constexpr size_t kPromptBlocks = 128;
constexpr int32_t kPrompt = kPromptBlocks * kKvBlockTokens + 8;

// Searches like an engine's prefix cache: the keys of a prompt's blocks one after another, and
// after them the key of every possible beginning of the next block.
class OnePrompt : public PrefixSource {
 public:
  // The first `computed` blocks are cached. The others are being computed if `is_in_flight`, else
  // not at all.
  OnePrompt(BlockAllocator& allocator, size_t computed, bool is_in_flight)
      : allocator_(allocator), is_in_flight_(is_in_flight) {
    for (size_t i = 0; i < kPromptBlocks; ++i) {
      keys_.push_back(next_key(keys_.empty() ? first_key("bench") : keys_.back(), kTokens));
      if (i < computed) allocator.keep(allocator.try_allocate().value(), keys_.back());
    }
  }
  FoundPrefix find(RequestId, std::span<const RequestId>) const override {
    FoundPrefix found;
    for (const BlockKey& key : keys_) {
      const auto block = allocator_.try_peek(key);
      if (!block) break;
      found.blocks[0].push_back(*block);
    }
    found.tokens = static_cast<int32_t>(found.blocks[0].size()) * kKvBlockTokens;
    found.is_in_flight = is_in_flight_;
    if (found.is_in_flight) return found;
    for (size_t n = kKvBlockTokens; n > 0; --n) {
      const auto rest = std::span<const int32_t>(kTokens).first(n);
      benchmark::DoNotOptimize(allocator_.try_peek(next_key(keys_.back(), rest)));
    }
    return found;
  }

 private:
  static constexpr std::array<int32_t, kKvBlockTokens> kTokens = {1, 2, 3};
  BlockAllocator& allocator_;
  bool is_in_flight_;
  std::vector<BlockKey> keys_;
};

struct Setting {
  int32_t blocks = 1 << 16;
  int max_sequences = kRunning;
  int ending = 0;  // requests that end in each step, and as many that arrive
  // Blocks of the prompts' common prefix that are cached; if unset, prefixes are not looked up.
  std::optional<size_t> computed = {};
  bool is_in_flight = false;  // the rest of the prefix is being computed
  bool predicted = false;     // admits a request if its predicted answer has room
};

// Plans and applies steps, and reports to the scheduler what an engine would.
void steps(benchmark::State& state, const Setting& setting) {
  BlockAllocator allocator(setting.blocks);
  const OnePrompt prompt(allocator, setting.computed.value_or(0), setting.is_in_flight);
  SchedulingPolicies policies;
  policies.order = std::make_unique<FairOrder>();
  if (setting.predicted)
    policies.admission = std::make_unique<PredictedAdmission>(
        PredictedAdmissionOptions{.policy = {.max_sequences = setting.max_sequences}});
  Scheduler scheduler(
      allocator,
      {.max_step_tokens = 1 << 20, .admission = {.max_sequences = setting.max_sequences}},
      setting.computed ? &prompt : nullptr, std::move(policies));
  uint64_t next_id = 0;
  const auto add = [&](int32_t tokens, bool scored = false) {
    scheduler.add({.id = RequestId{next_id++},
                   .tokens = tokens,
                   .expected = tokens + 1000,
                   .predicted = setting.predicted ? tokens + 500 : 0,
                   .client = next_id % 100,
                   .scored = scored});
  };
  // The running requests are short, so that there is room for all, and never use cached prefixes.
  for (int i = 0; i < kRunning; ++i) add(100, /*scored=*/true);
  const auto step = [&] {
    StepPlan plan = scheduler.prepare();
    scheduler.apply(plan);
    int ending = setting.ending;
    for (const ScheduledChunk& chunk : plan.chunks) {
      if (ending > 0) {
        --ending;
        scheduler.remove(chunk.id);
        add(kPrompt);
      } else {
        scheduler.append(chunk.id);
      }
    }
    return plan.chunks.size();
  };
  step();
  for (int i = 0; i < kWaiting; ++i) add(kPrompt);
  size_t chunks = 0;
  for (auto _ : state) chunks += step();
  state.SetItemsProcessed(static_cast<int64_t>(chunks));
  state.counters["running"] = scheduler.running();
  state.counters["waiting"] = scheduler.waiting();
}

void decode(benchmark::State& state) { steps(state, {}); }
// The prompts of new requests are computed.
void some_end_and_begin(benchmark::State& state) { steps(state, {.ending = 16}); }
// The prompts of new requests are cached.
void some_begin_with_a_prefix(benchmark::State& state) {
  steps(state, {.ending = 16, .computed = kPromptBlocks});
}
// There is room for the running requests, as they grow, and little else.
constexpr int32_t kFewBlocks = kRunning * 20 + 2 * static_cast<int32_t>(kPromptBlocks);
// The first request of the queue finds half of its prompt in each step, but no room for the rest.
void the_head_has_no_room(benchmark::State& state) {
  steps(state,
        {.blocks = kFewBlocks, .max_sequences = 2 * kRunning, .computed = kPromptBlocks / 2});
}
// A request computes the last blocks of the common prefix: many others are looked at and must wait.
void all_wait_for_a_prefix(benchmark::State& state) {
  steps(state, {.blocks = kFewBlocks,
                .max_sequences = 2 * kRunning,
                .computed = kPromptBlocks - 4,
                .is_in_flight = true});
}

// Many requests are looked at, and the forecast has room for none of them.
void no_prediction_fits(benchmark::State& state) {
  steps(state, {.blocks = kFewBlocks, .max_sequences = 2 * kRunning, .predicted = true});
}

constexpr int kSteps = 200;  // every step makes sequences longer
BENCHMARK(decode)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);
BENCHMARK(some_end_and_begin)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);
BENCHMARK(some_begin_with_a_prefix)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);
BENCHMARK(the_head_has_no_room)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);
BENCHMARK(all_wait_for_a_prefix)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);
BENCHMARK(no_prediction_fits)->Iterations(kSteps)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace spillway
