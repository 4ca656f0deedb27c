// SPDX-License-Identifier: Apache-2.0
// Computes which share of the weights in host memory the CPU multiplies there while the others are
// copied to the GPU. Both should finish together (HeteGen, equation 9), by the machine's rates, or
// by measurements of linear ops that CPU and GPU share (equation 10).
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

// A linear op of a layer, or the head, with its matrices stacked by rows. If they have several
// types, the op has the type of its largest matrix.
struct SplitOp {
  int layer = 0;  // layer_count() for the head
  std::string_view name = {};
  SplitShape shape = {};
  std::vector<size_t> weights = {};  // their indices in Model::weights
};
std::vector<SplitOp> split_ops(const Model& model);

// Returns the times of CPU and link for an op while both are busy: measured if there is a
// measurement, else computed from rates.
SplitCurve split_curve_of(const Hardware& hardware, const SplitShape& shape, double tokens);
// Returns the CPU's share with which both finish together, by rates alone. Measurements start
// there.
double balanced_share(const Hardware& hardware, const SplitShape& shape, double tokens);

// Returns a share for each number of tokens that steps of this plan have: a decoding step, a prompt
// chunk, and a few in between. It takes into account the CPU's attention and the KV on the link, as
// `predicted`, an estimate without these shares, has them. Returns none if the CPU has no time for
// it, or if no op's matrices are all in host memory or all on disk. `homes` has the memory in which
// each of the model's weights lives under the plan.
std::vector<CpuLinearShare> balanced_linear_shares(const Hardware& hardware, const Model& model,
                                                   std::span<const Tier> homes, const Plan& plan,
                                                   const RunLayout& layout, int64_t sequences,
                                                   const Prediction& predicted);

// Returns the bytes of weights per second that the CPU is expected to multiply under the plan in
// steps of `tokens` tokens; 0 if it has no share.
double expected_cpu_rate(const Hardware& hardware, const Model& model, std::span<const Tier> homes,
                         const Plan& plan, double tokens);

}  // namespace spillway
