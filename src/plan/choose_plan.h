// SPDX-License-Identifier: Apache-2.0
// Decides what goes where in a run, or refuses it and names what would make it fit. Sessions and
// `spillway plan` both ask this one function: the same question has one answer.
#pragma once

#include "plan/footprint.h"
#include "plan/plan.h"
#include "plan/plan_request.h"

namespace spillway {

struct ChosenPlan {
  Plan plan = {};
  bool by_hand = false;  // options or a file gave it
  RunSize size = {};
  Footprint needs = {};  // of the least that the run begins with
};

// Throws kOutOfMemory, naming what would make it fit, kInvalidArgument for options that cannot be.
ChosenPlan choose_plan(const PlanRequest& request);

}  // namespace spillway
