// SPDX-License-Identifier: Apache-2.0
// Options that decide when requests are admitted, and how much KV memory must be free for it.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/policies.h"

namespace spillway {

// The order in which requests are admitted.
enum class OrderKind : uint8_t {
  kFirstCome,
  kFair,      // clients that want more than there is get the same share of it
  kShortest,  // the shortest predicted answer: the least mean wait
};

struct SchedulingOptions {
  OrderKind order = OrderKind::kFirstCome;
  // true: a request is admitted if there will be room for its predicted length and the others', and
  // a sequence that exceeded its prediction is preempted first. false: it is admitted if there is
  // room for the lengths that are known.
  bool packs_predicted = false;
  // See PredictedAdmissionOptions; not set: chosen by what preemptions cost.
  std::optional<double> spare = {};
};

// The spare room if preempted sequences are computed again: more of it costs more room than it
// saves work. If their KV is kept, any spare room costs more (docs/scheduling.md).
inline constexpr double kSpareWhereLost = 0.5;

// Makes these policies. `keeps`: whether the KV of preempted sequences is kept.
SchedulingPolicies make_policies(const SchedulingOptions& options, const AdmissionPolicy& admission,
                                 bool keeps);

}  // namespace spillway
