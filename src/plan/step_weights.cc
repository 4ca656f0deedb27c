// SPDX-License-Identifier: Apache-2.0
#include "plan/step_weights.h"

#include <algorithm>
#include <optional>

#include "plan/weight_homes.h"

namespace spillway {
namespace {

// Numbers distinct values. Values repeat layer by layer, so the one that came after the previous
// value the last time is tried first.
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
        next_.push_back(-1);  // `guess` is invalid after this
        return last_ = added;
      }
    }
    return last_ = guess;
  }

 private:
  std::vector<Value>& kinds_;
  std::vector<int> next_;  // by kind: the one that came after it the last time
  int first_ = -1, last_ = -1;
};

WeightProduct product_of(const Model& model, const MatrixRows& rows) {
  const BoundWeight& weight = model.weights[rows.weight];
  const auto count = static_cast<double>(rows.count);
  return {weight.dtype, count * static_cast<double>(weight.slot.cols),
          count * static_cast<double>(weight.bytes()) / static_cast<double>(weight.slot.rows)};
}

}  // namespace

StepWeights step_weights(const Model& model, const std::vector<Tier>& homes,
                         const StreamSplit& split) {
  StepWeights all;
  const LoweredModel& lowered = *model.spec.lowered;
  const int layers = lowered.layer_count();
  std::vector<std::optional<StepWeights::Linear>> linears;
  for (int i = 0; i <= layers; ++i) {
    const LoweredLayer& layer = lowered.layer(i);
    all.first_of.push_back(static_cast<int>(linears.size()));
    for (size_t op = 0; op < layer.ops.size(); ++op) {
      std::optional<StepWeights::Linear>& of = linears.emplace_back();
      const LoweredOp& from = layer.ops[op];
      // In the head's list only the product with the head takes noticeable time.
      if (from.kind != LoweredKind::kLinear || (i == layers && op + 1 < layer.ops.size())) continue;
      of.emplace();
      of->finish = from.finish;
      of->is_head = i == layers;
      if (from.activation >= 0) {
        // ReLU is only a comparison, so its time is not counted.
        const OpSpec& activation = layer.spec->ops[static_cast<size_t>(from.activation)];
        if (activation.activation.kind != ActivationKind::kRelu)
          of->activations = static_cast<double>(layer.of(static_cast<int>(op)).matrices[0].rows);
      }
    }
  }
  const auto linear = [&](int layer, int op) -> StepWeights::Linear& {
    return linears[static_cast<size_t>(all.first_of[static_cast<size_t>(layer)] + op)].value();
  };
  const BoundWeight* const head = try_head_of(model);
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightSlot& slot = weight.slot;
    const bool is_head = &weight == head;
    if (slot.is_table() && homes[i] == Tier::kHost)
      all.looked_up_bytes += static_cast<double>(weight.bytes()) / static_cast<double>(slot.rows);
    if (homes[i] != Tier::kDevice || !(is_head || slot.is_layer_matrix())) continue;
    StepWeights::Linear& of =
        is_head ? linear(layers, lowered.head_op())
                : linear(slot.layer, lowered.layer(slot.layer).number_of(slot.op));
    of.resident.push_back({weight.dtype,
                           static_cast<double>(slot.rows) * static_cast<double>(slot.cols),
                           static_cast<double>(weight.bytes())});
  }
  const StreamingSchedule schedule = streaming_schedule(model, homes, split);
  all.uses_cpu = schedule.uses_cpu();
  all.slot_groups = schedule.slot_groups();
  all.segments.reserve(all.slot_groups.size());
  all.streamed.reserve(schedule.linears.size());
  Kinds<StepWeights::Segment> segment_kinds(all.segment_kinds);
  for (const StreamedLinear& streamed : schedule.linears) {
    StepWeights::Linear& of = linear(streamed.layer, streamed.op);
    double cpu_from_disk = 0;
    for (const MatrixRows& rows : streamed.on_cpu) {
      const WeightProduct product = product_of(model, rows);
      of.on_cpu.push_back(product);
      of.cpu_rows += static_cast<double>(rows.count);
      of.columns = static_cast<double>(model.weights[rows.weight].slot.cols);
      if (homes[rows.weight] == Tier::kDisk) cpu_from_disk += product.bytes;
    }
    if (streamed.segments.empty()) of.cpu_from_disk = cpu_from_disk;
    for (const OpRows& rows_of : streamed.segments) {
      StepWeights::Segment segment;
      segment.cpu_from_disk = cpu_from_disk / static_cast<double>(streamed.segments.size());
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
  for (const auto& of : linears) all.linears.push_back(of ? linear_kinds.number_of(*of) : -1);
  return all;
}

}  // namespace spillway
