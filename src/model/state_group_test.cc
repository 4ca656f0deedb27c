// SPDX-License-Identifier: Apache-2.0
#include "model/state_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "model/known_models.h"
#include "model/model.h"
#include "model/model_part.h"
#include "model/transformer_shape.h"

namespace spillway {
namespace {

using testing::HasSubstr;

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

TransformerShape shape_with_window(int window, bool chunked = false) {
  TransformerShape shape = try_known_model("mistral-7b-v0.1").value();
  shape.layers = 6;
  shape.max_context = 1024;
  shape.sliding_window = window;
  shape.chunked_window = chunked;
  shape.full_attention_every = 3;
  return shape;
}

TEST(StateGroupTest, AWindowAsLongAsTheContextIsNone) {
  EXPECT_EQ(make_spec(shape_with_window(1023)).states.groups.size(), 2u);
  for (const int window : {0, 1024, 1025, 1 << 30}) {
    for (const bool chunked : {false, true}) {
      const ModelSpec spec = make_spec(shape_with_window(window, chunked));
      ASSERT_EQ(spec.states.groups.size(), 1u) << window;
      EXPECT_EQ(spec.states.groups[0].state.kind, StateKind::kFull) << window;
      EXPECT_EQ(&spec.layer(0), &spec.layer(2)) << window;
    }
  }
}

TEST(StateGroupTest, RefusesWindowsThatMakeNoSense) {
  const auto refusal = [](int window, bool chunked) {
    return error_of([&] { validate(shape_with_window(window, chunked), "a.gguf"); });
  };
  EXPECT_THAT(refusal(-1, false), HasSubstr("a.gguf: sliding window is -1, which is not within 0"));
  EXPECT_EQ(refusal(1000, true),
            "a.gguf: sliding window is 1000; layers that attend to chunks take a multiple of 16 "
            "tokens");
  EXPECT_EQ(refusal(1008, true), "no error");
  EXPECT_EQ(refusal(1000, false), "no error");
  EXPECT_EQ(refusal(1030, true), "no error") << "it is no window";
}

// Each of the last layers reads the state of the last layer before them of its kind, as in
// Gemma 3n.
TEST(StateGroupTest, TheLastLayersMayHaveNoKeysAndValues) {
  TransformerShape shape = shape_with_window(64);
  shape.shared_kv_layers = 3;
  const Model model{make_spec(shape), {}};
  const StateGroups& states = model.spec.states;
  EXPECT_EQ(states.groups[0].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(states.groups[1].layers, (std::vector<int>{2}));
  for (const int layer : {3, 4})
    EXPECT_EQ(states.layers[static_cast<size_t>(layer)], (LayerStatePlace{0, 1, false}));
  EXPECT_EQ(states.layers[5], (LayerStatePlace{1, 0, false}));
  for (const WeightSlot& slot : weight_slots(model.spec))
    EXPECT_FALSE(slot.layer >= 3 && (slot.name == "key" || slot.name == "value")) << slot.layer;
  EXPECT_EQ(model.spec.lowered->layer(3).ops[0].finish, LinearFinish::kStore);
  EXPECT_THAT(error_of([&] { part_of(model, 3, 6); }),
              HasSubstr("layer 3 reads the keys and values of layer 1, so no part of the model can "
                        "begin with layer 3"));
  shape.shared_kv_layers = 4;
  EXPECT_THAT(error_of([&] { validate(shape, "a.gguf"); }), HasSubstr("layers with keys and"));
}

// Each plane of the state is a plane of the cache, so a third one would be lost.
TEST(StateGroupTest, RefusesPlanesThatACacheDoesNotHave) {
  const auto shapes_of = [](std::vector<StatePlaneSpec> planes) {
    return kv_shapes(
        {.groups = {{.state = {.planes = std::move(planes)}, .layers = {0}}}, .layers = {{0, 0}}},
        KvType::kF16);
  };
  const KvGroupShape differ = shapes_of({{"k", 2, 64}, {"v", 1, 128}}).group(0);
  EXPECT_EQ(differ.plane(KvPart::kValues), (KvPlaneShape{1, 128, KvType::kF16}));
  EXPECT_FALSE(shapes_of({{"latent", 1, 256}}).group(0).has_values());
  EXPECT_THAT(error_of([&] {
                shapes_of({{"k", 2, 64}, {"v", 2, 64}, {"index", 1, 32}});
              }),
              HasSubstr("a layer keeps 3 planes of state (k, v, index); a KV cache has 1 or 2"));
  EXPECT_THAT(error_of([&] { shapes_of({}); }), HasSubstr("0 planes"));
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
