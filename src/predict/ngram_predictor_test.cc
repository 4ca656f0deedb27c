// SPDX-License-Identifier: Apache-2.0
#include "predict/ngram_predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

const LengthBuckets kBuckets = LengthBuckets::linear(512);

TEST(NgramPredictorTest, AFreshOneKnowsNothingAndSharesSumToOne) {
  const NgramPredictor predictor(kBuckets);
  const LengthDistribution said = predictor.predict({.text = "Write a poem."});
  double sum = 0;
  for (size_t i = 0; i < kLengthBuckets; ++i) sum += said.share(i);
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(NgramPredictorTest, LearnsWhichWordsMakeAnswersLong) {
  NgramPredictor predictor(kBuckets);
  for (int i = 0; i < 40; ++i) {
    predictor.learn({.text = "Write a story about item " + std::to_string(i)}, 400);
    predictor.learn({.text = "Name the capital of item " + std::to_string(i)}, 5);
  }
  const LengthDistribution story = predictor.predict({.text = "Write a story about a river"});
  const LengthDistribution name = predictor.predict({.text = "Name the capital of France"});
  EXPECT_EQ(story.likeliest(), 7U);
  EXPECT_EQ(name.likeliest(), 0U);
  EXPECT_GT(story.quantile(0.5), name.quantile(0.5));
  EXPECT_EQ(predictor.examples(), 80U);
}

TEST(NgramPredictorTest, LearnsFromTokensWhereThereIsNoText) {
  NgramPredictor predictor(kBuckets);
  const std::vector<TokenId> one = {1, 17, 23, 99}, other = {1, 40, 41, 42, 43};
  for (int i = 0; i < 40; ++i) {
    predictor.learn({.tokens = one}, 300);
    predictor.learn({.tokens = other}, 60);
  }
  EXPECT_EQ(predictor.predict({.tokens = one}).likeliest(), 5U);
  EXPECT_EQ(predictor.predict({.tokens = other}).likeliest(), 1U);
}

TEST(NgramPredictorTest, NothingIsLongerThanTheRequestAllows) {
  NgramPredictor predictor(kBuckets);
  for (int i = 0; i < 20; ++i) predictor.learn({.text = "Go on"}, 500);
  EXPECT_GT(predictor.predict({.text = "Go on"}).quantile(0.9), 300);
  EXPECT_EQ(predictor.predict({.text = "Go on", .most_tokens = 10}).quantile(0.9), 10);
}

// Prompts may have any bytes and any length.
TEST(NgramPredictorTest, AnyTextHasBoundedFeatures) {
  std::mt19937 random(5);
  for (const size_t size : {0, 1, 2, 100, 5000, 3'000'000}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text.push_back(static_cast<char>(random() % 256));
    NgramPredictor predictor(kBuckets);
    predictor.learn({.text = text}, 10);
    EXPECT_FALSE(std::isnan(predictor.predict({.text = text}).mean()));
    const auto features = prompt_features({.text = text});
    EXPECT_LT(features.size(), 6000U);
    for (const PromptFeature& feature : features) EXPECT_LT(feature.slot, kFeatureSlots);
  }
}

TEST(NgramPredictorTest, SpacesAroundAPromptChangeNothing) {
  const auto plain = prompt_features({.text = "List three rivers."});
  const auto spaced = prompt_features({.text = " \n  List three rivers.  "});
  ASSERT_EQ(plain.size(), spaced.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].slot, spaced[i].slot);
}

TEST(NgramPredictorTest, WhoForgetsHalfIsLessSureOfTheSameAndLearnsAsFastAsAtFirst) {
  NgramPredictor predictor(kBuckets);
  for (int i = 0; i < 400; ++i) predictor.learn({.text = "Write a story"}, 400);
  NgramPredictor halved = predictor;
  halved.forget_half();
  const LengthQuery query{.text = "Write a story"};
  const size_t known = kBuckets.bucket_of(400), other = kBuckets.bucket_of(5);
  EXPECT_EQ(halved.predict(query).likeliest(), known);
  EXPECT_LT(halved.predict(query).share(known), predictor.predict(query).share(known));
  EXPECT_EQ(halved.examples(), predictor.examples());
  const auto answers_until_known = [&](NgramPredictor& one) {
    int answers = 0;
    for (; one.predict(query).likeliest() != other && answers < 1000; ++answers)
      one.learn(query, 5);
    return answers;
  };
  const int stiff = answers_until_known(predictor);
  EXPECT_LT(answers_until_known(halved), stiff / 2) << stiff;
}

TEST(NgramPredictorTest, RefusesNumbersThatAreNone) {
  NgramPredictor predictor(kBuckets);
  std::vector<float> weights(predictor.weights().begin(), predictor.weights().end());
  std::vector<float> gradients(predictor.gradients().begin(), predictor.gradients().end());
  weights[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(error_of([&] { predictor.restore(weights, gradients, 1); }), "no error");
  weights[3] = 0;
  gradients[0] = 0;
  EXPECT_NE(error_of([&] { predictor.restore(weights, gradients, 1); }), "no error");
  gradients.pop_back();
  EXPECT_NE(error_of([&] { predictor.restore(weights, gradients, 1); }), "no error");
}

}  // namespace
}  // namespace spillway
