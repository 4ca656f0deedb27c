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

}  // namespace spillway
