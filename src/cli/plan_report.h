// SPDX-License-Identifier: Apache-2.0
// Reports the plan that was found, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner.h"

namespace spillway {

struct PlanReport {
  FoundPlan best;
  // Set only if one request was planned (plan/frontier.h).
  std::optional<FoundPlan> as_many_as_pay = {};
  std::vector<std::string> warnings;
  std::vector<Suggestion> suggestions;
};

void print_plan(const Planner& planner, const PlanReport& report);
nlohmann::json plan_report_json(const Planner& planner, const PlanReport& report);
// Returns one line.
std::string describe_workload(const Planner& planner);

}  // namespace spillway
