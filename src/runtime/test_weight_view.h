// SPDX-License-Identifier: Apache-2.0
// For tests: finds weights by their names.
#pragma once

#include <string_view>

#include "base/error.h"
#include "model/model.h"
#include "runtime/model_weights.h"

namespace spillway {

// Returns the view of a matrix or of a norm's weight ("mlp_down"); weights outside the layers have
// layer -1.
inline const WeightView& view_of(WeightViews& views, const Model& model, std::string_view name,
                                 int layer = -1) {
  for (const BoundWeight& weight : model.weights) {
    const WeightSlot& slot = weight.slot;
    const bool is_there = slot.in_layer() ? slot.layer == layer : layer < 0;
    if (is_there && slot.name == name && !slot.is_bias) return views.view(slot);
  }
  fail(ErrorCode::kInternal, "no weight '{}' in layer {}", name, layer);
}

}  // namespace spillway
