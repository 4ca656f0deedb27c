// SPDX-License-Identifier: Apache-2.0
// Decides which linear layers should be the first to live on the device if CPU and GPU share those
// that do not: HeteGen's module scheduler (4.5). Plans request it by name. The even spread, which
// is the default, was faster (H200, Llama 13B in 8 GiB, one run each: 8.3 tokens/s, by gain 7.7).
#pragma once

#include <string_view>
#include <vector>

#include "model/model.h"
#include "plan/hardware.h"
#include "plan/plan.h"

namespace spillway {

// The gain of an op whose layers live on the device: the seconds of a step that they save, and
// their bytes.
struct ResidenceGain {
  std::string_view op = {};  // the op's name
  double bytes = 0;          // in all layers together
  // Equation 13: the time of both processors with the share at which they finish together.
  double computing = 0;
  double joining = 0;  // the time of giving work to the CPU and getting its results
  double per_byte() const { return bytes > 0 ? (computing + joining) / bytes : 0; }
};

// Returns the linear ops of the layers by their gain, the largest first.
std::vector<ResidenceGain> residence_gains(const Hardware& hardware, const Model& model,
                                           double tokens);

// Replaces Residence::kByGain in a plan by overrides that name matrices. As many bytes of linear
// layers are on the device as before, but those of the ops that gain the most; shares are left for
// the others. Ops go to the device with all their layers at first, and the last one with layers
// spread evenly. `sequences` is how many decode together. Returns the plan with the weights in the
// same memories if host and device do not share the layers. Throws kInvalidArgument for a plan with
// overrides of its own or with weights on disk.
Plan with_residence_by_gain(const Hardware& hardware, const Model& model, const Plan& plan,
                            int64_t sequences);

}  // namespace spillway
