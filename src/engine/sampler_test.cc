// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace spillway {
namespace {

const std::vector<float> kLogits{1, 3, 2, 3, -1};

TokenId sample_once(SamplingParams params, const std::vector<float>& logits, int64_t position = 0) {
  return Sampler(std::move(params), {}).sample(logits, position).id;
}

TokenId sample_and_accept(Sampler& sampler, int64_t position) {
  const TokenId id = sampler.sample(kLogits, position).id;
  sampler.accept(id);
  return id;
}

std::set<TokenId> reachable(const SamplingParams& params, const std::vector<float>& logits) {
  std::set<TokenId> ids;
  for (int position = 0; position < 3000; ++position)
    ids.insert(sample_once(params, logits, position));
  return ids;
}

TEST(SamplerTest, GreedyTakesTheFirstOfEqualLogits) { EXPECT_EQ(sample_once({}, kLogits), 1); }

TEST(SamplerTest, DrawsInProportionToTheProbabilities) {
  SamplingParams params;
  params.temperature = 1;
  std::map<TokenId, int> counts;
  const int draws = 40'000;
  for (int position = 0; position < draws; ++position)
    ++counts[sample_once(params, kLogits, position)];
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double expected = std::exp(kLogits[i]) / total;
    EXPECT_NEAR(counts[static_cast<TokenId>(i)] / double{draws}, expected,
                4 * std::sqrt(expected / draws))
        << i;
  }
}

TEST(SamplerTest, RepeatsWithTheSameSeedAndPosition) {
  SamplingParams params;
  params.temperature = 2;
  params.seed = 5;
  std::vector<TokenId> first, second, other;
  for (int position = 0; position < 100; ++position) {
    first.push_back(sample_once(params, kLogits, position));
    second.push_back(sample_once(params, kLogits, position));
  }
  params.seed = 6;
  for (int position = 0; position < 100; ++position)
    other.push_back(sample_once(params, kLogits, position));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

TEST(SamplerTest, CutsByTopKTopPAndMinP) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 3;
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1, 2, 3}));
  params = {};
  params.temperature = 1;
  params.top_p = 0.5F;  // tokens 1 and 3 have 0.41 each
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1, 3}));
  params = {};
  params.temperature = 1;
  params.min_p = 0.2F;  // token 2 has e^-1 = 0.37 of the top, token 0 e^-2 = 0.14
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1, 2, 3}));
  params.top_p = 0;
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1}));
}

TEST(SamplerTest, TopPIsAShareOfWhatTopKLeft) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 2;
  params.top_p = 0.5F;  // of tokens 1 and 3 alone: half each. Of all tokens each has 0.41.
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1}));
}

TEST(SamplerTest, TemperatureComesBeforeTheCuts) {
  SamplingParams params;
  params.min_p = 0.3F;  // token 2 has e^-1 = 0.37 of the top at temperature 1, 0.14 at 0.5
  params.temperature = 1;
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1, 2, 3}));
  params.temperature = 0.5F;
  EXPECT_EQ(reachable(params, kLogits), (std::set<TokenId>{1, 3}));
}

TEST(SamplerTest, ARepetitionWindowForgetsWhatIsOlder) {
  SamplingParams params;
  params.repetition_penalty = 2;
  params.repetition_window = 2;
  const std::vector<TokenId> prompt{1, 3, 4};  // 1 is out of the window
  Sampler sampler(params, prompt);
  // 3 and 4 count; then 4 and 1; then 1 and 3; then 3 and 2, with 1 free again.
  std::vector<TokenId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(sample_and_accept(sampler, i));
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 3, 2, 1}));

  params.repetition_window = 0;
  Sampler all(params, prompt);
  EXPECT_EQ(sample_and_accept(all, 0), 2);
}

