// SPDX-License-Identifier: Apache-2.0
#include "plan/weight_homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/streaming_schedule.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

using testing::HasSubstr;

struct WeightHomesTest : testing::Test {
  // The model has 12 layers of six matrices.
  Model model = describe_dummy_model("opt-125m");

  // Returns the home of a weight by its name and layer.
  Tier home(const WeightPlan& plan, std::string_view name, int layer, bool host_visible = false,
            bool is_bias = false) const {
    const std::vector<Tier> homes = weight_homes(host_visible, model, plan);
    for (size_t i = 0; i < homes.size(); ++i) {
      const WeightSlot& slot = model.weights[i].slot;
      if (slot.name == name && slot.layer == layer && slot.is_bias == is_bias) return homes[i];
    }
    ADD_FAILURE() << "no such weight";
    return Tier::kDevice;
  }
  uint64_t bytes_of(std::string_view name) const {
    for (const BoundWeight& weight : model.weights) {
      if (weight.slot.name == name) return static_cast<uint64_t>(weight.bytes());
    }
    return 0;
  }
};

TEST_F(WeightHomesTest, NamedMatricesLiveWhereTheyAreToldAndTheLastWordCounts) {
  const WeightPlan plan{
      .overrides = {{.matrix = "mlp_down", .home = Tier::kDisk},
                    {.layers = {{0, 3}, {8, 8}}, .home = Tier::kHost},
                    {.layers = {{2, 2}}, .matrix = "key", .home = Tier::kDevice}}};
  EXPECT_EQ(home(plan, "mlp_down", 7), Tier::kDisk);
  EXPECT_EQ(home(plan, "mlp_up", 7), Tier::kDevice);
  EXPECT_EQ(home(plan, "mlp_down", 8), Tier::kHost);
  EXPECT_EQ(home(plan, "mlp_up", 3), Tier::kHost);
  EXPECT_EQ(home(plan, "key", 2), Tier::kDevice);
  EXPECT_EQ(home(plan, "key", 3, false, /*is_bias=*/true), Tier::kDevice) << "no matrix";
  EXPECT_EQ(home(plan, "mlp_up", 3, /*host_visible=*/true), Tier::kDevice);
  // An override can name an op with several matrices.
  const WeightPlan of_op{.overrides = {{.layers = {{1, 1}}, .matrix = "qkv", .home = Tier::kHost}}};
  for (const char* name : {"query", "key", "value"}) EXPECT_EQ(home(of_op, name, 1), Tier::kHost);
  EXPECT_EQ(home(of_op, "attention_out", 1), Tier::kDevice);
  EXPECT_EQ(home(plan, "mlp_down", 7, /*host_visible=*/true), Tier::kDisk);
}

TEST_F(WeightHomesTest, SharesAreOfMatricesThatAreNotNamed) {
  const WeightPlan plan{.shares = {0.5, 0.5, 0},
                        .overrides = {{.matrix = "mlp_down", .home = Tier::kDisk}}};
  const WeightBytes bytes =
      weight_bytes(gpu_traits(), model, weight_homes(false, model, plan), true);
  const uint64_t down = bytes_of("mlp_down"), layer = 12 * 768 * 768 * 2;
  EXPECT_EQ(bytes.disk, 12 * down);
  EXPECT_NEAR(static_cast<double>(bytes.host), 6.0 * static_cast<double>(layer - down), 2.5e6);
  EXPECT_TRUE(bytes.streams);
}

TEST_F(WeightHomesTest, OnlyLayersWithSomethingAwayStream) {
  const WeightPlan plan{.overrides = {{.layers = {{4, 5}}, .home = Tier::kHost}}};
  const WeightBytes bytes =
      weight_bytes(gpu_traits(), model, weight_homes(false, model, plan), true);
  const uint64_t layer = 12 * 768 * 768 * 2;
  EXPECT_EQ(bytes.host, 2 * layer);
  const auto homes = weight_homes(false, model, plan);
  const StreamingSchedule schedule =
      streaming_schedule(model, homes, {.slots = SlotContent::kLayers});
  EXPECT_EQ(schedule.slot_groups().back(), 1) << "two layers";
  EXPECT_EQ(slot_bytes(gpu_traits(), model, homes, {&schedule, 1}), kStreamSlotBytes + layer);
}

TEST_F(WeightHomesTest, WhatTheModelDoesNotHaveIsRefused) {
  const auto error = [&](WeightOverride entry) -> std::string {
    try {
      weight_homes(false, model, {.overrides = {{.home = Tier::kHost}, std::move(entry)}});
    } catch (const Error& refused) {
      EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
      return refused.what();
    }
    return "no error";
  };
  EXPECT_THAT(error({.layers = {{3, 12}}}), HasSubstr("overrides[1] of the plan names layer 12"));
  EXPECT_THAT(error({.matrix = "mlp_gate"}), HasSubstr("names a matrix that"));
}

}  // namespace
}  // namespace spillway
