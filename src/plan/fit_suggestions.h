// SPDX-License-Identifier: Apache-2.0
// Names the options that would make a refused run fit: each is tried by arithmetic before it is
// named. Memory is named in the smallest size that works, and in a larger one where that makes the
// run much faster.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "plan/memory_fit.h"

namespace spillway {

// A run that may or may not fit.
struct FitTrial {
  RunSize size;
  Budgets budgets;
  bool compress = false;              // --compress-weights
  bool greedy = false;                // with greedy placement instead of the requested plan
  std::optional<TierShares> kv = {};  // --kv, if it differs from the request
};
using Fits = std::function<bool(const FitTrial&)>;

// These functions estimate the tokens per second of a run with a trial's memory, of the largest
// size that fits; 0 where none does. Without them nothing is said about speed.
struct FitSpeeds {
  std::function<double(const FitTrial&)> quick = {};    // with few sequences
  std::function<double(const FitTrial&)> planned = {};  // by the planner, as the run would be
};

// These limits say which options may be changed, and how far.
struct FitLimits {
  int64_t shortest_tokens = 0;        // a shorter --ctx makes no sense; 0: there is no --ctx option
  std::string sequences_option = {};  // the option for fewer sequences; empty: there is none
  std::string plan_option = {};       // the option that gave a plan; empty: none did
  bool compressible = false;          // the model has matrices that are not quantized
  bool has_device = false;            // there is device memory besides the host's
  // Budgets may grow up to these; 0: no option sets that budget.
  uint64_t host_bytes = 0, device_bytes = 0, disk_bytes = 0;
  // The memory of the machine that the plan is for; budgets may be larger. 0: it is not known.
  Budgets present = {};
  std::string machine = {};  // the machine's name
};

// Returns text such as "one of these makes it fit: --ctx 512, --kv-type int8, --host-memory
// 612MiB", or that no single option is enough. Options that change nothing, or too little, are not
// named. `fits` must be monotonic: if a trial fits, so does one with more memory, fewer tokens or
// fewer sequences.
std::string fit_suggestions(const FitTrial& refused, const FitLimits& limits, const Fits& fits,
                            const FitSpeeds& speeds = {});

}  // namespace spillway
