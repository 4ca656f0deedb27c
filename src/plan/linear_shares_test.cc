// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_shares.h"

#include <gtest/gtest.h>

#include "model/known_models.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

struct LinearSharesTest : testing::Test {
  Hardware hardware = read_hardware("h200");
  Model model = describe_dummy_model("llama-2-7b");
  Plan plan;
  RunSize size{.tokens = 640, .sequences = 1, .micro_tokens = 512};
  DeviceTraits traits = gpu_traits(256 << 20);

  LinearSharesTest() {
    plan.weights = {0, 1, 0};
    traits.memory_bytes = uint64_t{16} << 30;
    traits.host_memory_bytes = uint64_t{64} << 30;
  }
  std::vector<CpuLinearShare> shares() {
    return balanced_linear_shares(
        hardware, model, weight_homes(/*host_visible=*/false, model, plan.weight_plan()), plan,
        footprint(model, plan, size, traits).layout, size.sequences, {});
  }
};

TEST_F(LinearSharesTest, OpsAreThoseOfALayerAndTheHead) {
  const auto ops = split_ops(model);
  ASSERT_EQ(ops.size(), 4U * static_cast<size_t>(model.spec.layer_count()) + 1);
  EXPECT_EQ(ops[0].shape, (SplitShape{DType::kF16, 3 * 4096, 4096}));
  EXPECT_EQ(ops[2].name, "mlp_up");
  EXPECT_EQ(ops[2].shape, (SplitShape{DType::kF16, 2 * 11008, 4096}));  // gate and up
  EXPECT_EQ(ops.back().name, "head");
}

// Checks equation 9 against a computation by hand.
TEST_F(LinearSharesTest, ByRatesBothEndTogether) {
  const auto found = shares();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].tokens, 1);
  EXPECT_TRUE(found[0].modules.empty());
  const SplitShape shape{DType::kF16, 11008, 4096};
  const double share = balanced_share(hardware, shape, 1);
  const double bytes = 2.0 * 11008 * 4096;
  const double cpu = linear_seconds(hardware.host, DType::kF16, 1, 11008.0 * 4096, bytes) /
                     hardware.cpu_beside_link,
               link = bytes / (hardware.link_beside_cpu * hardware.to_device.best());
  EXPECT_NEAR(share * cpu, (1 - share) * link, 1e-9);
  EXPECT_NEAR(found[0].share, share, 0.03);
}

// A measured module gets a share of its own; the others get the common share.
TEST_F(LinearSharesTest, WhatWasMeasuredHasItsOwn) {
  const SplitShape down{DType::kF16, 4096, 11008};
  hardware.splits = {{.shape = down, .tokens = 1, .cpu = {0, 3e-3}, .link = {0, 1e-3}}};
  const auto found = shares();
  ASSERT_FALSE(found.empty());
  EXPECT_NEAR(found[0].of("mlp_down"), 0.25, 0.011);
  EXPECT_GT(found[0].of("mlp_up"), 0.4);
  EXPECT_EQ(found[0].modules.size(), 1U);
}

// Weights on the device are not shared with the CPU.
TEST_F(LinearSharesTest, NothingInHostMemoryNothingToShare) {
  plan.weights = {1, 0, 0};
  EXPECT_TRUE(shares().empty());
}

}  // namespace
}  // namespace spillway
