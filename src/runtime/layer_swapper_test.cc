// SPDX-License-Identifier: Apache-2.0
// Tests the bytes of swapped layers on an accelerator whose copies arrive late: ops find in a
// layer's buffer what was written there last, whatever happened in between.
#include "runtime/layer_swapper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/known_models.h"
#include "model/transformer_shape.h"
#include "plan/block_schedule.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// With this number of layers, two swapped layers share one buffer, and more of them share two.
constexpr KvGroupShape kShape{.layers = 14, .kv_heads = 1, .head_dim = 8, .type = KvType::kF32};

// Runs a step of one batch: the events of its schedule that are about swapped layers, and `attend`
// where the schedule attends to a layer.
template <class Fn>
void run_layers(LayerSwapper& swapper, KvGroupCache& kv, bool overlap, Fn&& attend) {
  static const auto kModel = [] {
    TransformerShape shape = try_known_model("opt-125m").value();
    shape.layers = kShape.layers;
    return make_spec(shape).lowered;
  }();
  const int swapped = kv.layers().swapped_count();
  const StepShape shape{.model = kModel,
                        .swapped_layers = swapped,
                        .layer_buffers = swapped == 0 ? 0 : kv.layers().sizes().spare_with(swapped),
                        .overlap = overlap,
                        .batches = {{}}};
  for (const StepEvent& event : schedule_step(shape)) {
    const bool of_op = event.subject == EventSubject::kOp && event.layer >= 0;
    if (of_op && event.layer < kShape.layers &&
        event.op == kModel->layer(event.layer).attention_op()) {
      attend(event.layer);
      continue;
    }
    if (event.subject != EventSubject::kLayerKv) continue;
    if (event.kind == EventKind::kLoad) swapper.load(kv, event.layer);
    if (event.kind == EventKind::kWait) swapper.wait_for(kv, event.layer);
    if (event.kind == EventKind::kStore) swapper.store(kv, event.layer);
    if (event.kind == EventKind::kRelease) swapper.release(kv, event.layer);
  }
}

// Simulates sequences that grow, end and start. Each token's bytes identify its sequence.
class SwappingWorld {
 public:
  SwappingWorld(uint32_t seed, int spare, bool overlap = true)
      : random_(seed),
        machine_(true),
        kv_(machine_.device(), machine_.host, kShape,
            {.device_blocks = 8, .most_swapped = 6, .spare_buffers = spare}),
        swapper_(*machine_.transfers, overlap),
        overlap_(overlap) {}

  void change() {
    int swapped = static_cast<int>(random_() % 7);
    if (!kv_.layers().sizes().gains_with(swapped)) swapped = 0;
    const int32_t blocks = kv_.layers().sizes().blocks_with(swapped);
    std::erase_if(sequences_, [&](const Sequence& of) {
      return std::ranges::any_of(of.table, [&](BlockId block) { return block.number >= blocks; });
    });
    swapper_.change(kv_.swapped(), swapped);
    ASSERT_EQ(kv_.device_blocks(), blocks);
  }

