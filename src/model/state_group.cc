// SPDX-License-Identifier: Apache-2.0
#include "model/state_group.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

const OpSpec* try_attention(const LayerSpec& layer) {
  const auto found = std::ranges::find(layer.ops, OpKind::kAttention, &OpSpec::kind);
  return found == layer.ops.end() ? nullptr : &*found;
}

StateSpec state_of(const OpSpec& op, size_t layer) {
  const AttentionSpec& of = op.attention;
  SPW_CHECK(of.window >= 0 && (of.window > 0 || !of.chunked), kInternal,
            "internal error: layer {}: op '{}' has a window of {} tokens", layer, op.name,
            of.window);
  SPW_CHECK(!of.chunked || of.window % kKvBlockTokens == 0, kUnsupported,
            "layer {}: op '{}' attends to chunks of {} tokens; multiples of {} are supported",
            layer, op.name, of.window, kKvBlockTokens);
  StateSpec state;
  if (of.window > 0) state.kind = of.chunked ? StateKind::kChunk : StateKind::kWindow;
  state.window = of.window;
  state.planes = {{"k", of.kv_heads, of.head_dim}, {"v", of.kv_heads, of.head_dim}};
  return state;
}

}  // namespace

std::string_view state_kind_name(StateKind kind) {
  switch (kind) {
    case StateKind::kFull:
      return "full";
    case StateKind::kWindow:
      return "window";
    case StateKind::kChunk:
      return "chunk";
    case StateKind::kRecurrent:
      return "recurrent";
  }
  return "unknown";
}

StateGroups group_states(const std::vector<std::shared_ptr<const LayerSpec>>& layers) {
  StateGroups found;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerStatePlace& place = found.layers.emplace_back();
    const OpSpec* const op = try_attention(*layers[i]);
    if (op == nullptr) continue;
    const StateSpec state = state_of(*op, i);
    if (const int back = op->attention.state_back; back > 0) {
      SPW_CHECK(static_cast<size_t>(back) <= i, kInternal,
                "internal error: layer {}: op '{}' reads the state of a layer before the first", i,
                op->name);
      place = found.layers[i - static_cast<size_t>(back)];
      SPW_CHECK(place.group >= 0 && place.owns &&
                    found.groups[static_cast<size_t>(place.group)].state == state,
                kInternal,
                "internal error: layer {}: op '{}' reads the state of layer {}, which has none "
                "like it",
                i, op->name, i - static_cast<size_t>(back));
      place.owns = false;
      continue;
    }
    auto group = std::ranges::find(found.groups, state, &StateGroup::state);
    if (group == found.groups.end()) group = found.groups.insert(group, StateGroup{.state = state});
    place.group = static_cast<int>(group - found.groups.begin());
    place.index = static_cast<int>(group->layers.size());
    group->layers.push_back(static_cast<int>(i));
  }
  SPW_CHECK(found.groups.size() <= kMostStateGroups, kInternal,
            "internal error: layers keep state in {} ways; at most {} are possible",
            found.groups.size(), kMostStateGroups);
  return found;
}

KvShapes kv_shapes(const StateGroups& states, KvType type) {
  std::vector<KvGroupShape> groups;
  for (const StateGroup& group : states.groups) {
    const std::vector<StatePlaneSpec>& planes = group.state.planes;
    std::vector<std::string_view> names;
    for (const StatePlaneSpec& plane : planes) names.push_back(plane.name);
    SPW_CHECK(planes.size() == 1 || planes.size() == 2, kUnsupported,
              "a layer keeps {} planes of state ({}); a KV cache has 1 or 2", planes.size(),
              fmt::join(names, ", "));
    KvGroupShape& shape =
        groups.emplace_back(KvGroupShape{.layers = static_cast<int>(group.layers.size()),
                                         .kv_heads = planes.front().heads,
                                         .head_dim = planes.front().width,
                                         .type = type,
                                         .rule = group.state.rule()});
    const KvPlaneShape values = planes.size() > 1
                                    ? KvPlaneShape{planes[1].heads, planes[1].width, type}
                                    : KvPlaneShape{.type = type};
    if (values != shape.plane(KvPart::kKeys)) shape.values = values;
  }
  std::vector<KvLayerPlace> layers;
  for (const LayerStatePlace& place : states.layers)
    layers.push_back({place.group, place.index, place.owns});
  return {std::move(groups), std::move(layers)};
}

}  // namespace spillway
