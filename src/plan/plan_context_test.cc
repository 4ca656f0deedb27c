// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_context.h"

#include <gtest/gtest.h>

#include "model/known_models.h"
#include "plan/search.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct PlanContextTest : testing::Test {
  Hardware hardware = read_hardware("t4");
  Model model = describe_dummy_model("opt-1.3b");
  int asked = 0;  // calls for the hardware
  PlanContext context{model, false, gpu_traits(), [this]() -> const Hardware& {
                        ++asked;
                        return hardware;
                      }};
};

// Budgets, types of KV and requests differ between the searches that share a context.
TEST_F(PlanContextTest, SearchesThatShareWhatTheyComputeFindTheSamePlans) {
  for (const uint64_t device : {1 * kGiB, 2 * kGiB}) {
    for (const KvType type : {KvType::kF16, KvType::kInt4}) {
      for (const int64_t requests : {1, 8}) {
        DeviceTraits traits = gpu_traits(64 << 20);
        traits.memory_bytes = device;
        traits.host_memory_bytes = 16 * kGiB;
        SearchRequest request{.hardware = hardware,
                              .model = model,
                              .traits = traits,
                              .workload = {{{requests, 256, 32}}},
                              .budgets = {.device = device, .host = 16 * kGiB},
                              .size = {.kv_type = type}};
        const auto alone = search_plans(request);
        request.steps = &context.steps(false);
        const auto shared = search_plans(request);
        ASSERT_EQ(alone.empty(), shared.empty());
        if (alone.empty()) continue;
        EXPECT_EQ(plan_to_json(alone[0].plan), plan_to_json(shared[0].plan));
        EXPECT_EQ(alone[0].predicted.total_s(), shared[0].predicted.total_s());
      }
    }
  }
}

TEST_F(PlanContextTest, ItsPricesAreThoseOfThePlanAlone) {
  Plan plan;
  plan.weights = {0.5, 0.5, 0};
  const RunSize size{.tokens = 288, .sequences = 4};
  const Workload workload{{{4, 256, 32}}};
  DeviceTraits traits = gpu_traits();
  const Footprint needs = footprint(context.weights(false), plan, size, traits);
  EXPECT_EQ(needs.device.total(), footprint(model, plan, size, traits).device.total());
  EXPECT_EQ(asked, 0) << "nothing was priced";
  const Prediction found = context.price(plan, needs, size, workload, false);
  EXPECT_EQ(found.total_s(), predict(hardware, model, plan, needs, size, workload).total_s());
  EXPECT_GT(asked, 0);
}

TEST_F(PlanContextTest, TheCompressedModelIsMadeOnce) {
  const Model& compressed = context.model(true);
  EXPECT_EQ(&compressed, &context.model(true));
  EXPECT_LT(compressed.weight_bytes(), model.weight_bytes() / 2);
  EXPECT_EQ(&context.model(false), &model);
  // A model that is compressed already has no other variant.
  PlanContext again{compressed, true, gpu_traits(), [&]() -> const Hardware& { return hardware; }};
  EXPECT_EQ(&again.model(true), &compressed);
}

}  // namespace
}  // namespace spillway
