// SPDX-License-Identifier: Apache-2.0
// The weights of a step as it is priced: what each linear op has on the device and on the CPU, and
// the segments that stream. Layers are much alike, so that a model of a hundred layers has a few
// kinds of ops and segments: each kind is priced once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/tier.h"
#include "model/model.h"
#include "plan/block_schedule.h"
#include "plan/linear_group.h"
#include "plan/stream_order.h"
#include "tensor/dtype.h"

namespace spillway {

// Rows of a matrix that are multiplied together.
struct WeightProduct {
  DType type = DType::kF16;
  double elements = 0, bytes = 0;
  bool operator==(const WeightProduct&) const = default;
};

// Those of an op; as many matrices as an op has (OpRows).
class OpProducts {
 public:
  void push_back(const WeightProduct& product) { products_.at(count_++) = product; }
  bool empty() const { return count_ == 0; }
  const WeightProduct* begin() const { return products_.data(); }
  const WeightProduct* end() const { return products_.data() + count_; }
  bool operator==(const OpProducts&) const = default;

 private:
  std::array<WeightProduct, 3> products_ = {};
  size_t count_ = 0;
};

struct StepWeights {
  struct Linear {
    LinearGroup group = LinearGroup::kProject;
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
  std::vector<int> linears;   // [layers + 1, kLinearGroups]: the kind of each; the head's is last
  std::vector<int> segments;  // the kind of each, in the order of their use
  std::vector<StreamedShape> streamed;
  std::vector<int> slotfuls;   // by segment (StepShape)
  double streamed_bytes = 0;   // of all segments
  double largest_on_disk = 0;  // of a segment, bytes
  double looked_up_bytes = 0;  // of a token's rows of embeddings, in host memory
  bool uses_cpu = false;

  int linear_kind(int layer, LinearGroup group) const {
    return linears[static_cast<size_t>(layer) * kLinearGroups + static_cast<size_t>(group)];
  }
};

// `homes`: of each of model.weights, as weight_homes() says.
StepWeights step_weights(const Model& model, const std::vector<Tier>& homes, const StreamCut& cut);

}  // namespace spillway
