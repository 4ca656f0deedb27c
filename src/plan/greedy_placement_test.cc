// SPDX-License-Identifier: Apache-2.0
#include "plan/greedy_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/byte_units.h"
#include "base/error.h"
#include "plan/test_traits.h"
#include "tensor/attention_layout.h"
#include "tensor/packed_layout.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30, kMiB = uint64_t{1} << 20;

// OPT-30B in F16 beside a GPU with 16 GiB: 56 GiB of weights.
struct GreedyPlacementTest : testing::Test {
  Model model = describe_dummy_model("opt-30b");
  RunSize size{.tokens = 544, .sequences = 32, .micro_tokens = 2048};
  DeviceTraits traits = gpu_traits(256 * kMiB);
  Budgets budgets{.device = 16 * kGiB, .host = 100 * kGiB, .disk = 0};

  Plan fill() {
    traits.memory_bytes = traits.host_visible ? budgets.host : budgets.device;
    const Plan plan = place_greedily(model, size, traits, budgets);
    // Every plan that it returns fits.
    const Footprint needs = footprint(model, plan, size, traits);
    require_fit(needs, !traits.host_visible, budgets);
    // If KV is on disk, the device's total includes the workspace already.
    EXPECT_LE(needs.device.total() - needs.device.of(MemoryTag::kWorkspace) + needs.workspace,
              traits.memory_bytes);
    return plan;
  }
};

TEST_F(GreedyPlacementTest, EverythingOnADeviceThatHoldsIt) {
  budgets.device = 140 * kGiB;
  EXPECT_TRUE(fill().all_on_device());
}

TEST_F(GreedyPlacementTest, ALargeCacheGoesToTheHostAndWeightsFillTheDevice) {
  const Plan plan = fill();
  EXPECT_EQ(plan.kv.host, 1);
  EXPECT_GT(plan.weights.device, 0.15);
  EXPECT_LT(plan.weights.device, 0.24);
  EXPECT_NEAR(plan.weights.device + plan.weights.host, 1, 1e-9);
}

TEST_F(GreedyPlacementTest, ASmallCacheStays) {
  size.sequences = 1;
  const Plan plan = fill();
  EXPECT_EQ(plan.kv.device, 1);
  EXPECT_LT(plan.weights.device, 0.3);
}

TEST_F(GreedyPlacementTest, TheDiskTakesTheRestIfItMay) {
  budgets.host = 40 * kGiB;
  EXPECT_THROW(fill(), Error);
  budgets.disk = 60 * kGiB;
  const Plan plan = fill();
  EXPECT_GT(plan.weights.disk, 0.4);
  EXPECT_NEAR(plan.weights.device + plan.weights.host + plan.weights.disk, 1, 1e-9);
}

TEST_F(GreedyPlacementTest, WithoutADeviceTheHostIsFilledAndTheRestComesFromDisk) {
  traits = DeviceTraits();
  traits.layouts.fill(WeightLayout::kGroups16);
  traits.workspace_bytes = 20 * kMiB;
  size.sequences = 1;
  budgets = {.device = 0, .host = 40 * kGiB, .disk = 100 * kGiB, .host_is_limited = true};
  const Plan plan = fill();
  EXPECT_EQ(plan.weights.device, 0);
  EXPECT_GT(plan.weights.host, 0.55);
  EXPECT_GT(plan.weights.disk, 0.2);
  budgets.host = 200 * kGiB;
  EXPECT_TRUE(fill().all_on_device());
}

// More device memory never means fewer weights on the device.
TEST_F(GreedyPlacementTest, MoreMemoryTakesMore) {
  double before = -1;
  for (const uint64_t gib : {8, 10, 12, 16, 24, 32, 48, 64, 80}) {
    budgets.device = gib * kGiB;
    const double now = fill().weights.device;
    EXPECT_GE(now, before) << gib;
    before = now;
  }
  EXPECT_EQ(before, 1);
}

// With any budgets, the plan fits, or an error says that none does.
TEST_F(GreedyPlacementTest, RandomBudgetsAreKept) {
  std::mt19937 random(11);
  const auto pick = [&](double least, double most) {
    return static_cast<uint64_t>(std::uniform_real_distribution<double>(least, most)(random) *
                                 static_cast<double>(kGiB));
  };
  int found = 0;
  for (int i = 0; i < 120; ++i) {
    budgets = {.device = pick(2, 40), .host = pick(1, 60), .disk = 200 * kGiB};
    size.sequences = 1 + i % 5 * 8;
    SCOPED_TRACE(testing::Message() << budgets.device << " " << budgets.host << " " << i);
    try {
      fill();
      ++found;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("the plan needs")))
          << "what fill() gave did not fit";
    }
  }
  EXPECT_GT(found, 60);
}

