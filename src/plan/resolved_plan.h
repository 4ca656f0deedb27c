// SPDX-License-Identifier: Apache-2.0
// A plan with everything that follows from it. plan/ makes it once; loading, runners, reports, the
// server and the journal of a batch job (serve/batch_journal.h) read it and compute none of it
// again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tier.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/expected_run.h"
#include "plan/footprint.h"
#include "plan/layer_swapping.h"
#include "plan/plan.h"
#include "plan/plan_context.h"
#include "plan/plan_request.h"
#include "plan/streaming_schedule.h"

namespace spillway {

// The most sequences that run concurrently.
struct MaxConcurrent {
  // Each has room for its longest KV, so none ever waits for memory.
  int64_t full_reservation = 1;
  // They share room for fewer sequences of full length, because most stay shorter. A sequence that
  // finds no free block waits or is preempted.
  int64_t over_commit = 1;
};

struct ResolvedPlan {
  Plan plan = {};  // passed back as a file, it resolves to the same again
  RunSize size = {};
  Footprint needs = {};          // the footprint of a run of `size`, with its layout
  std::vector<Tier> homes = {};  // by index in Model::weights
  // One schedule for each CPU share of the linear layers (the entries of plan.cpu_linear, by tokens
  // in a step), and one in which the CPU has no share.
  std::vector<StreamingSchedule> streaming = {};
  // How many layers' KV is swapped between host memory and the device to gain room
  // (--kv-expansion), as requested. size.most_swapped is the most layers that may be swapped as a
  // result.
  KvExpansion expansion = {};
  // The footprint of the smallest run with which the work can begin (ExpectedRun::least_tokens).
  Footprint least_needs = {};
  MaxConcurrent max_concurrent = {};
  bool by_hand = false;  // options or a file gave the plan

  const RunLayout& layout() const { return needs.layout; }
};

// Returns the plan with all other settings that a run of `size` depends on.
Plan completed(Plan plan, const RunSize& size, const PlanRequest& request);

// Resolves a plan for a run of `size`, which already has the number of swapped layers.
ResolvedPlan resolve(const Model& model, const Plan& plan, const RunSize& size,
                     const DeviceTraits& traits);

// The same within `budgets`, with the number of swapped layers that follows from `expansion`.
// `compress` selects the context's compressed model. Throws kInvalidArgument for an expansion that
// is impossible.
ResolvedPlan resolve(PlanContext& context, bool compress, const Plan& plan, const RunSize& size,
                     const DeviceTraits& traits, const Budgets& budgets,
                     const KvExpansion& expansion);

// Resolves the same plan for other numbers of tokens and sequences.
ResolvedPlan resolve_again(PlanContext& context, bool compress, const ResolvedPlan& resolved,
                           int64_t tokens, int64_t sequences, const DeviceTraits& traits,
                           const Budgets& budgets);

// Returns how many sequences of `run` may run concurrently under the plan.
MaxConcurrent max_concurrent_of(PlanContext& context, bool compress, const ResolvedPlan& resolved,
                                const ExpectedRun& run, const DeviceTraits& traits,
                                const Budgets& budgets);

}  // namespace spillway
