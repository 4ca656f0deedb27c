// SPDX-License-Identifier: Apache-2.0
// Simulated steps as a Chrome trace: what each worker does when. Perfetto and chrome://tracing open
// it.
#pragma once

#include <string>
#include <vector>

#include "plan/step_prices.h"

namespace spillway {

// Three steps of this size, one after the other; the first finds its first weights there.
// `homes`: of each of the model's weights, by the plan.
std::string trace_of_steps(const Hardware& hardware, const Model& model,
                           const std::vector<Tier>& homes, const Plan& plan,
                           const RunLayout& layout, const StepSize& size);

}  // namespace spillway
