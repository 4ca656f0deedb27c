// SPDX-License-Identifier: Apache-2.0
#include "plan/residence.h"

#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "base/error.h"
#include "model/known_models.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

struct ResidenceTest : testing::Test {
  Hardware hardware = read_hardware("h200");
  Model model = describe_dummy_model("opt-13b");

  // Returns the share of each op's bytes that is on the device.
  std::map<std::string_view, double> there(const Plan& plan) {
    std::map<std::string_view, double> bytes, all;
    const auto homes = weight_homes(false, model, plan.weight_plan());
    for (size_t i = 0; i < homes.size(); ++i) {
      const WeightSlot& slot = model.weights[i].slot;
      if (!slot.is_layer_matrix()) continue;
      const auto of = static_cast<double>(model.weights[i].bytes());
      all[slot.op_name] += of;
      if (homes[i] == Tier::kDevice) bytes[slot.op_name] += of;
    }
    for (auto& [op, share] : bytes) share /= all[op];
    return bytes;
  }
};

// Every byte saves the link the same time, but a join costs more per byte in a smaller op.
TEST_F(ResidenceTest, SmallOpsGainTheMost) {
  const auto gains = residence_gains(hardware, model, 1);
  ASSERT_EQ(gains.size(), 4U);
  EXPECT_EQ(gains[0].op, "attention_out");
  EXPECT_EQ(gains[1].op, "qkv");
  for (size_t i = 1; i < gains.size(); ++i) EXPECT_LE(gains[i].per_byte(), gains[i - 1].per_byte());
}

// A module with which the CPU is slow goes to the device first, whatever its size (equation 13).
TEST_F(ResidenceTest, WhatIsSlowGoesFirst) {
  const int64_t hidden = model.spec.hidden, ffn = model.spec.ffn;
  hardware.splits = {
      {.shape = {DType::kF16, ffn, hidden}, .tokens = 1, .cpu = {0, 1}, .link = {0, 1}}};
  EXPECT_EQ(residence_gains(hardware, model, 1)[0].op, "mlp_up");
}

TEST_F(ResidenceTest, AsManyBytesAsBeforeWhateverTheShare) {
  Plan plan;
  for (double share = 0.05; share < 1; share += 0.05) {
    plan.weights = {share, 1 - share, 0};
    const Plan placed = with_residence_by_gain(hardware, model, plan, 1);
    const TierShares now =
        placed_shares(model, weight_homes(/*host_visible=*/false, model, placed.weight_plan()));
    EXPECT_NEAR(now.device, share, 0.01) << share;
    EXPECT_NEAR(now.device + now.host, 1, 1e-9);
    auto bytes = there(placed);
    // No layer of an op is on the device unless all layers of each op that gains more are.
    const auto gains = residence_gains(hardware, model, 1);
    for (size_t i = 1; i < gains.size(); ++i) {
      if (gains[i].per_byte() > 0.99 * gains[i - 1].per_byte()) continue;
      const double before = bytes[gains[i - 1].op];
      if (bytes[gains[i].op] > 0.05) EXPECT_GT(before, 0.95) << share;
    }
  }
}

TEST_F(ResidenceTest, OtherHomesBesideItAreRefused) {
  Plan plan{.weights = {0.5, 0.5, 0}, .residence = Residence::kByGain};
  plan.overrides = {{.matrix = "mlp_down", .home = Tier::kDevice}};
  EXPECT_THROW(with_residence_by_gain(hardware, model, plan, 1), Error);
  plan.overrides.clear();
  plan.weights = {0.5, 0.25, 0.25};
  EXPECT_THROW(with_residence_by_gain(hardware, model, plan, 1), Error);
}

TEST_F(ResidenceTest, WhatIsAllInOneMemoryStays) {
  for (const TierShares& shares : {TierShares{0, 1, 0}, TierShares{1, 0, 0}}) {
    const Plan plan{.weights = shares, .residence = Residence::kByGain};
    const Plan placed = with_residence_by_gain(hardware, model, plan, 1);
    EXPECT_TRUE(placed.overrides.empty());
    EXPECT_EQ(placed.residence, Residence::kEven);
  }
}

}  // namespace
}  // namespace spillway