  void step() {
    if (!sequences_.empty() && random_() % 6 == 0)
      sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(random_() % sequences_.size()));
    if (random_() % 2 == 0) begin();
    std::vector<StepSequence> step;
    std::vector<Sequence*> active;
    for (Sequence& sequence : sequences_) {
      if (random_() % 4 == 0) continue;  // not in this step
      const int32_t count = random_() % 3 == 0 ? 1 + static_cast<int32_t>(random_() % 20) : 1;
      if (!grow(sequence, count)) continue;
      step.push_back({.tokens = std::span(kTokens).first(static_cast<size_t>(count)),
                      .start = sequence.tokens,
                      .block_table = sequence.table});
      active.push_back(&sequence);
    }
    if (step.empty()) return;
    swapper_.begin_step(kv_.swapped(), 0, step);
    run_layers(swapper_, kv_.swapped(), overlap_, [&](int layer) {
      for (size_t i = 0; i < active.size(); ++i) {
        const int32_t end = step[i].start + static_cast<int32_t>(step[i].tokens.size());
        for (int32_t token = step[i].start; token < end; ++token)
          at(layer, *active[i], token) = mark(layer, *active[i], token);
        for (int32_t token = 0; token < end; ++token)
          ASSERT_EQ(at(layer, *active[i], token), mark(layer, *active[i], token))
              << "layer " << layer << " token " << token << " of " << end;
      }
    });
    swapper_.end_step();
    for (size_t i = 0; i < active.size(); ++i)
      active[i]->tokens += static_cast<int32_t>(step[i].tokens.size());
  }
  LayerSwapper::Stats stats() { return swapper_.take_stats(); }

 private:
  struct Sequence {
    float id = 0;
    std::vector<BlockId> table = {};
    int32_t tokens = 0;
    int32_t shared = 0;  // tokens taken over from another sequence, with its marks
    float from = 0;
  };
  static constexpr int32_t kTokens[20] = {};

  float mark(int layer, const Sequence& of, int32_t token) const {
    return (token < of.shared ? of.from : of.id) * 4096 + static_cast<float>(layer * 512 + token);
  }
  float& at(int layer, const Sequence& of, int32_t token) {
    const KvLayerView view = kv_.layer(layer);
    const int32_t block =
        of.table[static_cast<size_t>(token / kKvBlockTokens)].number_in(Tier::kDevice);
    // A token's mark is in the last word of the block's K or V plane, alternating.
    std::byte* const plane = token % 2 == 0 ? view.k : view.v;
    return *reinterpret_cast<float*>(plane + block * view.block_bytes() +
                                     token % kKvBlockTokens * 4);
  }
  std::optional<DeviceBlock> try_block() {
    std::vector<bool> taken(static_cast<size_t>(kv_.device_blocks()));
    for (const Sequence& of : sequences_)
      for (const BlockId block : of.table) taken[static_cast<size_t>(block.number)] = true;
    std::vector<DeviceBlock> free;
    for (int32_t block = 0; block < kv_.device_blocks(); ++block)
      if (!taken[static_cast<size_t>(block)]) free.push_back(DeviceBlock{block});
    if (free.empty()) return std::nullopt;
    return free[random_() % free.size()];
  }
  bool grow(Sequence& sequence, int32_t count) {
    while (std::ssize(sequence.table) * kKvBlockTokens < sequence.tokens + count) {
      const auto block = try_block();
      if (!block) return false;
      sequence.table.push_back(*block);
    }
    return sequence.tokens + count < 400;
  }
  // Starts a sequence: a new one, or one that continues a prefix of another. Whole blocks are
  // shared with that one, and a partly filled block is copied.
  void begin() {
    Sequence fresh{.id = static_cast<float>(++ids_)};
    const bool shares = !sequences_.empty() && random_() % 2 == 0;
    if (shares) {
      const Sequence& other = sequences_[random_() % sequences_.size()];
      // A mark names one owner only, so chains of sharing are left out.
      if (other.shared > 0 || other.tokens < 20) return;
      const int32_t whole = other.tokens / kKvBlockTokens;
      fresh.table.assign(other.table.begin(), other.table.begin() + whole);
      fresh.tokens = whole * kKvBlockTokens;
      if (const int32_t rest = other.tokens % kKvBlockTokens; rest > 0) {
        const BlockId from = other.table[static_cast<size_t>(whole)];
        fresh.from = other.id;
        sequences_.push_back(fresh);
        const auto block = try_block();
        fresh = sequences_.back();
        sequences_.pop_back();
        if (block) {
          kv_.copy_block(machine_.device(), from.in<Tier::kDevice>(), *block);
          fresh.table.push_back(*block);
          fresh.tokens += rest;
          fresh.shared = fresh.tokens;
          sequences_.push_back(fresh);
          // The copy belongs to the next step, which must include the sequence.
          step_of(sequences_.back());
          return;
        }
      }
      fresh.shared = fresh.tokens;
      fresh.from = other.id;
    }
    sequences_.push_back(fresh);
  }
  // Runs a step with this sequence alone.
  void step_of(Sequence& sequence) {
    if (!grow(sequence, 1)) {
      kv_.swapped().take_copies();
      sequences_.pop_back();
      return;
    }
    const StepSequence only{.tokens = std::span(kTokens).first(1),
                            .start = sequence.tokens,
                            .block_table = sequence.table};
    swapper_.begin_step(kv_.swapped(), 0, {&only, 1});
    run_layers(swapper_, kv_.swapped(), overlap_, [&](int layer) {
      at(layer, sequence, sequence.tokens) = mark(layer, sequence, sequence.tokens);
      for (int32_t token = 0; token <= sequence.tokens; ++token)
        ASSERT_EQ(at(layer, sequence, token), mark(layer, sequence, token))
            << layer << " " << token;
    });
    swapper_.end_step();
    ++sequence.tokens;
  }

  std::mt19937 random_;
  TestMachine machine_;
  KvCache kv_;
  LayerSwapper swapper_;
  bool overlap_;
  std::vector<Sequence> sequences_;
  int ids_ = 0;
};

