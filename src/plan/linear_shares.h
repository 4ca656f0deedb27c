// SPDX-License-Identifier: Apache-2.0
// How much of the weights in host memory the CPU multiplies there, while the others come to the
// GPU: so that both end together (HeteGen, equation 9), by rates, or by what was measured of such
// ops (equation 10).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "plan/footprint.h"
#include "plan/hardware.h"
#include "plan/plan.h"
#include "plan/predict.h"
#include "plan/split_curve.h"

namespace spillway {

// A linear op of a layer, or the head: its matrices one below the other. Of several types it has
// that of most bytes.
struct SplitOp {
  int layer = 0;  // as many as there are: the head
  std::string_view name = {};
  SplitShape shape = {};
  std::vector<size_t> weights = {};  // their numbers in Model::weights
};
std::vector<SplitOp> split_ops(const Model& model);

// What CPU and link take for an op, each beside the other: as measured, else by rates.
SplitCurve split_curve_of(const Hardware& hardware, const SplitShape& shape, double tokens);
// The CPU's share with which both end together, by rates alone: where measuring begins.
double balanced_share(const Hardware& hardware, const SplitShape& shape, double tokens);

// For each number of tokens that steps have by this plan: of decoding, of a prompt's chunk, and of
// a few in between. What the CPU attends to and what KV takes of the link, by `predicted` without
// these shares, counts. Empty where the CPU has no time for it, or nothing is in host memory.
// `homes`: of each of the model's weights, by the plan.
std::vector<CpuLinearShare> balanced_linear_shares(const Hardware& hardware, const Model& model,
                                                   std::span<const Tier> homes, const Plan& plan,
                                                   const RunLayout& layout, int64_t sequences,
                                                   const Prediction& predicted);

// Bytes of weights a second that the CPU is expected to multiply by the plan in steps of so many
// tokens; 0 where it has none.
double expected_cpu_rate(const Hardware& hardware, const Model& model, std::span<const Tier> homes,
                         const Plan& plan, double tokens);

}  // namespace spillway
