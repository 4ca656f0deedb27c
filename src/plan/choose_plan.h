// SPDX-License-Identifier: Apache-2.0
// Decides where weights, KV and activations of a run live, or refuses the run with suggestions that
// would make it fit. Sessions and `spillway plan` both call this function, so they get the same
// answer.
#pragma once

#include "plan/plan_request.h"
#include "plan/resolved_plan.h"

namespace spillway {

// Throws kOutOfMemory, whose message has the suggestions, or kInvalidArgument for options that are
// impossible.
ResolvedPlan choose_plan(const PlanRequest& request);

// Returns the plan that options or a file set for a run of `size`, whether it fits or not.
Plan plan_as_given(const PlanRequest& request, const RunSize& size);

}  // namespace spillway
