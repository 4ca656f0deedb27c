// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "model/model_part.h"
#include "plan/weight_homes.h"
#include "runtime/weight_mover.h"
#include "storage/test_folder.h"
#include "tests/generation/tiny_models.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr WeightSlot kQuery{.layer = 1, .op = 2, .matrix = 1};

TEST(WeightViewsTest, AViewThatWasNotThereIsAdded) {
  std::byte memory[64];
  WeightViews views;
  views.view(kQuery) = {DType::kF32, 4, 4, memory};
  ASSERT_EQ(views.layers.size(), 2U);
  EXPECT_EQ(views.layers[1].of(2, 1).weight.data, memory);
  EXPECT_TRUE(views.layers[1].of(2, 1).is_matrix());
  EXPECT_TRUE(views.layers[1].of(2, 0).weight.empty());
  EXPECT_TRUE(views.layers[1].of(2, 7).weight.empty()) << "the op has no such matrix";
  EXPECT_EQ(&views.list(1), &views.layers[1]);
  EXPECT_EQ(&views.list(2), &views.head);
  WeightSlot bias = kQuery;
  bias.is_bias = true;
  views.view(bias) = {DType::kF32, 1, 4, memory + 16};
  EXPECT_EQ(views.layers[1].of(2, 1).bias.data, memory + 16);
  EXPECT_EQ(views.layers[1].of(2, 1).weight.data, memory);
  views.view({.layer = kHeadList, .op = 1}) = {DType::kF16, 4, 4, memory};
  EXPECT_EQ(views.head.of(1).weight.dtype, DType::kF16);
}

TEST(WeightViewsTest, AWeightIsStreamedFromItsHomeOrHasNone) {
  std::byte memory[64];
  WeightViews views;
  views.layers.resize(2);
  views.streamed.resize(2);
  views.streamed[1].push_back({.op = 2, .matrix = 1, .view = {}, .host = memory});
  EXPECT_EQ(views.streamed_of(kQuery).host, memory);
  EXPECT_EQ(views.streamed_of(1, 2, 1).host, memory);
  EXPECT_THROW(views.streamed_of(1, 2, 0), Error);
  EXPECT_THROW(views.streamed_of(0, 2, 1), Error);
  views.streamed_head = StreamedWeight{.view = {}, .host = memory + 16};
  EXPECT_EQ(views.streamed_of(2, 0, 0).host, memory + 16) << "behind the last layer";
}

// A machine with a model, whose weights a test may place on any tier.
struct ModelWeightsTest : testing::Test {
  WeightPlacement placed(const Model& model, const WeightPlan& plan = {}) {
    return {.homes = weight_homes(/*host_visible=*/false, model, plan),
            .host = &machine.host,
            .queue = &machine.queue,
            .disk_dir = folder.path()};
  }
  ModelWeights load(const Model& model, const WeightPlacement& where) {
    return load_weights(machine.device(), model, {}, {}, where);
  }

  TempFolder folder;
  TestMachine machine{/*has_accelerator=*/true};
};

void expect_same_facts(const ModelFacts& facts, const ModelFacts& expected) {
  EXPECT_EQ(facts.matrix_type, expected.matrix_type);
  EXPECT_EQ(facts.matrices.has_f32, expected.matrices.has_f32);
  EXPECT_EQ(facts.matrices.has_16_bit, expected.matrices.has_16_bit);
  EXPECT_EQ(facts.matrices.layer_bytes, expected.matrices.layer_bytes);
  EXPECT_EQ(facts.layer_types.empty(), expected.layer_types.empty());
  for (const DType type : expected.layer_types.all())
    EXPECT_TRUE(facts.layer_types.contains(type)) << dtype_name(type);
  EXPECT_EQ(facts.layer_types.all().size(), expected.layer_types.all().size());
}

TEST_F(ModelWeightsTest, FactsAreTheSameWhereverTheWeightsAre) {
  for (const char* kind : {"llama", "opt-350m", "llama-tied"}) {
    for (const auto& [type, other] :
         {std::pair(DType::kF16, DType::kF16), std::pair(DType::kF16, DType::kF32),
          std::pair(DType::kQ8_0, DType::kF16)}) {
      SCOPED_TRACE(kind);
      const Model model = testing_models::tiny_model(kind, type, other);
      const ModelFacts resident = load(model, placed(model)).facts();
      EXPECT_EQ(resident.matrix_type, type);
      EXPECT_TRUE(resident.layer_types.contains(type));
      EXPECT_TRUE(resident.layer_types.contains(other));
      for (const Tier embeddings : {Tier::kDevice, Tier::kHost}) {
        for (const TierShares& shares :
             {TierShares{0, 1, 0}, TierShares{0, 0, 1}, TierShares{0.3, 0.3, 0.4}})
          expect_same_facts(
              load(model, placed(model, {.shares = shares, .embeddings = embeddings})).facts(),
              resident);
      }
    }
  }
}

