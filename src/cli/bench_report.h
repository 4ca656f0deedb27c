// SPDX-License-Identifier: Apache-2.0
// The shared parts of the reports of spillway bench: machine, plan, traffic and stalls.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/bench_run.h"
#include "engine/session.h"

namespace spillway {

// Returns model, device, types, plan, and the peak memory of each tier.
nlohmann::json session_json(const SessionOptions& options, Session& session);
// Returns, for each tier, the footprint computed from the plan for a runner of `sequences`
// sequences of `tokens` tokens, beside the peak measured since loading began. Memory that the
// engine takes must be equal; the workspace of kernels and libraries comes on top, and less of it
// is measured than computed.
nlohmann::json memory_json(Session& session, int64_t tokens, int64_t sequences);
nlohmann::json mean_and_max(const std::vector<double>& values);
// Returns the bytes over each link in one phase, their rate, and the time the device stalled.
nlohmann::json phase_json(const BenchPhase& phase);

// Returns how busy each worker was in the phases of the run that the timeline has, and within the
// linear ops that CPU and GPU share.
nlohmann::json timeline_json(const Timeline& timeline, const BenchRun& run);

// These print the same as lines of text.
void print_timeline(const nlohmann::json& timeline);
void print_phase(const char* name, const nlohmann::json& phase);
void print_tiers_and_tuning(const nlohmann::json& report);

}  // namespace spillway
