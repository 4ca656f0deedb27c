// SPDX-License-Identifier: Apache-2.0
// Decides what goes where in a run, or refuses it and names what would make it fit. Sessions and
// `spillway plan` both ask this one function: the same question has one answer.
#pragma once

#include <functional>
#include <optional>

#include "engine/expected_run.h"
#include "engine/fit_suggestions.h"
#include "engine/placement_options.h"
#include "plan/memory_fit.h"
#include "plan/plan_context.h"
#include "plan/predict.h"
#include "plan/search.h"

namespace spillway {

// Refers to a context and options that must outlive it.
struct PlacementRequest {
  PlanContext& context;     // the model and the machine
  bool compressed = false;  // plain matrices of the model are 4-bit groups
  // The device's traits with so much memory.
  std::function<DeviceTraits(const Budgets&)> traits;
  Budgets budgets;
  const PlacementOptions& options;
  size_t which = 0;  // of the options' plan files
  ExpectedRun run = {};
  std::optional<Workload> workload = {};  // nothing: as `run` describes it
  KvType kv_type = KvType::kF16;
  float attention_topk = 0;  // 0: dense
  int chunk = 0;          // most tokens through a layer together, as options say; 0: `usual_chunk`
  int usual_chunk = 512;  // becomes smaller where memory is short
  int draft_tokens = 0;   // RunSize's
  bool may_map = true, deterministic = false;
  Objective objective = Objective::kThroughput;
  std::optional<double> max_latency_s = {}, max_first_token_s = {};
  bool only_doubles = false;                     // SearchRequest::only_doubles
  std::function<void(double)> on_progress = {};  // SearchRequest::on_progress of each search
  // Asked for where the run is refused. Empty: nothing is suggested.
  std::function<FitLimits()> limits = {};
};

struct RunPlacement {
  Plan plan = {};
  bool by_hand = false;  // as options or a file say
  RunSize size = {};
  Footprint needs = {};  // of the least that the run begins with
};

// Throws kOutOfMemory, naming what would make it fit, kInvalidArgument for options that cannot be.
RunPlacement place_run(const PlacementRequest& request);

// The requests of such a run, as far as anything is known of them.
Workload workload_of(const ExpectedRun& run, const RunSize& size);

// A device's traits within these budgets.
DeviceTraits with_budgets(DeviceTraits traits, const Budgets& budgets);

// Of host memory that no option limits, a plan takes nine tenths of what is free.
Budgets careful(Budgets budgets);

}  // namespace spillway
