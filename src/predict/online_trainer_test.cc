// SPDX-License-Identifier: Apache-2.0
#include "predict/online_trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "predict/predictor_training.h"
#include "predict/simple_predictors.h"

namespace spillway {
namespace {

const LengthBuckets kBuckets = LengthBuckets::linear(512);

std::unique_ptr<OnlinePredictor> fresh() { return std::make_unique<NgramPredictor>(kBuckets); }

// One kind of requests: what verbs ask for, until another kind comes in which they ask for others.
std::vector<LengthExample> made_up(int count, uint32_t seed, bool is_other_kind) {
  const std::vector<std::pair<std::string, int>> verbs = {
      {"Name", 4}, {"Classify", 60}, {"Explain", 130}, {"Write", 300}, {"Summarize", 230}};
  std::mt19937 random(seed);
  std::vector<LengthExample> examples;
  for (int i = 0; i < count; ++i) {
    const size_t verb = random() % verbs.size();
    const size_t length = is_other_kind ? verbs.size() - 1 - verb : verb;
    const std::string prompt = verbs[verb].first + " thing " + std::to_string(random() % 1000);
    examples.push_back({prompt, prompt, verbs[length].second + static_cast<int>(random() % 40)});
  }
  return examples;
}

double accuracy(const OnlinePredictor& predictor, const std::vector<LengthExample>& tests) {
  return evaluate(tests, predictor, {}).linear.accuracy;
}

TEST(OnlineTrainerTest, KnowsRequestsOfAnotherKindAfterFiveHundredOfThem) {
  OnlineTrainer trainer(
      std::make_unique<NgramPredictor>(train_predictor(made_up(800, 1, false), kBuckets)));
  const auto later = made_up(500, 2, true), tests = made_up(300, 3, true);
  const double before = accuracy(*trainer.copy(), tests);
  for (const LengthExample& example : later)
    trainer.finished(trainer.predict({.text = example.prompt}), example.tokens);
  trainer.wait_until_learned();
  const double fresh = accuracy(train_predictor(later, kBuckets), tests);
  EXPECT_LT(before, fresh - 0.2);
  EXPECT_GT(accuracy(*trainer.copy(), tests), fresh - 0.02);
}

TEST(OnlineTrainerTest, AFullQueueDropsAndCounts) {
  OnlineTrainer trainer(fresh(), {.most_waiting = 2, .replays = 2000});
  const PredictedLength predicted = trainer.predict({.text = "Write a long story"});
  for (int i = 0; i < 500; ++i) trainer.finished(predicted, 100);
  trainer.wait_until_learned();
  const OnlineTrainerCounts counts = trainer.counts();
  EXPECT_EQ(counts.learned + counts.dropped, 500U);
  EXPECT_GT(counts.dropped, 0U);
}

TEST(OnlineTrainerTest, BadLengthsAreRefusedAndTeachNothing) {
  OnlineTrainer trainer(fresh());
  const PredictedLength predicted = trainer.predict({.text = "Write a story"});
  for (const int64_t tokens : {int64_t{0}, int64_t{-5}, std::numeric_limits<int64_t>::max()})
    trainer.finished(predicted, tokens);
  trainer.finished({predicted.distribution, {}}, 10);
  trainer.wait_until_learned();
  EXPECT_EQ(trainer.counts().refused, 4U);
  EXPECT_EQ(trainer.copy()->examples(), 0U);
}

TEST(OnlineTrainerTest, CountsWhatWasPredictedTooLongAndTooShort) {
  OnlineTrainer trainer(fresh());
  for (int i = 0; i < 50; ++i) {
    trainer.finished(trainer.predict({.text = "Write a story"}), 250);
    trainer.wait_until_learned();
  }
  const OnlineTrainerCounts before = trainer.counts();
  EXPECT_GT(before.right, 30U);
  trainer.finished(trainer.predict({.text = "Write a story"}), 1);
  trainer.finished(trainer.predict({.text = "Write a story"}), 500);
  const OnlineTrainerCounts after = trainer.counts();
  EXPECT_EQ(after.over - before.over, 1U);
  EXPECT_EQ(after.under - before.under, 1U);
}

TEST(OnlineTrainerTest, ManyThreadsAskAndTellAtOnce) {
  OnlineTrainer trainer(fresh(), {.most_waiting = 64});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&trainer, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string prompt = "Thing " + std::to_string(t) + " of " + std::to_string(i);
        trainer.finished(trainer.predict({.text = prompt}), 1 + i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  trainer.wait_until_learned();
  const OnlineTrainerCounts counts = trainer.counts();
  EXPECT_EQ(counts.learned + counts.dropped, 800U);
  EXPECT_EQ(counts.right + counts.over + counts.under, 800U);
}

TEST(OnlineTrainerTest, WhatItLearnedIsKeptAtTheEndWhereItIsWorthIt) {
  for (const uint64_t answers : {3U, 40U}) {
    std::vector<uint64_t> kept;
    {
      OnlineTrainer trainer(
          fresh(), {.replays = 0,
                    .keep = [&](const OnlinePredictor& of) { kept.push_back(of.examples()); },
                    .worth_keeping = 10});
      for (uint64_t i = 0; i < answers; ++i)
        trainer.finished(trainer.predict({.text = "Write a story"}), 30);
      trainer.wait_until_learned();
    }
    EXPECT_EQ(kept, answers < 10 ? std::vector<uint64_t>{} : std::vector<uint64_t>{answers});
  }
}

TEST(OnlineTrainerTest, WhatItLearnedIsKeptNowAndThen) {
  std::atomic<uint64_t> kept = 0;
  OnlineTrainer trainer(
      fresh(),
      {.keep = [&](const OnlinePredictor&) { ++kept; }, .keep_every_s = 1e-3, .worth_keeping = 1});
  while (kept < 3) trainer.finished(trainer.predict({.text = "Write a story"}), 30);
}

TEST(OnlineTrainerTest, AnyPredictorThatLearnsWillDo) {
  OnlineTrainer trainer(std::make_unique<RunningMeanPredictor>(kBuckets));
  for (int i = 0; i < 50; ++i) trainer.finished(trainer.predict({.text = "any"}), 130);
  trainer.wait_until_learned();
  EXPECT_EQ(trainer.predict({.text = "another"}).distribution.likeliest(), kBuckets.bucket_of(130));
  EXPECT_GE(trainer.examples(), 50U);
  EXPECT_NEAR(trainer.counts().real_tokens, 50 * 130, 1e-6);
}

// Also with much to do.
TEST(OnlineTrainerTest, EndsAtOnceWhateverWaits) {
  OnlineTrainer trainer(fresh(), {.most_waiting = 100'000, .replays = 1000});
  const PredictedLength predicted = trainer.predict({.text = "Write a story"});
  for (int i = 0; i < 50'000; ++i) trainer.finished(predicted, 100);
}

}  // namespace
}  // namespace spillway