TEST_F(ModelWeightsTest, FactsSayWhichTypesMatricesHave) {
  // The matrices of opt: q, k, v and attention_out of 64 x 64, two of 96 x 64.
  constexpr int64_t kElements = 4 * 64 * 64 + 2 * 96 * 64;
  Model model = testing_models::tiny_model("opt", DType::kF16);
  ModelFacts facts = load(model, placed(model)).facts();
  EXPECT_TRUE(facts.matrices.has_16_bit);
  EXPECT_FALSE(facts.matrices.has_f32) << "norms and biases are no matrices";
  EXPECT_EQ(facts.matrices.layer_bytes, 2 * kElements);
  EXPECT_EQ(facts.layer_types.all().size(), 1U);
  model = testing_models::tiny_model("opt", DType::kQ8_0);
  facts = load(model, placed(model)).facts();
  EXPECT_FALSE(facts.matrices.has_16_bit);
  EXPECT_EQ(facts.matrices.layer_bytes, kElements / 32 * 34);
  // With three types of matrices in the layers, no list of types is given.
  model = testing_models::tiny_model("opt", DType::kF16, DType::kF32);
  for (BoundWeight& weight : model.weights) {
    if (weight.slot.layer == 2 && weight.slot.name == "query") weight.dtype = DType::kBF16;
  }
  facts = load(model, placed(model)).facts();
  EXPECT_TRUE(facts.layer_types.empty());
  EXPECT_TRUE(facts.matrices.has_f32);
}

// The type is that of the first matrix of the first layer, even if others of that layer are on the
// device.
TEST_F(ModelWeightsTest, TheTypeOfMatricesIsThatOfTheFirst) {
  Model model = testing_models::tiny_model("llama", DType::kF16);
  for (BoundWeight& weight : model.weights) {
    if (weight.slot.layer == 0 && weight.slot.name == "query") weight.dtype = DType::kQ8_0;
  }
  EXPECT_EQ(load(model, placed(model)).matrix_type(), DType::kQ8_0);
  for (const Tier home : {Tier::kHost, Tier::kDisk}) {
    for (const char* matrix : {"query", "key"}) {
      const WeightPlan plan{.overrides = {{.layers = {{0, 0}}, .matrix = matrix, .home = home}}};
      EXPECT_EQ(load(model, placed(model, plan)).matrix_type(), DType::kQ8_0) << matrix;
    }
  }
}

// Parts without embedding or head have facts of their own, which may differ from those of the
// whole.
TEST_F(ModelWeightsTest, PartsOfAModelHaveFacts) {
  const Model whole = testing_models::tiny_model("llama", DType::kF16, DType::kF32);
  const Model middle = part_of(whole, 1, 2);
  const ModelFacts facts = load(middle, placed(middle)).facts();
  EXPECT_EQ(facts.matrix_type, DType::kF16);
  EXPECT_FALSE(facts.matrices.has_f32);
}

TEST_F(ModelWeightsTest, StayWhereTheNextPlanHasThemAtTheSameHomes) {
  const Model model = testing_models::tiny_model("llama", DType::kF16);
  EXPECT_FALSE(ModelWeights().try_stay(model, placed(model)));
  ModelWeights weights = load(model, placed(model, {.shares = {0.5, 0, 0.5}}));
  EXPECT_EQ(weights.counts().made, static_cast<int>(model.weights.size()));
  const uint64_t before = weights.address_epoch();
  EXPECT_FALSE(weights.try_stay(model, placed(model)));
  EXPECT_FALSE(
      weights.try_stay(model, placed(model, {.shares = {0.5, 0, 0.5}, .embeddings = Tier::kHost})));
  WeightPlacement smaller = placed(model, {.shares = {0.5, 0, 0.5}});
  smaller.disk_budget = weights.disk_bytes() - 1;
  EXPECT_FALSE(weights.try_stay(model, smaller));
  smaller.disk_budget = weights.disk_bytes();
  EXPECT_TRUE(weights.try_stay(model, smaller));
  EXPECT_EQ(weights.counts().made, 0);
  EXPECT_EQ(weights.counts().kept, static_cast<int>(model.weights.size()));
  EXPECT_EQ(weights.address_epoch(), before) << "addresses are what they were";
}

}  // namespace
}  // namespace spillway
