// SPDX-License-Identifier: Apache-2.0
#include "predict/predictor_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

// Makes prompts whose verb decides the answer's length, up to some noise.
std::vector<LengthExample> made_up(int count) {
  const std::vector<std::pair<std::string, int>> verbs = {
      {"Name", 4}, {"Classify", 20}, {"Explain", 130}, {"Write", 300}, {"Summarize", 70}};
  std::mt19937 random(11);
  std::vector<LengthExample> examples;
  for (int i = 0; i < count; ++i) {
    const auto& [verb, tokens] = verbs[random() % verbs.size()];
    const std::string prompt = verb + " thing " + std::to_string(random());
    examples.push_back({prompt, prompt, tokens + static_cast<int>(random() % 10)});
  }
  return examples;
}

TEST(PredictorTrainingTest, LearnsWhatVerbsAskFor) {
  const std::vector<LengthExample> examples = made_up(300);
  const PredictorScore score = cross_validate(examples, {});
  EXPECT_GT(score.linear.accuracy, 0.95);
  EXPECT_LT(score.linear.majority_accuracy, 0.6);
  EXPECT_GT(score.equal_frequency.accuracy, 2 * score.equal_frequency.majority_accuracy);
  EXPECT_EQ(score.examples, 300);
  EXPECT_GT(score.reserved_enough, 0.5);
  EXPECT_LT(score.reserved_tokens, 2 * score.mean_tokens);
  EXPECT_GT(score.us_per_prediction, 0);
}

TEST(PredictorTrainingTest, TheSameDataTrainTheSame) {
  const std::vector<LengthExample> examples = made_up(60);
  const LengthBuckets buckets = LengthBuckets::equal_frequency(lengths_of(examples));
  const NgramPredictor one = train_predictor(examples, buckets),
                       other = train_predictor(examples, buckets);
  EXPECT_TRUE(std::ranges::equal(one.weights(), other.weights()));
}

TEST(PredictorTrainingTest, AnInstructionIsNeverOnBothSidesOfASplit) {
  // All examples are of one group, so that training on one of them would tell about all others.
  std::vector<LengthExample> examples = made_up(20);
  for (LengthExample& example : examples) example.group = "the same";
  EXPECT_NE(error_of([&] { cross_validate(examples, {}); }).find("one group"), std::string::npos);
}

TEST(PredictorTrainingTest, StopsWhenToldTo) {
  const std::atomic<bool> cancel = true;
  const std::vector<LengthExample> examples = made_up(20);
  EXPECT_NE(error_of([&] {
              train_predictor(examples, LengthBuckets::linear(512), &cancel);
            }).find("stopped"),
            std::string::npos);
}

TEST(PredictorTrainingTest, ATrainedOneIsScoredOnAll) {
  const std::vector<LengthExample> examples = made_up(200);
  const NgramPredictor predictor =
      train_predictor(examples, LengthBuckets::equal_frequency(lengths_of(examples)));
  const PredictorScore score = evaluate(made_up(300), predictor, {});
  EXPECT_GT(score.linear.accuracy, score.linear.majority_accuracy * 1.3);
}

}  // namespace
}  // namespace spillway
