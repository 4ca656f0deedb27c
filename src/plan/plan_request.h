// SPDX-License-Identifier: Apache-2.0
// A request for a plan: what is to run, on which machine, within which memory, and which choices
// are already made.
#pragma once

#include <functional>
#include <optional>

#include "plan/expected_run.h"
#include "plan/fit_suggestions.h"
#include "plan/layer_swapping.h"
#include "plan/memory_fit.h"
#include "plan/plan_context.h"
#include "plan/search_request.h"

namespace spillway {

// Keeps a reference to the context, which must outlive it.
struct PlanRequest {
  PlanContext& context;     // the model and the machine
  bool compressed = false;  // plain matrices of the model are 4-bit groups
  // Returns the device's traits within these budgets.
  std::function<DeviceTraits(const Budgets&)> traits;
  Budgets budgets;
  // Plan fields that options set; every plan must have them.
  GivenFields given = {};
  // A plan from options, from a file, or of a job that is resumed: if it fits, nothing is searched.
  // Without one the planner decides.
  std::optional<Plan> fixed = {};
  // `fixed` comes from options alone, so the planner completes it. A file or a job gives a complete
  // plan.
  bool by_options_alone = true;
  // The number of concurrent sequences that a resumed job had, which it keeps unless `fixed` has
  // another.
  std::optional<int64_t> kept_max_concurrent = {};
  ExpectedRun run = {};
  std::optional<Workload> workload = {};  // nullopt: the one that `run` describes
  KvType kv_type = KvType::kF16;
  float attention_topk = 0;  // 0: dense
  // The most tokens that go through a layer together, by an option; 0: `usual_chunk`.
  int chunk = 0;
  int usual_chunk = 512;  // the default, which is lowered if memory is short
  int draft_tokens = 0;   // RunSize::draft_tokens
  KvExpansion expansion = {};
  bool lookup_drafts = false;  // the drafts come from prompt look-up, as the plan's file then says
  // `may_map`: weights may be mapped file pages. `deterministic`: results must not depend on the
  // other sequences. `may_preempt`: sequences may wait for KV memory and be preempted.
  bool may_map = true, deterministic = false, may_preempt = false;
  Objective objective = Objective::kThroughput;
  std::optional<double> max_latency_s = {}, max_first_token_s = {};
  bool coarse = false;                           // SearchRequest::coarse
  std::function<void(double)> on_progress = {};  // SearchRequest::on_progress of each search
  // Called if the run is refused. Empty: nothing is suggested.
  std::function<FitLimits()> limits = {};
};

// Returns the requests of `run`, with usual lengths for those that are not known.
Workload workload_of(const ExpectedRun& run, const RunSize& size);

// Returns a device's traits within these budgets.
DeviceTraits with_budgets(DeviceTraits traits, const Budgets& budgets);

// Returns the budgets, none of them larger than the plan's.
Budgets within(Budgets budgets, const PlanMemory& plan);

// Returns the budgets with nine tenths of the free host memory if no option limits it.
Budgets careful(Budgets budgets);

}  // namespace spillway
