// SPDX-License-Identifier: Apache-2.0
// Checks footprints that can be added up by hand. tests/placement checks that a run takes these
// bytes.
#include "plan/footprint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "model/known_models.h"
#include "model/transformer_shape.h"
#include "plan/greedy_placement.h"
#include "plan/memory_fit.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct FootprintTest : testing::Test {
  // The model has 12 layers of 768 columns, 12 heads of 64, ffn 3072 and a vocabulary of 50,272, in
  // F16.
  Model model = describe_dummy_model("opt-125m");
  RunSize size{.tokens = 64, .sequences = 4, .micro_tokens = 32};
  DeviceTraits traits = gpu_traits();

  Footprint of(const Plan& plan) const { return footprint(model, plan, size, traits); }
};

TEST_F(FootprintTest, AllOnTheDevice) {
  const Footprint needs = of({});
  EXPECT_EQ(needs.layout.device_blocks, 16);
  EXPECT_EQ(needs.layout.blocks_away(), 0);
  EXPECT_EQ(needs.layout.staging_blocks, 0);
  // K and V of 12 layers with 256 tokens of 768 halves each.
  EXPECT_EQ(needs.device.of(MemoryTag::kKv), 2u * 12 * 256 * 768 * 2);
  EXPECT_EQ(needs.layout.max_tokens, 32);
  EXPECT_EQ(needs.layout.micro_tokens, 32);
  // In halves, for 32 tokens: normed, q, k, v, attended, MLP. In floats: the residual stream. For
  // four rows of logits: floats of a row and of the vocabulary, and halves of a row.
  EXPECT_EQ(needs.device.of(MemoryTag::kActivations),
            32u * (2 * (768 + 3 * 768 + 768 + 3072) + 4 * 768) + 4 * (4 * (768 + 50272) + 2 * 768));
  EXPECT_EQ(needs.device.of(MemoryTag::kStaging), 0u);
  EXPECT_EQ(needs.host.total() + needs.disk.total() + needs.mapped, 0u);
  uint64_t weights = 0;
  for (const BoundWeight& weight : model.weights) weights += aligned_weight_bytes(weight.bytes());
  EXPECT_EQ(needs.device.of(MemoryTag::kWeights), weights);
}

TEST_F(FootprintTest, SequencesThatShareKvTakeRowsOfLogitsAndNothingElse) {
  const Footprint whole = of({});
  size.max_concurrent = 10;
  const Footprint shared = of({});
  EXPECT_EQ(shared.device.of(MemoryTag::kKv), whole.device.of(MemoryTag::kKv));
  EXPECT_EQ(shared.device.total() - whole.device.total(), 6u * (4 * (768 + 50272) + 2 * 768));
}

// A sequence of 32K tokens keeps a window of 4,096 of them, the tokens of a step, those that a
// rollback may remove, and one more block, because the window can begin anywhere in a block.
TEST(WindowFootprintTest, AWindowTakesItsTokensTheLargestStepAndABlock) {
  const Model model = describe_dummy_model("mistral-7b-v0.1");
  const RunSize size{.tokens = 32'768, .sequences = 3, .micro_tokens = 512};
  const Footprint needs = footprint(model, {}, size, gpu_traits());
  constexpr uint64_t kTokens = 4096 + 512 + kMostCutBack + kKvBlockTokens;
  // K and V of 32 layers with 8 heads of 128 halves.
  EXPECT_EQ(needs.device.of(MemoryTag::kKv), 3u * kTokens * 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(needs.layout.device_blocks, 3 * 2048) << "room for all tokens";
  // Shorter sequences take only the blocks that they have.
  const RunSize few{.tokens = 1024, .sequences = 3, .micro_tokens = 512};
  EXPECT_EQ(footprint(model, {}, few, gpu_traits()).device.of(MemoryTag::kKv),
            3u * 1024 * 32 * 2 * 8 * 128 * 2);
}

// Like Gemma: five of six layers have a window, and the sixth attends to all tokens.
Model model_with_both() {
  TransformerShape shape = try_known_model("mistral-7b-v0.1").value();
  shape.layers = 30;
  shape.full_attention_every = 6;
  Model model{make_spec(shape), {}};
  for (const WeightSlot& slot : weight_slots(model.spec))
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : DType::kF16, {}});
  return model;
}

