// SPDX-License-Identifier: Apache-2.0
// Decides what goes where in a run, or refuses it and names what would make it fit. Sessions and
// `spillway plan` both ask this one function: the same question has one answer.
#pragma once

#include "plan/plan_request.h"
#include "plan/resolved_plan.h"

namespace spillway {

// Throws kOutOfMemory, naming what would make it fit, kInvalidArgument for options that cannot be.
ResolvedPlan choose_plan(const PlanRequest& request);

}  // namespace spillway
