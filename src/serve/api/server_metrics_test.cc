// SPDX-License-Identifier: Apache-2.0
#include "serve/api/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace spillway {
namespace {

using testing::HasSubstr;
using testing::Not;

StepReport step_of(int64_t number, int running) {
  StepReport report;
  report.seconds = 0.5;
  report.stats.steps = number;
  report.state.running = running;
  return report;
}

TEST(ServerMetricsTest, RatesEndWithTheWork) {
  ServerMetrics metrics;
  StepReport busy = step_of(1, 2);
  busy.traffic = EngineTraffic{.seconds = 2, .to_gpu_bytes = 3000, .stalled_s = 1};
  metrics.step(busy);
  EXPECT_THAT(metrics.text(), HasSubstr(R"(spillway_link_bytes_per_second{link="to_gpu"} 1500)"));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_stall_share 0.5"));
  metrics.step(step_of(2, 2));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_stall_share 0.5")) << "it goes on";
  metrics.step(step_of(3, 0));
  EXPECT_THAT(metrics.text(), HasSubstr(R"(spillway_link_bytes_per_second{link="to_gpu"} 0)"));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_stall_share 0\n"));
  EXPECT_THAT(metrics.text(), HasSubstr(R"(spillway_link_bytes_total{link="to_gpu"} 3000)"));
}

TEST(ServerMetricsTest, TransfersAreShownByUseAndDirection) {
  ServerMetrics metrics;
  StepReport report = step_of(1, 1);
  report.traffic = EngineTraffic{.seconds = 1};
  report.traffic->transfers[static_cast<size_t>(TransferUse::kStoredKv)][static_cast<size_t>(
      LinkDirection::kToHost)] = {.bytes = 4096, .copies = 2, .busy_s = 0.25, .held_s = 0.5};
  metrics.step(report);
  metrics.step(report);  // sums, which do not grow by being told again
  const std::string labels = R"({direction="to_host",use="stored_kv"} )", text = metrics.text();
  EXPECT_THAT(text, HasSubstr("spillway_transfer_bytes_total" + labels + "4096\n"));
  EXPECT_THAT(text, HasSubstr("spillway_transfer_busy_seconds_total" + labels + "0.25\n"));
  EXPECT_THAT(text, HasSubstr("spillway_transfer_held_seconds_total" + labels + "0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr(R"(use="weights")")));
}

TEST(ServerMetricsTest, StepsWithTokensOfPromptsAreToldApart) {
  ServerMetrics metrics;
  StepReport prompt = step_of(1, 1);
  prompt.stats.prompt_steps = 1;
  metrics.step(prompt);
  StepReport decode = step_of(2, 1);
  decode.stats.prompt_steps = 1;
  metrics.step(decode);
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_step_seconds_count 2"));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_decode_step_seconds_count 1"));
}

TEST(ServerMetricsTest, LayersThatAreThereBeforeTheirStepAreCounted) {
  ServerMetrics metrics;
  StepReport report = step_of(1, 1);
  for (const int64_t early : {2, 3}) {
    report.stats.layer_swaps_ahead = 2 * early;
    report.stats.layer_swaps_early = early;
    metrics.step(report);
  }
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_kv_layer_swap_ahead_total 6\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_kv_layer_swap_early_total 3\n"));
}

TEST(ServerMetricsTest, WaitsForSwappedLayersAreCountedAndTimed) {
  ServerMetrics metrics;
  StepReport report = step_of(1, 1);
  report.stats.layer_swap_waits = 3;
  report.stats.layer_swap_waited_s = 0.25;
  metrics.step(report);
  report.stats.layer_swap_waits = 5;
  metrics.step(report);
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_kv_layer_swap_waits_total 5\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("spillway_kv_layer_swap_wait_seconds_total 0.25\n"));
}

TEST(ServerMetricsTest, OldNamesHaveTheValuesOfTheNewOnes) {
  ServerMetrics metrics;
  StepReport report = step_of(1, 1);
  report.state.swapped_layers = 5;
  report.stats.layer_swap_bytes = 4096;
  report.stats.predictions_exceeded = 3;
  report.stats.scheduling_s = 0.5;
  metrics.step(report);
  const std::string text = metrics.text();
  for (const char* name :
       {"spillway_kv_swapped_layers 5\n", "spillway_kv_layers_turning 5\n",
        "spillway_kv_layer_swap_bytes_total 4096\n", "spillway_kv_turn_bytes_total 4096\n",
        "spillway_predictions_exceeded_total 3\n", "spillway_outgrown_total 3\n",
        R"(spillway_prediction_seconds_total{part="scheduling"} 0.5)",
        R"(spillway_foresight_seconds_total{part="scheduling"} 0.5)"})
    EXPECT_THAT(text, HasSubstr(name));
}

}  // namespace
}  // namespace spillway