// A sequence has 64 GiB of KV, which fits into no single memory.
TEST_F(GreedyPlacementTest, ALongSequenceSpansWhatThereIs) {
  model = describe_dummy_model("llama-2-7b");
  size = {.tokens = 131072, .sequences = 1, .micro_tokens = 2048};
  budgets = {.device = 40 * kGiB, .host = 40 * kGiB, .disk = 0};
  const Plan on_two = fill();
  EXPECT_GT(on_two.kv.host, 0.5);
  EXPECT_NEAR(on_two.kv.device + on_two.kv.host, 1, 1e-9);
  RunLayout layout = footprint(model, on_two, size, traits).layout;
  EXPECT_TRUE(layout.spans());
  EXPECT_TRUE(layout.partitioned);
  EXPECT_EQ(layout.device_blocks % kPartitionBlocks, 0);
  EXPECT_EQ(layout.device_blocks + layout.host_blocks, layout.sequence_blocks);
  EXPECT_GE(layout.staging_blocks, layout.least_staging());

  budgets = {.device = 10 * kGiB, .host = 40 * kGiB, .disk = 100 * kGiB};
  const Plan on_three = fill();
  EXPECT_GT(on_three.kv.disk, 0.2);
  // All KV is in host memory, and the device cannot hold it for one layer.
  budgets = {.device = 4 * kGiB, .host = 100 * kGiB, .disk = 0};
  const Plan in_host = fill();
  EXPECT_EQ(in_host.kv.host, 1);
  layout = footprint(model, in_host, size, traits).layout;
  EXPECT_LT(layout.staging_blocks, layout.sequence_blocks);
  EXPECT_TRUE(layout.partitioned);

  budgets = {.device = 10 * kGiB, .host = 40 * kGiB, .disk = 0};
  EXPECT_THROW(fill(), Error);
  budgets.disk = 100 * kGiB;
  size.whole_sequences = true;
  EXPECT_THROW(fill(), Error) << "it cannot be partitioned";
}

TEST_F(GreedyPlacementTest, LongSequencesHaveLargerChunks) {
  EXPECT_EQ(usual_chunk(false, 131072), 512);
  EXPECT_EQ(usual_chunk(true, 4096), 2048);
  EXPECT_EQ(usual_chunk(true, 65536), 4096);
  EXPECT_EQ(usual_chunk(true, 131072), 8192);
  EXPECT_EQ(usual_chunk(true, 1'000'000), 8192);
}

TEST_F(GreedyPlacementTest, EmbeddingsLeaveADeviceThatIsTooSmall) {
  size.sequences = 1;
  budgets.device = 5 * kGiB;
  EXPECT_EQ(fill().embeddings, Tier::kDevice);
  EXPECT_EQ(fill().kv.device, 1);
  budgets.device = 2 * kGiB;
  EXPECT_EQ(fill().embeddings, Tier::kDevice);
  EXPECT_EQ(fill().kv.host, 1) << "although it is small";
  budgets.device = kGiB;
  EXPECT_EQ(fill().embeddings, Tier::kHost);
  EXPECT_EQ(fill().kv.host, 1);
  budgets.host = 80 * kMiB;
  budgets.disk = 100 * kGiB;
  EXPECT_THROW(fill(), Error) << "the host has no room for it";
}

// Returns the first of the smaller runs that fits, and its greedy placement.
struct SmallBudgetTest : GreedyPlacementTest {
  RunSize run(const char* name, uint64_t gpu_bytes, uint64_t tokens) {
    model = describe_dummy_model(name);
    traits.decoded_tokens = 64;
    traits.allocation_unit = 512;
    for (const DType type : kAllDTypes) {
      if (can_pack(type)) traits.layouts[static_cast<size_t>(type)] = WeightLayout::kGroups16;
    }
    budgets.device = gpu_bytes;
    const RunSize wanted{.tokens = static_cast<int64_t>(tokens), .micro_tokens = 2048};
    RunSize least = wanted;
    least.micro_tokens = kSmallestChunk;
    for (const RunSize& smaller : smaller_runs(wanted, least)) {
      size = smaller;
      try {
        fill();
        return size;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      }
    }
    return {.sequences = 0};
  }
};

TEST_F(SmallBudgetTest, SevenBillionInOneGiB) {
  EXPECT_GE(run("llama-2-7b:q4_0", 1 * kGiB, 4096).micro_tokens, 512);
  EXPECT_EQ(size.sequences, 1);
  EXPECT_EQ(run("llama-2-7b:q4_0", 1 * kGiB, 512).sequences, 1);
  EXPECT_EQ(run("llama-2-7b:q4_0", 700 * kMiB, 4096).sequences, 1) << "even so";
}

TEST_F(SmallBudgetTest, ThirtyBillionInThreeGiB) {
  EXPECT_GE(run("opt-30b", 3 * kGiB, 2048).micro_tokens, 256);
  EXPECT_EQ(size.sequences, 1);
}

TEST_F(SmallBudgetTest, FewerSequencesThenSmallerPiecesThenShorterContexts) {
  const auto sizes = smaller_runs({.tokens = 300, .sequences = 3, .micro_tokens = 100},
                                  {.tokens = 200, .sequences = 1, .micro_tokens = 64});
  std::vector<std::array<int64_t, 3>> seen;
  for (const RunSize& s : sizes) seen.push_back({s.tokens, s.micro_tokens, s.sequences});
  const std::vector<std::array<int64_t, 3>> expected = {{300, 100, 3}, {300, 100, 1}, {300, 64, 3},
                                                        {300, 64, 1},  {200, 100, 3}, {200, 100, 1},
                                                        {200, 64, 3},  {200, 64, 1}};
  EXPECT_EQ(seen, expected);
}

// The budget that the message names is enough, and less is not.
TEST_F(GreedyPlacementTest, SaysHowMuchWouldDo) {
  for (const char* name : {"opt-30b", "llama-2-7b:q4_0"}) {
    model = describe_dummy_model(name);
    budgets.device = 300 * kMiB;
    std::string refusal;
    try {
      fill();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      refusal = error.what();
    }
    EXPECT_THAT(refusal, testing::HasSubstr("but there are only 300 MiB"));
    const auto fits = [&](uint64_t steps) {
      budgets.device = traits.memory_bytes = steps * kBudgetStep;
      return try_place_greedily(model, size, traits, budgets).has_value();
    };
    uint64_t low = 300, high = 16 << 10;
    while (low + 1 < high) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
    EXPECT_THAT(refusal,
                testing::HasSubstr("need " + format_bytes(high * kBudgetStep) + " of GPU memory"));
  }
}

}  // namespace
}  // namespace spillway
