// SPDX-License-Identifier: Apache-2.0
#include "model/model_part.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace spillway {
namespace {

// Returns a head that has its own matrix instead of one of another list.
std::shared_ptr<const LayerSpec> untied(const LayerSpec& head) {
  auto own = std::make_shared<LayerSpec>(head);
  for (OpSpec& op : own->ops) {
    for (MatrixSpec& matrix : op.matrices) matrix.same_as = {};
  }
  return own;
}

// The name of the matrix of another list that this weight of `whole` shares; empty: it is its own.
std::string_view tied_name(const ModelSpec& whole, const WeightSlot& slot) {
  if (slot.in_layer() || slot.is_bias) return {};
  const OpSpec& op = list_of(whole, slot.layer).ops[static_cast<size_t>(slot.op)];
  return op.matrices[static_cast<size_t>(slot.matrix)].same_as;
}

const BoundWeight& weight_of(const Model& whole, int first, const WeightSlot& slot) {
  const std::string_view tied = tied_name(whole.spec, slot);
  const int layer = slot.in_layer() ? slot.layer + first : slot.layer;
  const auto found = std::ranges::find_if(whole.weights, [&](const BoundWeight& weight) {
    const WeightSlot& of = weight.slot;
    if (!tied.empty()) return !of.in_layer() && of.name == tied;
    return of.layer == layer && of.op == slot.op && of.matrix == slot.matrix &&
           of.is_bias == slot.is_bias;
  });
  SPW_ASSERT(found != whole.weights.end());
  return *found;
}

}  // namespace

Model part_of(const Model& whole, int first, int end) {
  SPW_ASSERT(first >= 0 && first < end && end <= whole.spec.layer_count());
  for (int layer = first; layer < end; ++layer) {
    const OpSpec* const attention = whole.spec.layer(layer).find("attention");
    const int back = attention == nullptr ? 0 : attention->attention.state_back;
    SPW_CHECK(layer - back >= first, kUnsupported,
              "{}: layer {} reads the keys and values of layer {}, so no part of the model can "
              "begin with layer {}",
              whole.spec.name, layer, layer - back, first);
  }
  Model part{whole.spec, {}};
  ModelSpec& spec = part.spec;
  spec.layers.assign(whole.spec.layers.begin() + first, whole.spec.layers.begin() + end);
  const auto nothing = std::make_shared<const LayerSpec>();
  if (first > 0) {
    spec.embedding = nothing;
    spec.head = untied(*whole.spec.head);
  }
  if (end < whole.spec.layer_count()) spec.head = nothing;
  finish_lists(spec);
  for (const WeightSlot& slot : weight_slots(spec)) {
    part.weights.push_back(weight_of(whole, first, slot));
    part.weights.back().slot = slot;
  }
  return part;
}

}  // namespace spillway
