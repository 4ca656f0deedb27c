// SPDX-License-Identifier: Apache-2.0
// The request for a search and the plan that it finds (plan/search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/footprint.h"
#include "plan/greedy_placement.h"
#include "plan/hardware.h"
#include "plan/memory_fit.h"
#include "plan/predict.h"

namespace spillway {

enum class Objective : uint8_t {
  kThroughput,  // generated tokens per second of the whole workload
  kLatency,     // time until a request's last token, with few concurrent ones
};

// Fields of a plan that were set by options or a file, so that the search may not choose them.
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
  RunSize size;  // chunk and KV type; the search finds tokens and sequences
  std::optional<float> attention_topk = {};  // as in a plan
  // The smallest chunk that may be tried in place of size.micro_tokens.
  int smallest_chunk = kSmallestChunk;
  Objective objective = Objective::kThroughput;
  // The most and the fewest concurrent sequences. `most_sequences` 0: as many as there are
  // requests.
  int64_t most_sequences = 0, least_sequences = 1;
  // Makes a quick estimate of what a machine or setting could gain: only the least number of
  // sequences, its doubles and the most are tried, fewer plans are simulated, and they are improved
  // by large changes alone.
  bool coarse = false;
  std::optional<double> max_latency_s = {}, max_first_token_s = {};
  GivenFields given = {};
  // The processor that attends to a sequence must not depend on the other sequences.
  bool same_for_every_sequence = false;
  // The memories in which weights live, and prices of steps, that this search shares with other
  // searches of this model on this machine (plan/plan_context.h); they must outlive the search.
  // Null: the search has its own.
  PricedSteps* steps = nullptr;
  // Called with the share of the search that is done, 0 to 1, every few milliseconds. It may throw,
  // which ends the search. Empty: progress is not reported.
  std::function<void(double)> on_progress = {};
};

struct FoundPlan {
  Plan plan = {};
  RunSize size = {};
  Footprint needs = {};
  Prediction predicted = {};
};

}  // namespace spillway