class LayerSwapperBytesTest : public testing::TestWithParam<bool> {};

TEST_P(LayerSwapperBytesTest, LayersHaveWhatWasWrittenWhateverTheTiming) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    SwappingWorld world(seed, 1 + static_cast<int>(seed % 2), GetParam());
    for (int step = 0; step < 60; ++step) {
      if (step % 7 == 3) world.change();
      world.step();
      if (testing::Test::HasFatalFailure()) return;
    }
    const LayerSwapper::Stats stats = world.stats();
    EXPECT_GT(stats.to_device_bytes, 0u);
    EXPECT_GT(stats.to_host_bytes, 0u);
    EXPECT_GT(stats.moved_bytes, 0u);
    EXPECT_LE(stats.copied_bytes, stats.to_device_bytes);
    EXPECT_GT(stats.waited_s, 0) << "copies come late here";
    EXPECT_GT(stats.waits, 0);
    EXPECT_LE(stats.waits, stats.loads);
    EXPECT_LE(stats.early, stats.ahead);
    EXPECT_LE(stats.ahead, stats.loads);
  }
}
INSTANTIATE_TEST_SUITE_P(Come, LayerSwapperBytesTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "Ahead" : "OnDemand"; });

// Runs steps whose ops take a millisecond a layer by the accelerator's own clock, with one
// sequence, or several that alternate so that no step knows the blocks of the next one.
LayerSwapper::Stats stats_with_link(uint64_t bytes_per_s, int swapped, int steps,
                                    int sequences = 1) {
  EmulatedAcceleratorOptions options;
  options.bytes_per_s = bytes_per_s;
  options.clock = std::make_shared<EmulatedClock>();
  EmulatedAccelerator device(options);
  CpuDevice host(CpuDeviceOptions{.threads = 1});
  KvCache kv(device, host, kShape,
             {.device_blocks = 8, .most_swapped = swapped, .spare_buffers = kSpareBuffers});
  TransferScheduler transfers(device);
  LayerSwapper swapper(transfers);
  swapper.change(kv.swapped(), swapped);
  const std::vector<BlockId> tables[] = {{DeviceBlock{2}, DeviceBlock{0}, DeviceBlock{1}},
                                         {DeviceBlock{5}, DeviceBlock{3}, DeviceBlock{4}}};
  constexpr int32_t kToken[1] = {};
  constexpr int kBefore = 2;  // steps for which nothing has been loaded ahead yet
  for (int step = 0; step < kBefore + steps; ++step) {
    const StepSequence only{
        .tokens = kToken, .start = 33 + step, .block_table = tables[step % sequences]};
    swapper.begin_step(kv.swapped(), 0, {&only, 1});
    run_layers(swapper, kv.swapped(), /*overlap=*/true,
               [&](int /*layer*/) { options.clock->pass(1e-3); });
    swapper.end_step();
    if (step + 1 == kBefore) swapper.take_stats();
  }
  return swapper.take_stats();
}

