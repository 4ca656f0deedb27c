// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduling_options.h"

#include <memory>

#include "schedule/predicted_policies.h"

namespace spillway {

SchedulingPolicies make_policies(const SchedulingOptions& options, const AdmissionPolicy& admission,
                                 bool keeps) {
  SchedulingPolicies policies;
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
  }
  if (options.packs_predicted) {
    policies.admission = std::make_unique<PredictedAdmission>(PredictedAdmissionOptions{
        .policy = admission, .spare = options.spare.value_or(keeps ? 0 : kSpareWhereLost)});
    policies.preemption = std::make_unique<PreemptExceeded>();
  } else {
    policies.admission = std::make_unique<PlannedAdmission>(admission);
  }
  return policies;
}

}  // namespace spillway
