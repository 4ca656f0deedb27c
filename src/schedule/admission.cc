// SPDX-License-Identifier: Apache-2.0
#include "schedule/admission.h"

#include <algorithm>
#include <cmath>

namespace spillway {

int staggered_admissions(int sequences, double mean_answer) {
  return static_cast<int>(std::ceil(sequences / std::max(1.0, mean_answer)));
}

AdmissionPolicy admission_policy(const Plan& plan, int sequences,
                                 std::optional<double> mean_answer) {
  AdmissionPolicy policy{.max_sequences = concurrent_sequences(plan, sequences)};
  switch (plan.schedule) {
    case ScheduleKind::kContinuous:
      break;
    case ScheduleKind::kZigzag:
    case ScheduleKind::kRow:
      policy.admit_in_blocks = policy.prompts_first = true;
      break;
    case ScheduleKind::kDiagonal:
      if (mean_answer) {
        policy.max_admissions = staggered_admissions(policy.max_sequences, *mean_answer);
      } else {
        policy.stagger = true;
      }
      break;
  }
  return policy;
}

}  // namespace spillway
