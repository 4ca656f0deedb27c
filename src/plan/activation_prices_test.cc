// SPDX-License-Identifier: Apache-2.0
#include "plan/step_prices.h"

#include <gtest/gtest.h>

#include "plan/machine_traits.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

// Returns the seconds of all layers' mlp_up ops on the device.
double mlp_seconds(const Hardware& hardware, const std::string& name, int64_t tokens) {
  const Model model = describe_dummy_model(name);
  const Plan plan;
  const RunSize size{.tokens = 256, .sequences = 1, .micro_tokens = 512};
  const Footprint needs =
      footprint(model, plan, size, traits_of_machine(hardware, {.host = uint64_t{8} << 30}));
  const auto homes = weight_homes(true, model, plan.weight_plan());
  const StepPrices prices(hardware, model, homes, plan, needs.layout,
                          {.tokens_each = tokens, .generates = false});
  double seconds = 0;
  for (const StepEvent& event : schedule_step(prices.shape())) {
    if (event.kind == EventKind::kRun && event_name(*model.spec.lowered, event) == "mlp_up")
      seconds += prices.of(event)[Worker::kDevice];
  }
  return seconds;
}

TEST(ActivationPricesTest, ActivationsArePricedByTokensAndWidthWhereTheyWereMeasured) {
  Hardware hardware = read_hardware("ci");
  const double free = mlp_seconds(hardware, "smollm2-135m:q4_0", 128);
  const double free_relu = mlp_seconds(hardware, "opt-125m", 128);
  hardware.host.activations_per_s = 1e6;
  const ModelSpec spec = describe_dummy_model("smollm2-135m:q4_0").spec;
  EXPECT_NEAR(mlp_seconds(hardware, "smollm2-135m:q4_0", 128) - free,
              128.0 * static_cast<double>(spec.layer_count() * spec.ffn) / 1e6, 1e-6);
  EXPECT_DOUBLE_EQ(mlp_seconds(hardware, "opt-125m", 128), free_relu);
}

}  // namespace
}  // namespace spillway
