// SPDX-License-Identifier: Apache-2.0
// Describes the weights of a step for pricing: the rows of each linear op on the device and on the
// CPU, and the segments that are streamed. Because layers are similar, a model of a hundred layers
// has few kinds of ops and segments, and each kind is priced once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/small_vector.h"
#include "base/tier.h"
#include "model/model.h"
#include "plan/block_schedule.h"
#include "plan/streaming_schedule.h"
#include "tensor/dtype.h"

namespace spillway {

// Rows of a matrix that are multiplied together.
struct WeightProduct {
  DType type = DType::kF16;
  double elements = 0, bytes = 0;
  bool operator==(const WeightProduct&) const = default;
};

// The products of an op.
using OpProducts = SmallVector<WeightProduct, 3>;

struct StepWeights {
  struct Linear {
    LinearFinish finish = LinearFinish::kStore;
    double activations = 0;  // elements per token that pass through an activation function
    bool is_head = false;
    OpProducts resident = {}, on_cpu = {};
    double cpu_rows = 0, columns = 0;
    double cpu_from_disk = 0;  // bytes, if no segment of the op is streamed
    bool operator==(const Linear&) const = default;
  };
  // A weight segment that is copied to the device.
  struct Segment {
    OpProducts products = {};
    double from_host = 0, from_disk = 0;  // bytes
    // Read at the same time, for rows that stay in host memory for the CPU.
    double cpu_from_disk = 0;
    bool pageable = false;  // true for quantized weights, which are not pinned
    bool operator==(const Segment&) const = default;
  };

  std::vector<Linear> linear_kinds;
  std::vector<Segment> segment_kinds;
  std::vector<int> linears;  // the kind of each op of all layers, in order; -1: it is not linear
  // [layers + 1]: the index of a layer's first op in `linears`; the head's list is last
  std::vector<int> first_of;
  std::vector<int> segments;  // the kind of each, in the order of use
  std::vector<StreamedShape> streamed;
  std::vector<int> slot_groups;  // by segment (StepShape)
  double streamed_bytes = 0;     // of all segments
  double largest_on_disk = 0;    // the most bytes that a segment has on disk
  double looked_up_bytes = 0;    // bytes of a token's embedding rows if those are in host memory
  bool uses_cpu = false;

  // Returns the kind of an op of a layer as devices run it (LoweredLayer::ops); -1: it is not
  // linear.
  int linear_kind(int layer, int op) const {
    return linears[static_cast<size_t>(first_of[static_cast<size_t>(layer)] + op)];
  }
};

// Describes the weights of a step. `homes` has the memory in which each of model.weights lives, as
// weight_homes() returns it.
StepWeights step_weights(const Model& model, const std::vector<Tier>& homes,
                         const StreamSplit& split);

}  // namespace spillway
