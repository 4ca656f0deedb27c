// SPDX-License-Identifier: Apache-2.0
// Which linear layers should be the first to live on the device, where CPU and GPU share those that
// do not: HeteGen's module scheduler (4.5). Plans ask for it by name; the even spread, which is the
// default, was the faster one (H200, Llama 13B in 8 GiB, one run each: 8.3 tokens/s, by gain 7.7).
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

// A plan with Residence::kByGain as one that names matrices: as many bytes of linear layers on the
// device, but of the ops that gain the most, as overrides, and shares of the others. Whole groups
// of all layers go first, the last one spread over them. `sequences` is how many decode together.
// Unchanged where host and device do not share the layers. Throws kInvalidArgument for a plan with
// overrides of its own or weights on disk.
Plan with_residence_by_gain(const Hardware& hardware, const Model& model, const Plan& plan,
                            int64_t sequences);

}  // namespace spillway
