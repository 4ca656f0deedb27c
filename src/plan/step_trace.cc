// SPDX-License-Identifier: Apache-2.0
#include "plan/step_trace.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway {

const char* action_name(StepAction action) {
  switch (action) {
    case StepAction::kLoadWeights:
      return "load weights";
    case StepAction::kUseWeights:
      return "use weights";
    case StepAction::kLeaveWeights:
      return "leave weights";
    case StepAction::kEmbed:
      return "embed";
    case StepAction::kLoadRows:
      return "load rows";
    case StepAction::kTakeRows:
      return "take rows";
    case StepAction::kStoreRows:
      return "store rows";
    case StepAction::kDropRows:
      return "drop rows";
    case StepAction::kLoadKv:
      return "load KV";
    case StepAction::kProject:
      return "q, k, v";
    case StepAction::kStartOnHost:
      return "attention on the CPU";
    case StepAction::kAttend:
      return "attention";
    case StepAction::kAttendSwapped:
      return "attention to moved KV";
    case StepAction::kStoreKv:
      return "store KV";
    case StepAction::kJoinHost:
      return "join the CPU";
    case StepAction::kMultiply:
      return "multiply";
    case StepAction::kJoinLinear:
      return "join the CPU's rows";
    case StepAction::kAttentionOut:
      return "output of attention";
    case StepAction::kUp:
      return "up";
    case StepAction::kDown:
      return "down";
    case StepAction::kFinishLayer:
      return "end of the layer";
    case StepAction::kGather:
      return "gather";
    case StepAction::kHead:
      return "head";
  }
  fail(ErrorCode::kInternal, "an action without a name");
}

std::string trace_of_steps(const Hardware& hardware, const Model& model, const Plan& plan,
                           const RunLayout& layout, const StepSize& size) {
  using nlohmann::json;
  constexpr int kSteps = 3;
  constexpr double kMicroseconds = 1e6;
  const std::vector<Tier> homes = weight_homes(!hardware.has_device(), model, plan.weight_plan());
  const StepPrices prices(hardware, model, homes, plan, layout, size);
  const SimulatedSteps steps =
      simulate_steps(prices.shape(), kSteps, [&](const StepEvent& e) { return prices.of(e); });
  json events = json::array();
  for (int i = 0; i < kWorkerCount; ++i) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", i},
                      {"args", {{"name", worker_name(static_cast<Worker>(i))}}}});
  }
  for (const SimulatedEvent& done : steps.events) {
    for (int i = 0; i < kWorkerCount; ++i) {
      const auto w = static_cast<size_t>(i);
      if (done.end[w] <= done.begin[w]) continue;
      json arguments = json::object();
      if (done.event.layer >= 0) arguments["layer"] = done.event.layer;
      if (done.event.batch >= 0) arguments["micro-batch"] = done.event.batch;
      if (done.event.group >= 0) arguments["group"] = done.event.group;
      events.push_back({{"name", action_name(done.event.action)},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", i},
                        {"ts", done.begin[w] * kMicroseconds},
                        {"dur", (done.end[w] - done.begin[w]) * kMicroseconds},
                        {"args", arguments}});
    }
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump();
}

}  // namespace spillway