TEST(LayerSwapperWaitsTest, EveryLayerThatComesLateIsCountedAndNoOther) {
  constexpr int kSwapped = 6, kSteps = 5;
  for (const uint64_t bytes_per_s : {uint64_t{0}, uint64_t{1} << 30}) {
    const LayerSwapper::Stats hidden = stats_with_link(bytes_per_s, kSwapped, kSteps);
    EXPECT_EQ(hidden.loads, kSwapped * kSteps);
    EXPECT_EQ(hidden.waits, 0) << bytes_per_s;
    EXPECT_EQ(hidden.waited_s, 0) << bytes_per_s;
  }
  const LayerSwapper::Stats late = stats_with_link(1 << 14, kSwapped, kSteps);
  EXPECT_EQ(late.loads, kSwapped * kSteps);
  EXPECT_EQ(late.waits, kSwapped * kSteps) << "each takes far longer than its layer before";
  EXPECT_GT(late.waited_s, 0);
}

// Layers 1, 3, 5, 8, 10 and 12 of 14 are swapped and share two buffers. The next step's layer 1 is
// queued when layer 10 has been attended to, 3 milliseconds before the end of a step, and its layer
// 3 when layer 12 has been, 1 millisecond before.
TEST(LayerSwapperEarlyTest, LayersOfTheNextStepAreEarlyIfTheyAreThereBeforeThisOneHasEnded) {
  constexpr int kSwapped = 6, kSteps = 5;
  const auto layer_bytes = static_cast<uint64_t>(3 * kShape.block_bytes() / kShape.layers);
  const auto in_ms = [&](double ms) {
    return static_cast<uint64_t>(static_cast<double>(layer_bytes) / (ms / 1e3));
  };
  for (const double ms : {0.1, 0.9}) {
    const LayerSwapper::Stats both = stats_with_link(in_ms(ms), kSwapped, kSteps);
    EXPECT_EQ(both.ahead, 2 * kSteps) << ms;
    EXPECT_EQ(both.early, 2 * kSteps) << ms;
  }
  for (const double ms : {1.1, 2.2}) {
    const LayerSwapper::Stats first = stats_with_link(in_ms(ms), kSwapped, kSteps);
    EXPECT_EQ(first.ahead, 2 * kSteps) << ms;
    EXPECT_EQ(first.early, kSteps) << ms;
    EXPECT_EQ(first.waits, 0) << "the link is not full: " << ms;
  }
  const LayerSwapper::Stats late = stats_with_link(in_ms(3.5), kSwapped, kSteps);
  EXPECT_EQ(late.ahead, 2 * kSteps);
  EXPECT_EQ(late.early, 0);
  EXPECT_GT(late.waits, 0);
}

TEST(LayerSwapperEarlyTest, WhatIsAddedToWhenItsStepBeginsIsNeitherEarlyNorLate) {
  const LayerSwapper::Stats stats = stats_with_link(uint64_t{1} << 30, 6, 5, /*sequences=*/2);
  EXPECT_EQ(stats.loads, 6 * 5);
  EXPECT_EQ(stats.ahead, 0);
  EXPECT_EQ(stats.early, 0);
}

TEST(LayerSwapperEarlyTest, WhatComesOnDemandIsNotAhead) {
  SwappingWorld world(1, kSpareBuffers, /*overlap=*/false);
  for (int step = 0; step < 20; ++step) {
    if (step % 7 == 3) world.change();
    world.step();
  }
  const LayerSwapper::Stats stats = world.stats();
  EXPECT_GT(stats.loads, 0);
  EXPECT_EQ(stats.ahead, 0);
}

}  // namespace
}  // namespace spillway
