// SPDX-License-Identifier: Apache-2.0
// What the reports of spillway bench have in common: the machine, the plan, what moved and waited.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/bench_run.h"
#include "engine/session.h"

namespace spillway {

// Model, device, types, plan, and what each tier holds at most.
nlohmann::json session_json(const SessionOptions& options, Session& session);
// Of each tier what the plan's footprint says of such a runner, and the most that there was since
// loading began: bytes that the engine takes, which are the same, and what kernels and libraries
// take of them besides, of which there is less.
nlohmann::json memory_json(Session& session, int64_t tokens, int64_t sequences);
nlohmann::json mean_and_max(const std::vector<double>& values);
// Bytes over each link in one phase, what that is a second, and what the device waited for.
nlohmann::json phase_json(const BenchPhase& phase);

// How busy each worker was in the phases of a run that was drawn, and inside the linear ops that
// CPU and GPU share.
nlohmann::json timeline_json(const Timeline& timeline, const BenchRun& run);

// The same for people, line by line.
void print_timeline(const nlohmann::json& timeline);
void print_phase(const char* name, const nlohmann::json& phase);
void print_tiers_and_tuning(const nlohmann::json& report);

}  // namespace spillway
