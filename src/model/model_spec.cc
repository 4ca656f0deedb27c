// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {

int64_t ModelSpec::widest_input() const {
  int64_t widest = 0;
  const LayerSpec* last = nullptr;
  for (const auto& layer : layers) {
    if (layer.get() == last) continue;
    last = layer.get();
    for (const OpSpec& op : last->ops) {
      if (op.kind != OpKind::kLinear) continue;
      for (const MatrixSpec& matrix : op.matrices) widest = std::max(widest, matrix.cols);
    }
  }
  return widest;
}

bool ModelSpec::has_tied_head() const {
  return std::ranges::any_of(head->ops, [](const OpSpec& op) {
    return std::ranges::any_of(op.matrices,
                               [](const MatrixSpec& matrix) { return !matrix.same_as.empty(); });
  });
}

void finish_lists(ModelSpec& spec) {
  auto lowered = std::make_shared<LoweredModel>();
  validate(*spec.embedding, 0, spec.name + ", embedding");
  lowered->embedding = lower(spec.embedding, 0, lowered->buffers);
  const LayerSpec* last = nullptr;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].get() == last) {
      lowered->layers.push_back(lowered->layers.back());
      continue;
    }
    last = spec.layers[i].get();
    validate(*last, spec.hidden, fmt::format("{}, layer {}", spec.name, i));
    for (const OpSpec& op : last->ops) {
      SPW_CHECK(op.rope < static_cast<int>(spec.ropes.size()), kInternal,
                "internal error: {}, layer {}: op '{}' names rope {} of {}", spec.name, i, op.name,
                op.rope, spec.ropes.size());
    }
    lowered->layers.push_back(
        std::make_shared<const LoweredLayer>(lower(spec.layers[i], spec.hidden, lowered->buffers)));
  }
  validate(*spec.head, spec.hidden, spec.name + ", head");
  lowered->head = lower(spec.head, spec.hidden, lowered->buffers, &ScratchBuffer::head_columns);
  spec.lowered = std::move(lowered);
  spec.states = group_states(spec.layers);
}

}  // namespace spillway
