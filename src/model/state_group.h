// SPDX-License-Identifier: Apache-2.0
// Describes the state that the layers of a model keep of a sequence, and groups layers with
// the same kind.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/layer_spec.h"
#include "tensor/kv_shape.h"
#include "tensor/state_rule.h"

namespace spillway {

std::string_view state_kind_name(StateKind kind);  // "full", "window", "chunk", "recurrent"

// In a paged kind, every plane has rows of [heads][width] for each token; the type of their
// elements is chosen when a run begins. A recurrent kind has one array [heads][width] per sequence.
struct StatePlaneSpec {
  std::string_view name = {};  // "k", "v"
  int heads = 0, width = 0;
  bool operator==(const StatePlaneSpec&) const = default;
};

struct StateSpec {
  StateKind kind = StateKind::kFull;
  int window = 0;  // tokens, of a window or chunk
  std::vector<StatePlaneSpec> planes = {};
  bool operator==(const StateSpec&) const = default;

  StateRule rule() const { return {kind, window}; }
};

// The layers whose state has the same kind and shape. A sequence has one block table for
// all of them.
struct StateGroup {
  StateSpec state;
  std::vector<int> layers = {};  // the layers that own state, in order
  bool operator==(const StateGroup&) const = default;
};

// The place of a layer's state.
struct LayerStatePlace {
  int group = -1;    // -1: the layer has none
  int index = 0;     // among StateGroup::layers
  bool owns = true;  // otherwise it reads the state of an earlier layer, and writes none
  bool operator==(const LayerStatePlace&) const = default;
};

struct StateGroups {
  std::vector<StateGroup> groups = {};       // in the order of their first layers
  std::vector<LayerStatePlace> layers = {};  // [layer]
};
// Throws kInternal if a layer reads the state of one that has none of its own, or whose state has
// another kind or shape; for windows below 1; and for more than kMostStateGroups groups.
StateGroups group_states(const std::vector<std::shared_ptr<const LayerSpec>>& layers);

// The shapes of a KV cache for these groups, with elements of this type. Throws kUnsupported for
// layers with more planes than keys and values.
KvShapes kv_shapes(const StateGroups& states, KvType type);

}  // namespace spillway
