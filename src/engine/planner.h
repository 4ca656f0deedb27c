// SPDX-License-Identifier: Apache-2.0
// What people ask the planner (plan/search.h): a model, a machine and a workload; the best plan or
// the price of a given one, and advice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/compute_options.h"
#include "engine/hardware_choice.h"
#include "engine/placement_options.h"
#include "plan/search.h"

namespace spillway {

struct PlanQuestion {
  std::string model;                                 // as resolve_model() takes it
  std::string gpu_memory, host_memory, disk_memory;  // "": what the machine has, most of it, none
  std::string objective = "throughput";              // or latency
  Workload workload = {};
  // Requests beyond the model's context are left out; false: all are alike, and none is.
  bool mixed_lengths = false;
  int64_t most_at_once = 0;              // 0: any number
  double max_latency = 0, max_ttft = 0;  // seconds; 0: no limit
  ComputeOptions compute = {};
  PlacementOptions placement = {};  // without memories
};

// What would make it faster, by how much.
struct Suggestion {
  std::string what;
  double gain = 1;
};

// Refers to the question and the machine, which must outlive it. Throws kInvalidArgument for a
// question that makes no sense, kOutOfMemory where nothing fits.
struct Planner {
  Planner(const PlanQuestion& question_, const ChosenHardware& machine_);

  SearchRequest request() const;
  FoundPlan best() const;
  // A plan that was given, by its price on this machine; where it does not fit, on one that has as
  // much of the memory that is too small as it takes. `warnings` say of which.
  FoundPlan priced(const Plan& plan, std::vector<std::string>& warnings) const;
  // In one line: the smallest budgets that work.
  [[noreturn]] void refuse() const;
  // With all that a run needs to be this one.
  Plan complete(const FoundPlan& found) const;

  // Limits that are not kept, and what in a plan hurts.
  void warn(const FoundPlan& found, bool given, std::vector<std::string>& warnings) const;
  // What would gain most: twice a budget, 4-bit weights, 4-bit KV, sparse attention.
  std::vector<Suggestion> suggestions(const FoundPlan& found) const;

  const PlanQuestion& question;
  Model model;
  const ChosenHardware& machine;
  const Hardware& hardware = machine.hardware;
  Budgets budgets;
  DeviceTraits traits;
  Workload workload;
  int64_t left_out = 0;  // requests beyond the model's context
  RunSize size;

 private:
  void leave_out_long_requests();
  // The smallest of a budget with which something is found, to a sixteenth of a GiB; nothing where
  // there is none up to 64 times as much.
  std::optional<uint64_t> smallest(uint64_t Budgets::*budget) const;
};

}  // namespace spillway
