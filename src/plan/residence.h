// SPDX-License-Identifier: Apache-2.0
// Which linear layers should be the first to live on the device, where CPU and GPU share those that
// do not: HeteGen's module scheduler (4.5).
#pragma once

#include <string_view>
#include <vector>

#include "model/model.h"
#include "plan/hardware.h"
#include "plan/plan.h"

namespace spillway {

// What the device's memory gains by a byte of these layers, in seconds of a step.
struct ResidenceGain {
  std::string_view op = {};  // its name
  double bytes = 0;          // of all layers
  double computing = 0;      // equation 13: what both take for it by the share at which they meet
  double joining = 0;        // and what handing over to the CPU and back takes besides
  double per_byte() const { return bytes > 0 ? (computing + joining) / bytes : 0; }
};

// The linear ops of the layers by their gain, the largest first.
std::vector<ResidenceGain> residence_gains(const Hardware& hardware, const Model& model,
                                           double tokens);

// The same plan, as many bytes on the device, but of the layers that gain the most: overrides for
// them, and shares for the others. Whole groups of all layers, the last one spread over them. As it
// was where the plan has overrides of its own, or nothing is shared between device and host.
// `sequences`: that decode together.
Plan with_residence_by_gain(const Hardware& hardware, const Model& model, const Plan& plan,
                            int64_t sequences);

// A plan whose predicted seconds are this share of another's is the better one, whatever was
// guessed: H200, Llama 13B in 8 GiB, what gains most resident 7.7 tokens/s, spread evenly 8.3
// (one run each).
inline constexpr double kSurelyBetter = 0.97;

// What overrides and shares come to: of the bytes of all layers' matrices.
TierShares placed_shares(const Model& model, const Plan& plan, bool has_device = true);

}  // namespace spillway
