// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_shares.h"

#include <algorithm>
#include <cmath>

#include "tensor/attention_layout.h"

namespace spillway {
namespace {

double rounded(double share, double steps) { return std::floor(share * steps + 1e-6) / steps; }

}  // namespace

void PlanShares::set_weights(Plan& plan, double device, double host) const {
  if (request_.given.weights) {
    plan.weights = *request_.given.weights;
    return;
  }
  const double d = rounded(std::clamp(device, 0.0, 1.0), kWeightSteps);
  const double h = discrete_ ? rounded(std::clamp(host, 0.0, 1 - d), kWeightSteps) : 0;
  const double rest = 1 - d - h;
  // Without a disk, its share is 0.
  const bool disk =
      request_.budgets.disk > 0 && rest > 0.5 / kWeightSteps && device + host < 1 - 1e-6;
  plan.weights = discrete_ ? TierShares{d, disk ? h : 1 - d, disk ? rest : 0}
                           : TierShares{0, disk ? d : 1, disk ? rest : 0};
}

void PlanShares::set_kv(FoundPlan& found, double device, double host) const {
  if (request_.given.kv) {
    found.plan.kv = *request_.given.kv;
    return;
  }
  const double parts = kv_partitions(found);
  const double d = rounded(std::clamp(device, 0.0, 1.0), parts);
  const double h = discrete_ ? rounded(std::clamp(host, 0.0, 1 - d), parts) : 0;
  const double rest = 1 - d - h;
  const bool disk = request_.budgets.disk > 0 && rest > 0.5 / parts && device + host < 1 - 1e-6;
  found.plan.kv = discrete_ ? TierShares{d, disk ? h : 1 - d, disk ? rest : 0}
                            : TierShares{disk ? d : 1, 0, disk ? rest : 0};
}

double PlanShares::least_hidden_states(const FoundPlan& found, int64_t step_tokens) {
  return std::min(1.0,
                  static_cast<double>(found.size.max_running()) / static_cast<double>(step_tokens));
}

void PlanShares::set_hidden_states(FoundPlan& found, double device, int64_t step_tokens) {
  const double share = rounded(std::clamp(device, least_hidden_states(found, step_tokens), 1.0),
                               static_cast<double>(step_tokens));
  found.plan.activations = {share, 1 - share, 0};
}

double PlanShares::whole_sequences(double share, const FoundPlan& found) {
  if (found.needs.layout.partitioned) return std::clamp(share, 0.0, 1.0);
  const double away =
      std::max(1.0, std::round(found.plan.kv.host * static_cast<double>(found.size.sequences)));
  return std::clamp(std::round(share * away) / away, 0.0, 1.0);
}

double PlanShares::kv_partitions(const FoundPlan& found) {
  if (found.size.sequences > 1 || found.size.whole_sequences || found.size.same_partitions)
    return static_cast<double>(found.size.sequences);
  const int64_t runs = blocks_for_tokens(found.size.tokens) / kPartitionBlocks;
  return static_cast<double>(std::max<int64_t>(1, runs));
}

}  // namespace spillway
