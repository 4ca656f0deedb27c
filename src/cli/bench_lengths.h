// SPDX-License-Identifier: Apache-2.0
// spillway bench --lengths: runs requests of mixed lengths by the plan's schedule.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "cli/request_lengths.h"
#include "engine/session.h"

namespace spillway {

struct LengthsWorkload {
  std::span<const RequestLengths> lengths;
  int batch = 1;  // most concurrent sequences
  int warm_up = 0;
  int repeat = 1;
};

// Runs the workload and reports the median run. Requests beyond the model's context are left out
// and counted. Throws kInvalidArgument if none is left, kCancelled when interrupted.
nlohmann::json bench_lengths(const SessionOptions& options, Session& session,
                             const LengthsWorkload& workload);
void print_lengths_report(const nlohmann::json& report);

}  // namespace spillway
