// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_request.h"

#include <algorithm>

namespace spillway {
namespace {

// The lengths of a chat are assumed if nothing is known of prompts and answers.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;

}  // namespace

Workload workload_of(const ExpectedRun& run, const RunSize& size) {
  const int64_t generated =
      run.generated > 0
          ? run.generated
          : std::clamp<int64_t>(kUsualAnswer, 1, std::max<int64_t>(1, size.tokens / 2));
  if (!run.answers.empty()) {
    Workload workload;
    const auto parts = static_cast<int64_t>(run.answers.size());
    const int64_t count = std::max<int64_t>(1, std::max(run.requests, size.sequences) / parts);
    for (const int64_t answer : run.answers) {
      const int64_t generate =
          std::clamp<int64_t>(answer, 1, std::max<int64_t>(1, size.tokens - 1));
      const int64_t most_prompt = std::max<int64_t>(1, size.tokens - generate);
      workload.groups.push_back({.count = count,
                                 .prompt = std::clamp<int64_t>(run.prompt, 1, most_prompt),
                                 .generate = generate});
    }
    return workload;
  }
  const int64_t prompt =
      run.prompt > 0 ? run.prompt : std::clamp<int64_t>(size.tokens - generated, 1, kUsualPrompt);
  return {{{.count = std::max(run.requests, size.sequences),
            .prompt = std::min(prompt, std::max<int64_t>(1, size.tokens - generated)),
            .generate = std::min(generated, size.tokens)}}};
}

DeviceTraits with_budgets(DeviceTraits traits, const Budgets& budgets) {
  if (!traits.host_visible) {
    traits.memory_bytes = budgets.device;
    traits.host_memory_bytes = budgets.host;
  } else if (budgets.host_is_limited) {
    traits.memory_bytes = budgets.host;
  }
  return traits;
}

Budgets within(Budgets budgets, const PlanMemory& plan) {
  if (plan.device) budgets.device = std::min(budgets.device, *plan.device);
  if (plan.host) {
    budgets.host = std::min(budgets.host, *plan.host);
    budgets.host_is_limited = true;
  }
  if (plan.disk) budgets.disk = std::min(budgets.disk, *plan.disk);
  return budgets;
}

Budgets careful(Budgets budgets) {
  constexpr uint64_t kFreeTenths = 9;
  if (!budgets.host_is_limited) budgets.host = budgets.host / 10 * kFreeTenths;
  return budgets;
}

}  // namespace spillway
