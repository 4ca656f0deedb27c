// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_estimate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/resolved_plan.h"
#include "plan/step_prices.h"

namespace spillway {

// Each sequence is assumed to have half of the planned tokens: with drafts or without, a step reads
// the KV of that many.
DraftCosts estimate_draft_costs(const Session& session, const DraftOptions& drafts, int sequences) {
  if (!drafts.is_on()) return {};
  const Hardware& hardware = session.hardware();
  const Model& model = session.loaded->model;
  const int planned = std::min(sequences, session.plan().sequences.value_or(sequences));
  const ResolvedPlan resolved = session.resolved_for(session.planned_tokens(), planned);
  std::vector<std::pair<int, double>> steps;
  const auto add_step = [&](int count, int tokens_each) {
    const StepSize size{.sequences = count,
                        .tokens_each = tokens_each,
                        .keys = std::max(1.0, static_cast<double>(session.planned_tokens()) / 2),
                        .generates = true};
    const StepPrices prices(hardware, model, resolved.homes, resolved.plan, resolved.layout(),
                            size);
    steps.emplace_back(count * tokens_each, simulate_step(prices).seconds);
  };
  for (int count = 1; count < sequences; count += (count + 1) / 2) add_step(count, 1);
  const int most = std::max(sequences, rows_with_drafts(sequences, drafts.most_tokens()));
  for (int each = 1; steps.empty() || steps.back().first < most; each += (each + 1) / 2)
    add_step(sequences, each);
  return DraftCosts(std::move(steps));
}

}  // namespace spillway
