// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduling_options.h"

#include <utility>

namespace spillway {

ChosenPolicies make_policies(const SchedulingOptions& options, const AdmissionPolicy& admission,
                             bool keeps) {
  ChosenPolicies chosen;
  SchedulingPolicies& policies = chosen.policies;
  switch (options.order) {
    case OrderKind::kFirstCome:
      policies.order = std::make_unique<FirstComeFirstServed>();
      break;
    case OrderKind::kFair:
      policies.order = std::make_unique<FairOrder>();
      break;
    case OrderKind::kShortest:
      policies.order = std::make_unique<ShortestPredictedFirst>();
      break;
    case OrderKind::kLongest:
      policies.order = std::make_unique<LongestPredictedFirst>();
      break;
  }
  if (options.packs_predicted) {
    policies.admission = std::make_unique<PredictedAdmission>(PredictedAdmissionOptions{
        .policy = admission, .spare = options.spare.value_or(keeps ? 0 : kSpareWhereLost)});
    policies.victim = std::make_unique<OutgrownGivesWay>();
  } else {
    policies.admission = std::make_unique<PlannedAdmission>(admission);
  }
  if (options.token_pace_s > 0) {
    auto paced =
        std::make_unique<PacedAdmission>(std::move(policies.admission), options.token_pace_s);
    chosen.pace = paced.get();
    policies.admission = std::move(paced);
  }
  return chosen;
}

}  // namespace spillway