std::vector<float> draw_logits(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Returns the greedy choice with the penalty as references define it: transformers'
// RepetitionPenaltyLogitsProcessor (scores below 0 times the penalty, others divided by it, of all
// tokens that came before), and llama.cpp's, which looks at the last `window` of them.
TokenId choose_by_reference(std::vector<float> logits, const std::vector<TokenId>& tokens,
                            size_t window, float penalty) {
  const size_t first = window == 0 || tokens.size() < window ? 0 : tokens.size() - window;
  const std::set<TokenId> seen(tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end());
  for (const TokenId id : seen) {
    float& score = logits[static_cast<size_t>(id)];
    score = score < 0 ? score * penalty : score / penalty;
  }
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(SamplerTest, TheRepetitionPenaltyIsThatOfTheReferences) {
  constexpr size_t kVocabulary = 300;
  for (const int window : {0, 1, 64}) {
    std::mt19937 random(static_cast<unsigned>(window));
    std::vector<TokenId> tokens;
    for (int i = 0; i < 100; ++i) tokens.push_back(static_cast<TokenId>(random() % kVocabulary));
    SamplingParams params;
    params.repetition_penalty = 1.7F;
    params.repetition_window = window;
    Sampler sampler(params, tokens);
    int moved = 0;
    for (int step = 0; step < 200; ++step) {
      const std::vector<float> logits = draw_logits(random, kVocabulary);
      const TokenId expected =
          choose_by_reference(logits, tokens, static_cast<size_t>(window), 1.7F);
      const TokenId id = sampler.sample(logits, step).id;
      ASSERT_EQ(id, expected) << "window " << window << ", step " << step;
      moved += id != choose_by_reference(logits, {}, 0, 1) ? 1 : 0;
      sampler.accept(id);
      tokens.push_back(id);
    }
    EXPECT_TRUE(window == 1 || moved > 20) << moved << " choices were moved";
  }
}

TEST(SamplerTest, ForbidsTokensUntilSoManyWereAccepted) {
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    params.logit_bias = {{1, 100.0F}, {3, 50.0F}};  // the bias works for the forbidden tokens
    params.repetition_penalty = 1.5F;
    Sampler sampler(params, std::vector<TokenId>{1, 2});
    sampler.forbid_until(2, {1, 3});
    EXPECT_EQ(sampler.sample_row(0).adjustments.size(), 3U);
    for (int position = 0; position < 500; ++position) {
      const TokenId id = sampler.sample(kLogits, position).id;
      EXPECT_TRUE(id == 0 || id == 2 || id == 4) << id;
    }
    sampler.accept(0);
    EXPECT_NE(sampler.sample(kLogits, 500).id, 1);
    sampler.accept(0);
    EXPECT_EQ(sampler.sample(kLogits, 501).id, 1);
  }
}

TEST(SamplerTest, BiasAndPenaltiesMoveTheChoice) {
  SamplingParams params;
  params.logit_bias = {{4, 100.0F}, {1, -100.0F}};
  EXPECT_EQ(sample_once(params, kLogits), 4);

  params = {};
  params.presence_penalty = 0.5F;
  Sampler presence(params, {});
  EXPECT_EQ(sample_and_accept(presence, 0), 1);
  EXPECT_EQ(sample_and_accept(presence, 1), 3);
  EXPECT_EQ(sample_and_accept(presence, 2), 1);  // both once: 2.5 each, the first wins

  params = {};
  params.frequency_penalty = 0.6F;
  Sampler frequency(params, {});
  std::vector<TokenId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(sample_and_accept(frequency, i));
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 3, 1, 3, 2}));

  params = {};
  params.repetition_penalty = 2;
  const std::vector<TokenId> prompt{1, 3};
  Sampler repetition(params, prompt);
  EXPECT_EQ(sample_and_accept(repetition, 0), 2);
}

TEST(SamplerTest, ReportsTheModelsOwnLogprobs) {
  SamplingParams params;
  params.temperature = 5;
  params.logit_bias = {{4, 100.0F}};
  params.logprobs = 2;
  const auto [id, logprobs] = Sampler(params, {}).sample(kLogits, 0);
  EXPECT_EQ(id, 4);
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  EXPECT_NEAR(logprobs.chosen, -1 - std::log(total), 1e-6);
  ASSERT_EQ(logprobs.top.size(), 2U);
  EXPECT_EQ(logprobs.top[0].id, 1);
  EXPECT_EQ(logprobs.top[1].id, 3);
  EXPECT_NEAR(logprobs.top[0].logprob, 3 - std::log(total), 1e-6);
}

TEST(SamplerTest, DrawsNothingFromARowThatIsNotAllNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    for (const float wrong : {nan, -nan, infinity}) {
      for (size_t at = 0; at < 40; ++at) {
        std::vector<float> logits(40, 1);
        logits[at] = wrong;
        EXPECT_EQ(sample_once(params, logits), -1) << wrong << " at " << at;
      }
    }
    EXPECT_EQ(sample_once(params, {-infinity, -infinity}), -1);
    // Minus infinity marks a token that is never to be sampled.
    EXPECT_EQ(sample_once(params, {-infinity, 1, -infinity}), 1);
  }
}

TEST(SamplerTest, RefusesParametersThatMakeNoSense) {
  const auto refuses = [](auto&& change) {
    SamplingParams params;
    change(params);
    EXPECT_THROW(validate(params, 100), Error);
  };
  EXPECT_NO_THROW(validate(SamplingParams{}, 100));
  refuses([](auto& p) { p.temperature = -1; });
  refuses([](auto& p) { p.temperature = NAN; });
  refuses([](auto& p) { p.top_p = 1.5F; });
  refuses([](auto& p) { p.min_p = -0.1F; });
  refuses([](auto& p) { p.top_k = -5; });
  refuses([](auto& p) { p.repetition_penalty = 0; });
  refuses([](auto& p) { p.repetition_window = -1; });
  refuses([](auto& p) { p.logprobs = 100'000; });
  refuses([](auto& p) { p.logit_bias = {{100, 1.0F}}; });
  refuses([](auto& p) { p.logit_bias = {{1, INFINITY}}; });
}

}  // namespace
}  // namespace spillway
