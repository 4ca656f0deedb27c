// SPDX-License-Identifier: Apache-2.0
// What a search for a plan is asked, and what it finds (plan/search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/fill.h"
#include "plan/footprint.h"
#include "plan/hardware.h"
#include "plan/memory_fit.h"
#include "plan/predict.h"

namespace spillway {

enum class Objective : uint8_t {
  kThroughput,  // generated tokens a second of the whole workload
  kLatency,     // of a request: its last token, with few beside it
};

// What is not the search's to choose, as somebody has: fields of a plan.
struct GivenFields {
  std::optional<TierShares> weights = {}, kv = {}, activations = {};
  std::optional<Tier> embeddings = {};
  std::optional<ScheduleKind> schedule = {};
  std::optional<AttentionPlace> attention = {};
  std::optional<double> cpu_attention = {};
  std::optional<std::vector<CpuLinearShare>> cpu_linear = {};
  std::optional<int> micro_batch = {}, micro_batches = {};
  bool overlap = true;

  void apply_to(Plan& plan) const;
};

struct SearchRequest {
  const Hardware& hardware;
  const Model& model;
  const DeviceTraits& traits;
  Workload workload;
  Budgets budgets;
  RunSize size;                              // chunk, type of KV; tokens and sequences are found
  std::optional<float> attention_topk = {};  // as a plan has it
  int smallest_chunk = kSmallestChunk;       // where that is faster than size.micro_tokens
  Objective objective = Objective::kThroughput;
  // Most sequences at once, 0: as many as there are requests. At least `least_sequences` of them.
  int64_t most_sequences = 0, least_sequences = 1;
  // Tries only the least number of sequences, its doubles and the most: a quick look at what such a
  // machine or setting could gain.
  bool only_doubles = false;
  std::optional<double> max_latency_s = {}, max_first_token_s = {};
  GivenFields given = {};
  // Who attends to a sequence must not depend on which others there are.
  bool same_for_every_sequence = false;
  // Homes of weights and prices of steps that other searches of this model on this machine have in
  // common with this one (plan/plan_context.h); it must outlive the search. Null: there are none.
  PricedSteps* steps = nullptr;
  // Called with the share of the search that is done, 0 to 1, every few milliseconds of it. It may
  // throw, which ends the search. Empty: no one watches.
  std::function<void(double)> on_progress = {};
};

struct FoundPlan {
  Plan plan = {};
  RunSize size = {};
  Footprint needs = {};
  Prediction predicted = {};
};

}  // namespace spillway
