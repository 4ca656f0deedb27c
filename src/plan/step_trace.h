// SPDX-License-Identifier: Apache-2.0
// Writes simulated steps as a Chrome trace, which shows what each worker does when. Perfetto and
// chrome://tracing open it.
#pragma once

#include <string>
#include <vector>

#include "plan/step_prices.h"

namespace spillway {

// Returns the trace of three consecutive steps of this size; the first one finds its first weights
// already loaded. `homes` has the memory in which each of the model's weights lives under the plan.
std::string trace_of_steps(const Hardware& hardware, const Model& model,
                           const std::vector<Tier>& homes, const Plan& plan,
                           const RunLayout& layout, const StepSize& size);

}  // namespace spillway
