// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_estimate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/footprint.h"

namespace spillway {

// Drafts are further rows of the same matrices, which the cost model prices as those of a short
// prompt. It leaves out that each reads the sequence's KV, too, which rows of a sequence read
// together.
DraftCosts estimate_draft_costs(const Session& session, const DraftOptions& drafts, int sequences) {
  if (drafts.kind != DraftKind::kLookup) return {};
  const int most = std::max(sequences, rows_with_drafts(sequences, drafts.most_tokens()));
  std::vector<std::pair<int, double>> steps;
  for (int tokens = 1; steps.empty() || steps.back().first < most;
       tokens = std::min(most, tokens + (tokens + 1) / 2)) {
    const Workload prompt{{{.count = 1, .prompt = tokens, .generate = 1}}};
    steps.emplace_back(tokens, session.predict_run(prompt, 1).prefill_s);
  }
  return DraftCosts(std::move(steps));
}

}  // namespace spillway
