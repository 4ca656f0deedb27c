// SPDX-License-Identifier: Apache-2.0
// Says a plan in a few sentences: whether it fits, what lives where, and how fast it is estimated
// to be.
#pragma once

#include <optional>
#include <string>

#include "engine/planner.h"

namespace spillway {

// Returns three lines, each with its line break. `many` is the plan for as many requests as pay, if
// only one was planned.
std::string plan_headline(const Planner& planner, const FoundPlan& found,
                          const std::optional<FoundPlan>& many);

}  // namespace spillway
