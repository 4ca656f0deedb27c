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
  double budget_s = 1.5;  // about this long for all shapes together
  // Shapes done, of how many.
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // set to true: measuring throws kCancelled soon
  std::function<double()> seconds_now;        // a clock; none: the steady one
};

// Matrices that a step multiplies with the same input.
using MatrixGroup = std::vector<WeightView>;

// What a step multiplies with, layer by layer: q, k and v, and gate and up, together where the
// device takes them so (one whose memory is its own), else each by itself.
std::vector<MatrixGroup> multiplied_matrices(const Device& device, const ModelWeights& weights);

// The inflection points of every distinct shape in `groups`; a group's rows count together.
// Matrices of one shape are taken in turn, so that they come from memory as they do in a step;
// large ones on a CPU in pieces of whole groups of rows. The best of a few repeats counts: what
// disturbs a measurement makes it longer. The device is left without a tuning table. Throws
// kOutOfMemory, kCancelled.
TuningTable measure_linear(Device& device, std::span<const MatrixGroup> groups,
                           const MeasureOptions& options = {});

}  // namespace spillway
