// SPDX-License-Identifier: Apache-2.0
// Options that decide where weights, KV and activations go and how steps run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plan/layer_swapping.h"
#include "plan/plan.h"
#include "plan/plan_request.h"

namespace spillway {

struct PlacementOptions {
  std::string host_memory;  // "" = what is free
  std::string disk_memory = "0";
  std::string disk_dir;  // "" = the folder for temporary files
  std::vector<std::string> plans;
  std::optional<Plan> kept;  // the plan of a resumed job: used if no option gives another
  std::string weights, embeddings, kv, activations;  // "" = as the plan says
  std::string schedule, attention;
  int micro_batch = 0;
  int micro_batches = 0;
  double cpu_attention = -1;  // percent; -1: not given
  std::string pin_memory;     // "": as much as the system allows
  std::string cpu_linear;     // "66" or "1:66,64:50"
  bool no_overlap = false;
  // How many layers are swapped, so that their KV lives in host memory and is on the device only
  // for their part of a step: "off", "auto" or a number; "" = as the plan says or, where it says
  // nothing, `usual_kv_expansion`.
  std::string kv_expansion, usual_kv_expansion = "off";

  // Returns the plan that file number `which` or --weights, --kv and the like give, or nullopt: the
  // planner decides.
  std::optional<Plan> try_explicit_plan(size_t which = 0) const;
  // Returns what applies to every plan: which share of weights, KV and activations each memory
  // holds, the schedule, overlap, micro-batches.
  GivenFields given() const;
  // Sets what these options decide of a request for a plan; `which` of the plan files is used.
  void constrain(PlanRequest& request, size_t which = 0) const;
  // Returns the options that give a plan, as "--weights and --kv"; empty: none does.
  std::string plan_options() const;
  // For a machine without a GPU: returns a line for each of these options, and --gpu-memory, that
  // needs one.
  std::vector<std::string> without_gpu(const std::string& gpu_memory) const;
  // Throws kInvalidArgument for what is not a size.
  uint64_t disk_bytes() const;
  uint64_t pinned_bytes() const;  // at most
  std::filesystem::path disk_folder() const;
  // Takes what these options leave open from the first plan of a command.
  void take_from(const Plan& plan);
  // Returns the bytes of memory that a plan file allows; nullopt: as many as there are.
  std::optional<PlanMemory> memory_of_plan(size_t which = 0) const;
  // Returns how many layers --kv-expansion requests to be swapped. Throws kInvalidArgument if it is
  // neither a word nor a number.
  KvExpansion expansion() const;
};

// Parses a size such as "16GiB" into bytes. `option` is named in errors.
uint64_t parse_memory(const std::string& text, const char* option);

}  // namespace spillway
