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
  bool by_rule = false;               // without the plan that was asked for
  std::optional<TierShares> kv = {};  // --kv, where that differs from what was asked for
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
  int64_t shortest_tokens = 0;        // a shorter --ctx makes no sense; 0: there is no --ctx
  std::string sequences_option = {};  // how to ask for fewer; empty: there is no way
  std::string plan_option = {};       // what asked for a plan; empty: nothing did
  bool compressible = false;          // there are plain matrices
  bool has_device = false;            // memory apart from the host's
  // Budgets up to these. 0: not by an option.
  uint64_t host_bytes = 0, device_bytes = 0, disk_bytes = 0;
  // The memory that the machine of a plan has, where budgets may be larger; 0: not known.
  Budgets present = {};
  std::string machine = {};  // its name
};

// "one of these makes it fit: --ctx 512, --kv-type int8, --host-memory 612MiB", or that nothing by
// itself does. Options that change nothing, or not enough, are not named. `fits` should be true for
// more memory, fewer tokens or fewer sequences wherever it is true for less, more and more.
std::string fit_suggestions(const FitTrial& refused, const FitLimits& limits, const Fits& fits,
                            const FitSpeeds& speeds = {});

}  // namespace spillway
