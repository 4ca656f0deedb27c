// SPDX-License-Identifier: Apache-2.0
// A question for a plan: what is to be run, on which machine, within which memory, and what
// somebody has decided already.
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

// Refers to the context, which must outlive it.
struct PlanRequest {
  PlanContext& context;     // the model and the machine
  bool compressed = false;  // plain matrices of the model are 4-bit groups
  // The device's traits with so much memory.
  std::function<DeviceTraits(const Budgets&)> traits;
  Budgets budgets;
  // The fields of every plan that options give.
  GivenFields given = {};
  // The plan by options, by a file or of a job that goes on: where it fits, nothing is searched.
  // Without one the planner decides.
  std::optional<Plan> fixed = {};
  // Options alone give `fixed`, so the planner completes it. A file or a job says all of a plan.
  bool by_options_alone = true;
  // A job that goes on has as many sequences at work as it had, unless `fixed` says how many.
  std::optional<int64_t> kept_at_once = {};
  ExpectedRun run = {};
  std::optional<Workload> workload = {};  // nothing: as `run` describes it
  KvType kv_type = KvType::kF16;
  float attention_topk = 0;  // 0: dense
  int chunk = 0;          // most tokens through a layer together, as options say; 0: `usual_chunk`
  int usual_chunk = 512;  // becomes smaller where memory is short
  int draft_tokens = 0;   // RunSize's
  KvExpansion expansion = {};
  bool lookup_drafts = false;  // where draft_tokens come from, as the plan says it
  // Weights may be pages of files; results must not depend on the other sequences; sequences may
  // wait for KV memory and be preempted.
  bool may_map = true, deterministic = false, may_preempt = false;
  Objective objective = Objective::kThroughput;
  std::optional<double> max_latency_s = {}, max_first_token_s = {};
  bool only_doubles = false;                     // SearchRequest::only_doubles
  std::function<void(double)> on_progress = {};  // SearchRequest::on_progress of each search
  // Called where the run is refused. Empty: nothing is suggested.
  std::function<FitLimits()> limits = {};
};

// The requests of such a run, as far as anything is known of them.
Workload workload_of(const ExpectedRun& run, const RunSize& size);

// A device's traits within these budgets.
DeviceTraits with_budgets(DeviceTraits traits, const Budgets& budgets);

// The budgets, none larger than the plan's.
Budgets within(Budgets budgets, const PlanMemory& plan);

// A plan takes nine tenths of the free host memory where no option limits it.
Budgets careful(Budgets budgets);

}  // namespace spillway
