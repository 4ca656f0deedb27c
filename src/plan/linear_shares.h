// SPDX-License-Identifier: Apache-2.0
// How much of the weights in host memory the CPU multiplies there, while the others come to the
// GPU: so that both end together (HeteGen, equation 9).
#pragma once

#include <vector>

#include "model/model.h"
#include "plan/footprint.h"
#include "plan/hardware.h"
#include "plan/plan.h"
#include "plan/predict.h"

namespace spillway {

// For each number of tokens that steps have by this plan: of decoding, of a prompt's chunk, and of
// a few in between. What the CPU attends to and what KV takes of the link, by `predicted` without
// these shares, counts. Empty where the CPU has no time for it, or nothing is in host memory.
std::vector<CpuLinearShare> balanced_linear_shares(const Hardware& hardware, const Model& model,
                                                   const Plan& plan, const RunLayout& layout,
                                                   int64_t sequences, const Prediction& predicted);

}  // namespace spillway
