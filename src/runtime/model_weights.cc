// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <limits>
#include <utility>

#include "base/error.h"

namespace spillway {

const MatrixWeights& ListWeights::of(int op, int matrix) const {
  static const MatrixWeights kNone;
  const auto& matrices = ops[static_cast<size_t>(op)];
  return static_cast<size_t>(matrix) < matrices.size() ? matrices[static_cast<size_t>(matrix)]
                                                       : kNone;
}

WeightView& WeightViews::view(const WeightSlot& slot) {
  if (slot.in_layer() && layers.size() <= static_cast<size_t>(slot.layer))
    layers.resize(static_cast<size_t>(slot.layer) + 1);
  ListWeights& list = slot.in_layer()                ? layers[static_cast<size_t>(slot.layer)]
                      : slot.layer == kEmbeddingList ? embedding
                                                     : head;
  const auto op = static_cast<size_t>(slot.op), matrix = static_cast<size_t>(slot.matrix);
  if (list.ops.size() <= op) list.ops.resize(op + 1);
  if (list.ops[op].size() <= matrix) list.ops[op].resize(matrix + 1);
  MatrixWeights& weights = list.ops[op][matrix];
  weights.kind = slot.kind;
  return slot.is_bias ? weights.bias : weights.weight;
}

const StreamedWeight& WeightViews::streamed_of(int layer, int op, int matrix) const {
  if (static_cast<size_t>(layer) >= layers.size() && streamed_head) return *streamed_head;
  for (const StreamedWeight& weight : streamed.at(static_cast<size_t>(layer))) {
    if (weight.op == op && weight.matrix == matrix) return weight;
  }
  fail(ErrorCode::kInternal, "internal error: a weight without a home");
}

StreamedWeight& WeightViews::streamed_of(const WeightSlot& slot) {
  const int layer = slot.in_layer() ? slot.layer : static_cast<int>(layers.size());
  return const_cast<StreamedWeight&>(std::as_const(*this).streamed_of(layer, slot.op, slot.matrix));
}

DType WeightViews::matrix_type() const {
  DType type = embedding.ops.empty() ? DType::kF32 : embedding.of(0).weight.dtype;
  if (layers.empty()) return type;
  // Find the first matrix of the first layer, whether it is on the device or streamed.
  std::pair first(std::numeric_limits<int>::max(), 0);
  const auto& ops = layers.front().ops;
  for (int op = 0; op < static_cast<int>(ops.size()); ++op) {
    for (int i = 0; i < static_cast<int>(ops[static_cast<size_t>(op)].size()); ++i) {
      const MatrixWeights& matrix = layers.front().of(op, i);
      if (!matrix.is_matrix() || std::pair(op, i) > first) continue;
      first = {op, i};
      type = matrix.weight.dtype;
    }
  }
  if (streamed.empty()) return type;
  for (const StreamedWeight& weight : streamed.front()) {
    if (std::pair(weight.op, weight.matrix) >= first) continue;
    first = {weight.op, weight.matrix};
    type = weight.view.dtype;
  }
  return type;
}

void WeightViews::for_layer_matrices(const std::function<void(const WeightView&)>& f) const {
  for (const ListWeights& layer : layers) {
    for (const auto& op : layer.ops) {
      for (const MatrixWeights& matrix : op)
        if (matrix.is_matrix()) f(matrix.weight);
    }
  }
  for (const std::vector<StreamedWeight>& layer : streamed) {
    for (const StreamedWeight& weight : layer) f(weight.view);
  }
}

MatrixFacts WeightViews::matrix_facts() const {
  MatrixFacts facts{.has_f32 = false, .has_16_bit = false};
  const auto add = [&](const WeightView& w) {
    facts.has_f32 = facts.has_f32 || w.dtype == DType::kF32;
    facts.has_16_bit = facts.has_16_bit || w.dtype == DType::kF16 || w.dtype == DType::kBF16;
  };
  for (const ListWeights* list : {&embedding, &head}) {
    for (const auto& op : list->ops) {
      for (const MatrixWeights& matrix : op)
        if (matrix.is_matrix()) add(matrix.weight);
    }
  }
  if (streamed_head) add(streamed_head->view);
  for_layer_matrices([&](const WeightView& w) {
    add(w);
    facts.layer_bytes += w.bytes();
  });
  if (!layers.empty()) facts.layer_bytes /= static_cast<int64_t>(layers.size());
  return facts;
}

WeightTypes WeightViews::layer_types() const {
  WeightTypes types;
  bool all = true;
  for_layer_matrices([&](const WeightView& w) { all = types.try_add(w.dtype) && all; });
  return all ? types : WeightTypes();
}

ModelWeights::ModelWeights(WeightViews views, WeightMemory memory, std::vector<Tier> homes,
                           Counts counts)
    : WeightViews(std::move(views)),
      memory_(std::move(memory)),
      homes_(std::move(homes)),
      counts_(counts) {}

uint64_t ModelWeights::disk_bytes() const {
  uint64_t bytes = 0;
  for (const auto& file : memory_.spilled) bytes += file->bytes();
  return bytes;
}

bool ModelWeights::try_stay(const Model& model, const WeightPlacement& next) {
  if (empty() || next.homes_of(model) != homes_) return false;
  if (disk_bytes() > next.disk_budget) return false;  // the files hold more than is needed now
  counts_ = {.made = 0, .kept = static_cast<int>(homes_.size())};
  return true;
}

}  // namespace spillway
