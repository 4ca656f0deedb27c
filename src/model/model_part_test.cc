// SPDX-License-Identifier: Apache-2.0
#include "model/model_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {
namespace {

// Gives every weight an extent of its own, by which it is recognized in a part.
Model model_in_a_file(std::string_view name) {
  Model model = describe_dummy_model(name);
  uint64_t offset = 0;
  for (BoundWeight& weight : model.weights) {
    weight.extent = Extent{0, offset, static_cast<uint64_t>(weight.bytes())};
    offset += weight.extent->bytes;
  }
  return model;
}

const BoundWeight& find_weight(const Model& model, int layer, std::string_view name) {
  const auto found = std::ranges::find_if(model.weights, [&](const BoundWeight& weight) {
    return weight.slot.layer == layer && weight.slot.name == name && !weight.slot.is_bias;
  });
  EXPECT_NE(found, model.weights.end()) << name;
  return *found;
}

void expect_same(const BoundWeight& part, const BoundWeight& whole) {
  EXPECT_EQ(part.extent->offset, whole.extent->offset);
  EXPECT_EQ(part.dtype, whole.dtype);
  EXPECT_EQ(part.slot.rows, whole.slot.rows);
  EXPECT_EQ(part.slot.cols, whole.slot.cols);
}

TEST(ModelPartTest, HasItsLayersAndTheListsAtItsEnds) {
  const Model whole = model_in_a_file("llama-2-7b:q4_0");
  const Model first = part_of(whole, 0, 10), middle = part_of(whole, 10, 11),
              last = part_of(whole, 11, 32);
  EXPECT_EQ(first.spec.layer_count(), 10);
  EXPECT_EQ(middle.spec.layer_count(), 1);
  EXPECT_EQ(last.spec.layer_count(), 21);
  EXPECT_EQ(first.spec.lowered->layer_count(), 10);
  EXPECT_FALSE(first.spec.embedding->ops.empty());
  EXPECT_TRUE(first.spec.head->ops.empty());
  EXPECT_TRUE(middle.spec.embedding->ops.empty());
  EXPECT_TRUE(middle.spec.head->ops.empty());
  EXPECT_TRUE(last.spec.embedding->ops.empty());
  EXPECT_FALSE(last.spec.head->ops.empty());
  EXPECT_EQ(first.weights.size() + middle.weights.size() + last.weights.size(),
            whole.weights.size());
  EXPECT_EQ(first.weight_bytes() + middle.weight_bytes() + last.weight_bytes(),
            whole.weight_bytes());
  expect_same(find_weight(first, 9, "value"), find_weight(whole, 9, "value"));
  expect_same(find_weight(middle, 0, "mlp_gate"), find_weight(whole, 10, "mlp_gate"));
  expect_same(find_weight(last, 20, "mlp_norm"), find_weight(whole, 31, "mlp_norm"));
  expect_same(find_weight(last, kHeadList, "head"), find_weight(whole, kHeadList, "head"));
}

TEST(ModelPartTest, AllLayersAreTheModel) {
  for (const char* name : {"opt-125m", "llama-2-7b"}) {
    const Model whole = model_in_a_file(name), all = part_of(whole, 0, whole.spec.layer_count());
    EXPECT_EQ(*all.spec.embedding, *whole.spec.embedding);
    EXPECT_EQ(*all.spec.head, *whole.spec.head);
    ASSERT_EQ(all.weights.size(), whole.weights.size());
    for (size_t i = 0; i < all.weights.size(); ++i) expect_same(all.weights[i], whole.weights[i]);
  }
}

// The head's bytes are the token embedding's, which the last part does not have.
TEST(ModelPartTest, ATiedHeadIsAMatrixOfItsOwnInTheLastPart) {
  const Model whole = model_in_a_file("opt-125m");
  ASSERT_TRUE(whole.spec.has_tied_head());
  const Model last = part_of(whole, 5, 12);
  EXPECT_FALSE(last.spec.has_tied_head());
  const BoundWeight& head = find_weight(last, kHeadList, "head");
  expect_same(head, find_weight(whole, kEmbeddingList, "token_embedding"));
  EXPECT_TRUE(last.is_multiplied(head.slot));
  const Model first = part_of(whole, 0, 5);
  EXPECT_FALSE(first.is_multiplied(find_weight(first, kEmbeddingList, "token_embedding").slot));
}

TEST(ModelPartTest, APartHasParts) {
  const Model whole = model_in_a_file("opt-125m");
  const Model part = part_of(part_of(whole, 2, 12), 3, 5);
  EXPECT_EQ(part.spec.layer_count(), 2);
  EXPECT_TRUE(part.spec.embedding->ops.empty());
  EXPECT_TRUE(part.spec.head->ops.empty());
  expect_same(find_weight(part, 1, "mlp_up"), find_weight(whole, 6, "mlp_up"));
}

}  // namespace
}  // namespace spillway
