// SPDX-License-Identifier: Apache-2.0
// Who begins when, and how much KV memory must be there for it.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/policies.h"

namespace spillway {

// In which order requests begin.
enum class OrderKind : uint8_t {
  kFirstCome,
  kFair,      // clients that want more than there is get the same share of it
  kShortest,  // the shortest predicted answer: the least mean wait
};

struct SchedulingOptions {
  OrderKind order = OrderKind::kFirstCome;
  // A request begins where there will be room for what is predicted of it and the others, and who
  // went beyond what was predicted gives way first. Else where there is room for what is known.
  bool packs_predicted = false;
  // See PredictedAdmissionOptions; none: as it suits what giving way costs.
  std::optional<double> spare = {};
};

// Where who gives way is computed again. More of it costs more room than it saves work; where KV is
// kept, any does (docs/scheduling.md).
inline constexpr double kSpareWhereLost = 0.5;

// These policies. `keeps`: KV of preempted sequences.
SchedulingPolicies make_policies(const SchedulingOptions& options, const AdmissionPolicy& admission,
                                 bool keeps);

}  // namespace spillway