// The groups' pools hold as many short sequences as may run concurrently, not only as many as fit
// when all are long.
TEST(WindowFootprintTest, WindowsOfAllConcurrentSequencesHaveRoom) {
  const Model model = model_with_both();
  RunSize size{.tokens = 32'768, .sequences = 3, .micro_tokens = 512};
  const auto layout_of = [&] { return footprint(model, {}, size, gpu_traits()).layout; };
  // blocks of a sequence
  constexpr int64_t kMost = (4096 + 512 + kMostCutBack) / kKvBlockTokens + 1;
  RunLayout layout = layout_of();
  const int window = layout.kv.place(0).group, full = layout.kv.place(5).group;
  EXPECT_EQ(layout.group_blocks(full, layout.device_blocks), 3 * 2048);
  EXPECT_EQ(layout.group_blocks(window, layout.device_blocks), 3 * kMost) << "three and no more";
  size.max_concurrent = 10;
  layout = layout_of();
  EXPECT_EQ(layout.group_blocks(full, layout.device_blocks), 3 * 2048);
  EXPECT_EQ(layout.group_blocks(window, layout.device_blocks), 10 * kMost);
  // With 1,024 tokens each, either pool holds 96 sequences.
  size.max_concurrent = 96;
  layout = layout_of();
  constexpr int64_t kShort = 1024 / kKvBlockTokens;
  EXPECT_EQ(layout.group_blocks(full, layout.device_blocks) / kShort, 96);
  EXPECT_EQ(layout.group_blocks(window, layout.device_blocks) / kShort, 96);
  // Each memory has its proportion of them.
  size.sequences = 4;
  size.max_concurrent = 12;
  Plan plan;
  plan.kv = {0.25, 0.75, 0};
  DeviceTraits small = gpu_traits();  // a step takes no more tokens than a micro-batch
  small.memory_bytes = uint64_t{64} << 20;
  layout = footprint(model, plan, size, small).layout;
  ASSERT_EQ(layout.max_tokens, 512);
  EXPECT_EQ(layout.group_blocks(window, layout.device_blocks), std::min<int64_t>(2048, 3 * kMost));
  EXPECT_EQ(layout.group_blocks(window, layout.host_blocks), 9 * kMost);
  // If all layers have a window, there is no other pool whose room could stay unused.
  size = {.tokens = 32'768, .sequences = 3, .micro_tokens = 512, .max_concurrent = 96};
  layout = footprint(describe_dummy_model("mistral-7b-v0.1"), {}, size, gpu_traits()).layout;
  EXPECT_EQ(layout.group_blocks(0, layout.device_blocks), 3 * kMost);
}

// There is one state for each concurrent sequence, in F32, for any length and KV type.
TEST(RecurrentFootprintTest, ASequenceHasOneState) {
  KvGroupShape recurrent{
      .layers = 3, .kv_heads = 4, .head_dim = 300, .rule = {.kind = StateKind::kRecurrent}};
  recurrent.values = KvPlaneShape{1, 7, KvType::kF16};
  EXPECT_EQ(recurrent.block_bytes(), 3 * (4 * 300 + 7) * 4);
  RunLayout layout;
  layout.kv = KvShapes({recurrent, {.layers = 1, .kv_heads = 1, .head_dim = 8}},
                       {{0, 0}, {0, 1}, {1, 0}, {0, 2}});
  layout.sequence_blocks = 100;
  layout.device_blocks = 300;
  layout.max_tokens = 64;
  const int64_t states = recurrent.rule.most_blocks(1600, 64);  // states of a sequence
  EXPECT_EQ(layout.group_blocks(0, 300), 3 * states);
  layout.max_concurrent = 8;
  EXPECT_EQ(layout.group_blocks(0, 300), 8 * states);
  EXPECT_EQ(layout.group_blocks(1, 300), 300);
  EXPECT_EQ(layout.kv_bytes(300),
            static_cast<uint64_t>(8 * states * recurrent.block_bytes() + 300 * 2 * 16 * 8 * 2));
  // A sequence in two memories has its state in one of them.
  layout.max_concurrent = 1;
  layout.device_blocks = 32;
  layout.host_blocks = 68;
  EXPECT_EQ(layout.group_blocks(0, 32), states);
  EXPECT_EQ(layout.group_blocks(0, 68), states);
}

// Keys and values may have different sizes, and a latent is a single plane.
TEST(PlanesFootprintTest, EachPlaneIsCounted) {
  KvGroupShape differ{.layers = 2, .kv_heads = 2, .head_dim = 16};
  differ.values = KvPlaneShape{1, 24, KvType::kInt8};
  KvGroupShape latent{.layers = 1, .kv_heads = 1, .head_dim = 64};
  latent.values = KvPlaneShape{};
  RunLayout layout;
  layout.kv = KvShapes({differ, latent}, {{0, 0}, {0, 1}, {1, 0}});
  layout.sequence_blocks = layout.device_blocks = 10;
  const auto values = static_cast<uint64_t>(kv_page_bytes(KvType::kInt8, 24));
  EXPECT_EQ(layout.kv_bytes(10), 10 * (2 * (2 * 16 * 16 * 2 + values) + 64 * 16 * 2));
}

// If weights stream, a step has a row for each sequence, and layers wait for several micro-batches.
TEST_F(FootprintTest, SequencesThatShareKvHaveRowsInEachStep) {
  Plan plan;
  plan.weights = {0, 1, 0};
  plan.kv = {0, 1, 0};
  plan.micro_batch = 4;
  size.tokens = size.micro_tokens = 4;
  size.sequences = 1;
  EXPECT_EQ(of(plan).layout.max_tokens, 4);
  EXPECT_EQ(of(plan).layout.slots, SlotContent::kSegments);
  size.max_concurrent = 10;
  EXPECT_EQ(of(plan).layout.max_tokens, 10);
  EXPECT_EQ(of(plan).layout.slots, SlotContent::kLayers);
}

TEST_F(FootprintTest, KvInHostMemoryIsStagedInWhatIsLeft) {
  Plan plan;
  plan.kv = {0.25, 0.75, 0};
  const Footprint needs = of(plan);
  EXPECT_EQ(needs.layout.device_blocks, 4);
  EXPECT_EQ(needs.layout.host_blocks, 12);
  EXPECT_EQ(needs.layout.staging_blocks, 12) << "all of it";
  const uint64_t block = 2 * 16 * 768 * 2;  // bytes of a block in one layer
  EXPECT_EQ(needs.device.of(MemoryTag::kStaging), 2 * 12 * block);
  EXPECT_EQ(needs.host.of(MemoryTag::kKv), 12 * 12 * block);
  traits.memory_bytes = needs.device.total() + needs.workspace - 2 * block;
  EXPECT_EQ(of(plan).layout.staging_blocks, 11);
  plan.attention = AttentionPlace::kCpu;
  EXPECT_EQ(of(plan).layout.staging_blocks, 6) << "of prompts: a micro-batch, and a block of each";
  traits.memory_bytes = kGiB / 8;  // less than the weights take
  EXPECT_EQ(of(plan).layout.staging_blocks, 0) << "the CPU attends";
}

TEST_F(FootprintTest, EmbeddingsInHostMemoryTakeSlotsForTheHead) {
  const Footprint home = of({});
  Plan plan;
  plan.embeddings = Tier::kHost;
  const Footprint needs = of(plan);
  // The head is the token embedding of 77 MB, where layers have 14 MB.
  const uint64_t table = 50272 * 768 * 2, positions = 2050 * 768 * 2;
  EXPECT_EQ(needs.host.of(MemoryTag::kWeights), table + positions);
  EXPECT_EQ(needs.device.of(MemoryTag::kWeights),
            home.device.of(MemoryTag::kWeights) - table - positions);
  EXPECT_TRUE(needs.weights.streams);
  EXPECT_EQ(needs.layout.slots, SlotContent::kLayers) << "prompts are several micro-batches";
  EXPECT_EQ(needs.layout.weight_slots, 2);
  const uint64_t slot = needs.device.of(MemoryTag::kStaging) / 2;
  EXPECT_GE(slot, table / 6) << "six segments";
  EXPECT_LT(slot, 15u << 20) << "no larger than a layer's";
  size.tokens = 8;
  size.sequences = 1;
  const Footprint few = of(plan);
  EXPECT_EQ(few.layout.slots, SlotContent::kSegments);
  // The slots hold three segments of 25.7 MB, and the first one of the next step.
  EXPECT_EQ(few.layout.weight_slots, 4);
  EXPECT_GE(few.device.of(MemoryTag::kStaging) / 4, table / 3);
  EXPECT_LE(few.device.of(MemoryTag::kStaging) / 4, kStreamSegmentBytes + kStreamSlotBytes);
  // Rows of both embedding tables for a micro-batch.
  EXPECT_EQ(needs.host.of(MemoryTag::kStaging), 32u * 2 * 768 * 2);
}

TEST_F(FootprintTest, AQuantizedHeadIsExpandedForManyRowsOfLogitsAlone) {
  model = describe_dummy_model("llama-2-7b:q4_0");
  size = {.tokens = 64, .sequences = 64, .micro_tokens = 64};
  traits.decoded_tokens = 64;
  const uint64_t decoded = of({}).workspace;
  size.micro_tokens = 65;
  const auto more = [&] { return static_cast<double>(of({}).workspace - decoded); };
  EXPECT_NEAR(more(), 2.0 * 4096 * 11008, 1e5);
  size.sequences = 65;
  EXPECT_NEAR(more(), 2.0 * 4096 * 32000, 1e6);
}

TEST_F(FootprintTest, AllocationsAreRoundedOneByOne) {
  const uint64_t before = of({}).device.of(MemoryTag::kKv);
  traits.allocation_unit = 1 << 20;
  // There are 24 planes of 384 KiB.
  EXPECT_EQ(before, 24u * 384 * 1024);
  EXPECT_EQ(of({}).device.of(MemoryTag::kKv), 24u << 20);
}

TEST_F(FootprintTest, WeightsOfTheModelsFileMayBeMapped) {
  traits = DeviceTraits();
  traits.memory_bytes = 16 * kGiB;
  for (BoundWeight& weight : model.weights)
    weight.extent = Extent{0, 0, static_cast<uint64_t>(weight.bytes())};
  EXPECT_GT(of({}).mapped, 0u);
  EXPECT_EQ(of({}).device.of(MemoryTag::kWeights), 0u);
  size.may_map = false;
  EXPECT_EQ(of({}).mapped, 0u);
  size.may_map = true;
  traits.layouts.fill(WeightLayout::kGroups16);
  EXPECT_EQ(of({}).mapped, 0u) << "packed, they are not as in the file";
}

// With any plan, bytes that leave one memory are in another one.
TEST_F(FootprintTest, NothingIsLost) {
  std::mt19937 random(7);
  const auto shares = [&]() -> TierShares {
    std::uniform_real_distribution<double> pick(0, 1);
    const double a = pick(random), b = pick(random);
    return {std::min(a, b), std::abs(a - b), 1 - std::max(a, b)};
  };
  const Footprint all = of({});
  for (int i = 0; i < 200; ++i) {
    Plan plan;
    plan.weights = shares();
    plan.kv = shares();
    const Footprint needs = of(plan);
    const RunLayout& layout = needs.layout;
    EXPECT_EQ(layout.device_blocks + layout.blocks_away(), all.layout.device_blocks);
    EXPECT_EQ(layout.device_blocks % layout.sequence_blocks, 0);
    const auto weights = static_cast<double>(needs.device.of(MemoryTag::kWeights) +
                                             needs.host.of(MemoryTag::kWeights) +
                                             needs.disk.of(MemoryTag::kWeights));
    EXPECT_NEAR(weights, static_cast<double>(all.device.of(MemoryTag::kWeights)), 1 << 16);
  }
}

TEST_F(FootprintTest, ACacheThatCannotBeIsRefused) {
  size.tokens = int64_t{1} << 60;
  size.sequences = 1 << 20;
  EXPECT_THROW(of({}), Error);
}

// With any limits on host and device, no byte is counted twice.
TEST(ShareOneMemoryTest, IsOneTier) {
  const Budgets alone = share_one_memory(64 * kGiB, 0, 0);
  EXPECT_EQ(alone.device, 60 * kGiB) << "what runs";
  EXPECT_EQ(alone.host, 4 * kGiB) << "what it takes to get there";
  EXPECT_FALSE(alone.host_is_limited);
  for (const uint64_t device : {0, 1, 40, 100}) {
    for (const uint64_t host : {0, 1, 40, 100}) {
      const Budgets both = share_one_memory(64 * kGiB, device * kGiB, host * kGiB);
      EXPECT_LE(both.device + both.host, 64 * kGiB) << device << " " << host;
      if (device > 0) {
        EXPECT_LE(both.device, device * kGiB) << host;
      }
      if (host > 0) {
        EXPECT_LE(both.host, host * kGiB) << device;
      }
    }
  }
  // The GPU's part holds all of a model that fits; if it does not fit, almost no weights stay in
  // the host's part.
  const Model model = describe_dummy_model("opt-30b");
  DeviceTraits traits = gpu_traits(256 << 20);
  const RunSize size{.tokens = 544, .sequences = 4, .micro_tokens = 512};
  const auto plan_in = [&](uint64_t free) {
    Budgets budgets = share_one_memory(free, 0, 0);
    budgets.disk = 100 * kGiB;
    traits.memory_bytes = budgets.device;
    traits.host_memory_bytes = budgets.host;
    return place_greedily(model, size, traits, budgets);
  };
  EXPECT_TRUE(plan_in(72 * kGiB).all_on_device());
  const Plan tight = plan_in(32 * kGiB);
  EXPECT_LT(tight.weights.host, 0.05);
  EXPECT_GT(tight.weights.disk, 0.4);
}

}  // namespace
}  // namespace spillway
