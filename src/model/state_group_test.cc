// SPDX-License-Identifier: Apache-2.0
#include "model/state_group.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

std::shared_ptr<const LayerSpec> layer_with(const AttentionSpec& attention) {
  auto layer = std::make_shared<LayerSpec>();
  layer->ops.push_back({.kind = OpKind::kAttention, .name = "attention", .attention = attention});
  return layer;
}
AttentionSpec heads(int kv_heads, int window = 0, bool chunked = false) {
  return {.heads = 4, .kv_heads = kv_heads, .head_dim = 16, .window = window, .chunked = chunked};
}

TEST(StateGroupTest, LayersWithOneKindAndShapeAreOneGroup) {
  const auto full = layer_with(heads(2)), window = layer_with(heads(2, 32));
  const auto wide = layer_with(heads(4)), chunk = layer_with(heads(2, 32, true));
  const StateGroups found = group_states({window, full, window, wide, full, chunk});
  ASSERT_EQ(found.groups.size(), 4u);
  EXPECT_EQ(found.groups[0].state.kind, StateKind::kWindow);
  EXPECT_EQ(found.groups[0].layers, (std::vector<int>{0, 2}));
  EXPECT_EQ(found.groups[1].state.kind, StateKind::kFull);
  EXPECT_EQ(found.groups[1].layers, (std::vector<int>{1, 4}));
  EXPECT_EQ(found.groups[2].state.planes[0].heads, 4);
  EXPECT_EQ(found.groups[3].state.kind, StateKind::kChunk);
  EXPECT_EQ(found.layers[2], (LayerStatePlace{.group = 0, .index = 1}));
  EXPECT_EQ(found.layers[3], (LayerStatePlace{.group = 2, .index = 0}));
}

TEST(StateGroupTest, ALayerMayReadTheStateOfAnEarlierOne) {
  AttentionSpec reads = heads(2);
  reads.state_back = 2;
  const auto full = layer_with(heads(2));
  const StateGroups found = group_states({full, full, layer_with(reads)});
  ASSERT_EQ(found.groups.size(), 1u);
  EXPECT_EQ(found.groups[0].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(found.layers[2], (LayerStatePlace{.group = 0, .index = 0, .owns = false}));
}

TEST(StateGroupTest, RefusesStateThatIsNotThere) {
  AttentionSpec reads = heads(2);
  reads.state_back = 1;
  EXPECT_THROW(group_states({layer_with(reads)}), Error);
  EXPECT_THROW(group_states({layer_with(heads(4)), layer_with(reads)}), Error);
  EXPECT_THROW(group_states({layer_with(heads(2)), layer_with(reads), layer_with(reads)}), Error);
  EXPECT_THROW(group_states({std::make_shared<LayerSpec>(), layer_with(reads)}), Error);
  EXPECT_THROW(group_states({layer_with(heads(2, 0, true))}), Error);
}

TEST(StateGroupTest, RefusesMoreGroupsThanTablesHave) {
  std::vector<std::shared_ptr<const LayerSpec>> layers;
  for (int heads_of = 1; heads_of <= kMostStateGroups; ++heads_of)
    layers.push_back(layer_with(heads(heads_of)));
  EXPECT_EQ(group_states(layers).groups.size(), size_t{kMostStateGroups});
  layers.push_back(layer_with(heads(kMostStateGroups + 1)));
  EXPECT_THROW(group_states(layers), Error);
}

TEST(StateGroupTest, ALayerWithoutAttentionHasNoState) {
  const StateGroups found = group_states({std::make_shared<LayerSpec>(), layer_with(heads(2))});
  EXPECT_EQ(found.layers[0].group, -1);
  EXPECT_EQ(found.layers[1].group, 0);
}

}  // namespace
}  // namespace spillway
