// SPDX-License-Identifier: Apache-2.0
// spillway bench --lengths: requests of mixed lengths through the engine, by the plan's schedule.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "cli/request_lengths.h"
#include "cli/session.h"

namespace spillway {

// At most `batch` sequences at once, the longest of `longest_total` tokens; the report is of the
// median of `repeat` runs. Requests beyond the model's context are left out and counted. Throws
// kInvalidArgument where none is left, kCancelled when interrupted.
nlohmann::json bench_lengths(const SessionOptions& options, Session& session,
                             std::span<const RequestLengths> lengths, int64_t longest_total,
                             int batch, int repeat);
void print_lengths_report(const nlohmann::json& report);

}  // namespace spillway
