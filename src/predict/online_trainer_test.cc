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

// Makes prompts whose verb decides the answer's length. Requests of the other kind have the same
// verbs with other lengths.
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

// Makes prompts whose topic decides the answer's length, unless all answers are long.
std::vector<LengthExample> about_topics(int first, int last, uint32_t seed, bool are_long) {
  std::mt19937 random(seed);
  std::vector<LengthExample> examples;
  for (int topic = first; topic < last; ++topic) {
    for (int i = 0; i < 10; ++i) {
      const std::string prompt = "Topic" + std::string(1, static_cast<char>('a' + topic % 26)) +
                                 std::string(1, static_cast<char>('a' + topic / 26)) + " part" +
                                 std::to_string(random() % 10);
      const int tokens = are_long ? 420 : 50 * (topic % 5);
      examples.push_back({prompt, prompt, tokens + 1 + static_cast<int>(random() % 40)});
    }
  }
  for (size_t i = examples.size(); i > 1; --i) std::swap(examples[i - 1], examples[random() % i]);
  return examples;
}

// In mid-run the trainer keeps answers of the old kind, and a few prompts that repeat are soon
// learned by heart. Neither must hide that all other prompts have changed, too.
TEST(OnlineTrainerTest, KnowsRequestsOfAnotherKindInMidRunFromFewOfThem) {
  const auto before = about_topics(0, 80, 1, false), few = about_topics(0, 4, 2, true);
  OnlineTrainer trainer(std::make_unique<NgramPredictor>(train_predictor(before, kBuckets)));
  const auto meet = [&](const std::vector<LengthExample>& examples, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const LengthExample& example = examples[i % examples.size()];
      trainer.finished(trainer.predict({.text = example.prompt}), example.tokens);
    }
    trainer.wait_until_learned();
  };
  meet(before, 600);
  EXPECT_EQ(trainer.counts().shifts, 0U);
  meet(few, 500);
  EXPECT_GE(trainer.counts().shifts, 1U);
  const auto tests = about_topics(4, 80, 3, true);
  EXPECT_GT(accuracy(*trainer.copy(), tests),
            accuracy(train_predictor(few, kBuckets), tests) - 0.02);
}

TEST(OnlineTrainerTest, ForgetsNothingWhereAnswersStayOfOneKind) {
  for (const bool is_fresh : {true, false}) {
    const auto coming = made_up(1000, 4, false);
    NgramPredictor one =
        is_fresh ? NgramPredictor(kBuckets) : train_predictor(made_up(800, 1, false), kBuckets);
    OnlineTrainer trainer(one.copy(), {.replays = 0});
    for (const LengthExample& example : coming) {
      const LengthQuery query{.text = example.prompt};
      trainer.finished(trainer.predict(query), example.tokens);
      one.learn(query, example.tokens);
    }
    trainer.wait_until_learned();
    EXPECT_EQ(trainer.counts().shifts, 0U);
    for (const LengthExample& test : made_up(20, 5, false)) {
      const LengthQuery query{.text = test.prompt};
      for (size_t i = 0; i < kLengthBuckets; ++i)
        EXPECT_EQ(trainer.copy()->predict(query).share(i), one.predict(query).share(i));
    }
  }
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

TEST(OnlineTrainerTest, ARunningMeanDoesNotAverageOverAShift) {
  RunningMeanPredictor before(kBuckets);
  for (int i = 0; i < 5000; ++i) before.learn({}, 30);
  OnlineTrainer trainer(before.copy());
  for (int i = 0; i < 200; ++i) trainer.finished(trainer.predict({.text = "any"}), 400);
  trainer.wait_until_learned();
  EXPECT_EQ(trainer.predict({.text = "any"}).distribution.likeliest(), kBuckets.bucket_of(400));
  EXPECT_GT(trainer.examples(), 5000U) << "it has learned from those, too";
}

// Ending must not wait for a long queue.
TEST(OnlineTrainerTest, EndsAtOnceWhateverWaits) {
  OnlineTrainer trainer(fresh(), {.most_waiting = 100'000, .replays = 1000});
  const PredictedLength predicted = trainer.predict({.text = "Write a story"});
  for (int i = 0; i < 50'000; ++i) trainer.finished(predicted, 100);
}

}  // namespace
}  // namespace spillway
