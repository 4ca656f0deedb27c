// SPDX-License-Identifier: Apache-2.0
// Answers questions to the planner (plan/search.h) about a model, a machine and a workload: the
// best plan or the estimated time of a given one, and suggestions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/compute_options.h"
#include "engine/hardware_choice.h"
#include "engine/placement_options.h"
#include "plan/choose_plan.h"
#include "plan/search.h"

namespace spillway {

struct PlanQuestion {
  std::string model;  // as resolve_model() takes it
  // Sizes; "": all of the GPU's memory, the free host memory, no disk.
  std::string gpu_memory, host_memory, disk_memory;
  std::string objective = "throughput";  // or latency
  Workload workload = {};
  // true: requests beyond the model's context are left out. false: all requests have the same
  // lengths, and one that is too long is an error.
  bool mixed_lengths = false;
  // The prompt's length is a default, which is shortened to what the model has positions for.
  bool usual_prompt = false;
  int64_t max_concurrent = 0;            // 0: any number
  double max_latency = 0, max_ttft = 0;  // seconds; 0: no limit
  // As a plan file says it, which is then priced as a run would take it.
  bool deterministic = false, lookup_drafts = false;
  ComputeOptions compute = {};
  PlacementOptions placement = {};               // its memory sizes are not used
  std::function<void(double)> on_progress = {};  // SearchRequest::on_progress of each search
};

// A change that would make it faster, and by what factor.
struct Suggestion {
  std::string what;
  double gain = 1;
};

// Refers to the question and the machine, which must outlive it. Throws kInvalidArgument for a
// question that makes no sense, kOutOfMemory if nothing fits.
struct Planner {
  Planner(const PlanQuestion& question_, const ChosenHardware& machine_);

  SearchRequest request() const;
  // Returns the plan that a run of these requests would have on this machine, by the function that
  // runs call (plan/choose_plan.h). If options or a file give a plan that does not fit, estimates
  // it with as much of each memory as it takes; `warnings` say how much.
  FoundPlan answer(std::vector<std::string>& warnings) const;
  // Returns the same plan without fit suggestions; nullopt if nothing fits the budgets.
  std::optional<FoundPlan> try_best() const { return try_placed(placement()); }
  // Returns the memory in which each of the model's weights lives under a plan.
  const std::vector<Tier>& homes(const Plan& plan) const;
  // Returns the plan with every field set that a run needs to repeat it.
  Plan complete(const FoundPlan& found) const;
  bool by_hand() const { return question.placement.try_explicit_plan().has_value(); }

  // Adds warnings about limits that are not kept, and about what slows the plan.
  void warn(const FoundPlan& found, std::vector<std::string>& warnings) const;
  // Returns what would gain most: twice a budget, 4-bit weights, 4-bit KV, sparse attention.
  std::vector<Suggestion> suggestions(const FoundPlan& found) const;

  const PlanQuestion& question;
  const ChosenHardware& machine;
  const Hardware& hardware = machine.hardware;
  // The model, and what the searches for the question and for suggestions both use and compute
  // once.
  struct Shared;
  const std::shared_ptr<Shared> shared;
  const Model& model;
  Budgets budgets;
  DeviceTraits traits;  // with the memory that plans may take
  Workload workload;
  int64_t left_out = 0;  // requests beyond the model's context
  RunSize size;

 private:
  Planner(const PlanQuestion& question_, const ChosenHardware& machine_,
          std::shared_ptr<Shared> shared_);
  void check_lengths();
  DeviceTraits traits_within(const Budgets& within) const;
  PlanRequest placement() const;
  RunSize placement_size() const;  // of all requested sequences
  ResolvedPlan resolve_within(const Plan& plan, const RunSize& of, const Budgets& within) const;
  FoundPlan found(const ResolvedPlan& resolved) const;
  std::optional<FoundPlan> try_placed(PlanRequest asked) const;
  // Searches coarsely (SearchRequest::coarse).
  std::optional<FoundPlan> try_with_at_least(int64_t sequences) const;
  FoundPlan priced_beyond_budgets(std::vector<std::string>& warnings) const;
  FitLimits fit_limits() const;
};

}  // namespace spillway
