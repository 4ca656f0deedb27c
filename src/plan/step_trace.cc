// SPDX-License-Identifier: Apache-2.0
#include "plan/step_trace.h"

#include "plan/chrome_trace.h"
#include "plan/predict.h"

namespace spillway {

std::string trace_of_steps(const Hardware& hardware, const Model& model,
                           const std::vector<Tier>& homes, const Plan& plan,
                           const RunLayout& layout, const StepSize& size) {
  constexpr int kSteps = 3;
  const StepPrices prices(hardware, model, homes, plan, layout, size);
  const SimulatedSteps steps =
      simulate_steps(prices.shape(), kSteps, [&](const StepEvent& e) { return prices.of(e); });
  ChromeTrace trace;
  Prediction names;
  names.has_device = hardware.gpu.has_value();
  for (int i = 0; i < kWorkerCount; ++i) {
    const auto worker = static_cast<Worker>(i);
    if (names.has_worker(worker)) trace.add_lane(i, names.name_of(worker));
  }
  for (const SimulatedEvent& done : steps.events) {
    for (int i = 0; i < kWorkerCount; ++i) {
      const auto w = static_cast<size_t>(i);
      if (done.end[w] <= done.begin[w]) continue;
      const StepEvent& event = done.event;
      trace.add_span(
          i, event_name(*prices.shape().model, event), done.begin[w], done.end[w] - done.begin[w],
          {{"layer", event.layer}, {"micro-batch", event.batch}, {"group", event.group}});
    }
  }
  return trace.text();
}

}  // namespace spillway
