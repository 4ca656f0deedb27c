// SPDX-License-Identifier: Apache-2.0
#include "plan/step_weights.h"

#include <algorithm>

#include "plan/weight_homes.h"

namespace spillway {
namespace {

// The numbers of distinct values. Values repeat layer by layer: the one that followed the last
// value before is tried first.
template <class Value>
class Kinds {
 public:
  explicit Kinds(std::vector<Value>& kinds) : kinds_(kinds) {}

  int number_of(const Value& value) {
    int& guess = last_ < 0 ? first_ : next_[static_cast<size_t>(last_)];
    if (guess < 0 || kinds_[static_cast<size_t>(guess)] != value) {
      const auto found = std::ranges::find(kinds_, value);
      guess = static_cast<int>(found - kinds_.begin());
      if (found == kinds_.end()) {
        const int added = guess;
        kinds_.push_back(value);
        next_.push_back(-1);  // `guess` is not valid after this
        return last_ = added;
      }
    }
    return last_ = guess;
  }

 private:
  std::vector<Value>& kinds_;
  std::vector<int> next_;  // by kind: the one that came after it
  int first_ = -1, last_ = -1;
};

WeightProduct product_of(const Model& model, const MatrixRows& rows) {
  const BoundWeight& weight = model.weights[rows.weight];
  const auto count = static_cast<double>(rows.count);
  return {weight.dtype, count * static_cast<double>(weight.slot.cols),
          count * static_cast<double>(weight.bytes()) / static_cast<double>(weight.slot.rows)};
}

}  // namespace

StepWeights step_weights(const Model& model, const std::vector<Tier>& homes, const StreamCut& cut) {
  StepWeights all;
  const int layers = model.spec.layers;
  std::vector<StepWeights::Linear> linears(static_cast<size_t>(layers + 1) * kLinearGroups);
  const auto linear = [&](int layer, LinearGroup group) -> StepWeights::Linear& {
    return linears[static_cast<size_t>(layer) * kLinearGroups + static_cast<size_t>(group)];
  };
  for (size_t i = 0; i < linears.size(); ++i)
    linears[i].group = static_cast<LinearGroup>(i % kLinearGroups);
  const BoundWeight& head = head_of(model);
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightSlot& slot = weight.slot;
    const bool is_head = &weight == &head;
    if (slot.layer < 0 && homes[i] == Tier::kHost && slot.role != WeightRole::kHead)
      all.looked_up_bytes += static_cast<double>(weight.bytes()) / static_cast<double>(slot.rows);
    if (slot.is_vector() || (slot.layer < 0 && !is_head)) continue;
    if (homes[i] != Tier::kDevice) continue;
    linear(is_head ? layers : slot.layer, group_of(is_head ? WeightRole::kHead : slot.role))
        .resident.push_back({weight.dtype,
                             static_cast<double>(slot.rows) * static_cast<double>(slot.cols),
                             static_cast<double>(weight.bytes())});
  }
  const StreamOrder order = stream_order(model, homes, cut);
  all.uses_cpu = order.uses_cpu();
  all.slotfuls = order.slotfuls();
  all.segments.reserve(all.slotfuls.size());
  all.streamed.reserve(order.linears.size());
  Kinds<StepWeights::Segment> segment_kinds(all.segment_kinds);
  for (const StreamedLinear& streamed : order.linears) {
    StepWeights::Linear& of = linear(streamed.layer, streamed.group);
    double cpu_from_disk = 0;
    for (const MatrixRows& rows : streamed.on_cpu) {
      const WeightProduct product = product_of(model, rows);
      of.on_cpu.push_back(product);
      of.cpu_rows += static_cast<double>(rows.count);
      of.columns = static_cast<double>(model.weights[rows.weight].slot.cols);
      if (homes[rows.weight] == Tier::kDisk) cpu_from_disk += product.bytes;
    }
    if (streamed.pieces.empty()) of.cpu_from_disk = cpu_from_disk;
    for (const OpRows& rows_of : streamed.pieces) {
      StepWeights::Segment segment;
      segment.cpu_from_disk = cpu_from_disk / static_cast<double>(streamed.pieces.size());
      for (const MatrixRows& rows : rows_of) {
        const WeightProduct product = product_of(model, rows);
        (homes[rows.weight] == Tier::kDisk ? segment.from_disk : segment.from_host) +=
            product.bytes;
        segment.pageable = segment.pageable || is_quantized(product.type);
        segment.products.push_back(product);
      }
      all.streamed_bytes += segment.from_host + segment.from_disk;
      all.largest_on_disk = std::max(all.largest_on_disk, segment.from_disk);
      all.segments.push_back(segment_kinds.number_of(segment));
    }
    all.streamed.push_back(streamed_shape(streamed));
  }
  all.linears.reserve(linears.size());
  Kinds<StepWeights::Linear> linear_kinds(all.linear_kinds);
  for (const StepWeights::Linear& of : linears) all.linears.push_back(linear_kinds.number_of(of));
  return all;
}

}  // namespace spillway
