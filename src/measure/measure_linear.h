// SPDX-License-Identifier: Apache-2.0
// Measures on a device which kind of kernel multiplies each shape of a model fastest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/tuning.h"
#include "runtime/model_weights.h"
#include "tensor/tensor_view.h"

namespace spillway {

struct MeasureOptions {
  double budget_s = 1.5;  // for all shapes together, approximately
  // Reports how many of all shapes are done.
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // if set to true, measuring soon throws kCancelled
  std::function<double()> seconds_now;        // a clock; by default the steady clock
};

// Matrices that a step multiplies with the same input.
using MatrixGroup = std::vector<WeightView>;

// Returns the matrices that a step multiplies with, layer by layer: q, k and v, and gate and up,
// are in one group if the device multiplies them together (one with memory of its own), else each
// has its own.
std::vector<MatrixGroup> multiplied_matrices(const Device& device, const ModelWeights& weights);

// Returns the inflection points of every distinct shape in `groups`; a group's rows count together.
// Matrices of one shape are used in rotation, so that they come from memory as in a step; on a CPU,
// large ones are used in pieces of whole groups of rows. The best of a few repeats counts, since a
// disturbance only makes a measurement longer. The device is left without a tuning table. Throws
// kOutOfMemory, kCancelled.
TuningTable measure_linear(Device& device, std::span<const MatrixGroup> groups,
                           const MeasureOptions& options = {});

}  // namespace spillway
