// SPDX-License-Identifier: Apache-2.0
// The weights of a step as it is priced: what each linear op has on the device and on the CPU, and
// the segments that stream. Layers are much alike, so that a model of a hundred layers has a few
// kinds of ops and segments: each kind is priced once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/small_vector.h"
#include "base/tier.h"
#include "model/model.h"
#include "plan/block_schedule.h"
#include "plan/stream_order.h"
#include "tensor/dtype.h"

namespace spillway {

// Rows of a matrix that are multiplied together.
struct WeightProduct {
  DType type = DType::kF16;
  double elements = 0, bytes = 0;
  bool operator==(const WeightProduct&) const = default;
};

// Those of an op.
using OpProducts = SmallVector<WeightProduct, 3>;

struct StepWeights {
  struct Linear {
    LinearFinish finish = LinearFinish::kStore;
    double activations = 0;  // elements of a token that an activation is computed of
    bool is_head = false;
    OpProducts resident = {}, on_cpu = {};
    double cpu_rows = 0, columns = 0;
    double cpu_from_disk = 0;  // bytes, where nothing else of it streams
    bool operator==(const Linear&) const = default;
  };
  // A segment that comes to the device.
  struct Segment {
    OpProducts products = {};
    double from_host = 0, from_disk = 0;  // bytes
    double cpu_from_disk = 0;             // that come at the same time, and stay in host memory
    bool pageable = false;                // quantized weights are not pinned
    bool operator==(const Segment&) const = default;
  };

  std::vector<Linear> linear_kinds;
  std::vector<Segment> segment_kinds;
  std::vector<int> linears;   // the kind of each op of a layer, in order; -1: it is not linear
  std::vector<int> first_of;  // [layers + 1]: where those of a layer begin; the head's are last
  std::vector<int> segments;  // the kind of each, in the order of their use
  std::vector<StreamedShape> streamed;
  std::vector<int> slotfuls;   // by segment (StepShape)
  double streamed_bytes = 0;   // of all segments
  double largest_on_disk = 0;  // of a segment, bytes
  double looked_up_bytes = 0;  // of a token's rows of embeddings, in host memory
  bool uses_cpu = false;

  // Of an op of a layer as devices run it (LoweredLayer::ops); -1: it is not linear.
  int linear_kind(int layer, int op) const {
    return linears[static_cast<size_t>(first_of[static_cast<size_t>(layer)] + op)];
  }
};

// `homes`: of each of model.weights, as weight_homes() says.
StepWeights step_weights(const Model& model, const std::vector<Tier>& homes, const StreamCut& cut);

}  // namespace spillway
