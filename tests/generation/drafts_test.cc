// SPDX-License-Identifier: Apache-2.0
// Drafts change no answer: not its tokens, nor their log-probabilities, nor where it ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/swapping_runtime.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

const DraftOptions kLookup{.kind = DraftKind::kLookup};

// The answer of a request, and the log-probability of each of its tokens.
struct Told {
  Answer answer;
  std::vector<float> logprobs;
  bool operator==(const Told&) const = default;
};

struct Outcome {
  std::vector<Told> told;
  EngineStats stats;
  int64_t accepted = 0, rejected = 0;  // as the last events report them
};

Outcome answer(Engine& engine, const std::vector<GenerationRequest>& requests) {
  std::map<RequestId, Told> told;
  Outcome run;
  for (const GenerationRequest& request : requests) told[engine.submit(request)];
  const auto sink = [&](const GenerationEvent& event) {
    EXPECT_EQ(event.error, "");
    Told& of = told.at(event.id);
    EXPECT_FALSE(of.answer.finish.has_value()) << "an event after the end";
    if (event.token) of.answer.ids.push_back(*event.token);
    of.answer.text += event.text;
    of.answer.finish = event.finish;
    run.accepted += event.draft_accepted;
    run.rejected += event.draft_rejected;
    if (!event.logprobs) return;
    of.logprobs.push_back(event.logprobs->chosen);
    for (const TokenLogprob& top : event.logprobs->top) of.logprobs.push_back(top.logprob);
  };
  while (engine.step(sink)) {
    EXPECT_LT(engine.stats().steps, 20'000);
    if (engine.stats().steps >= 20'000) break;
  }
  for (auto& [id, of] : told) run.told.push_back(std::move(of));
  run.stats = engine.stats();
  return run;
}

// Few tokens are likely, so they repeat: some drafts are right and others are not.
GenerationRequest repeating_request(int n, int max_tokens = 60) {
  GenerationRequest request =
      make_request(4 + 5 * n, static_cast<uint32_t>(n), max_tokens, n % 3 == 0 ? 0.0F : 0.7F);
  for (TokenId& token : request.prompt) token = 10 + token % 3;
  for (TokenId token = 10; token < 13; ++token)
    request.sampling.logit_bias.emplace_back(token, 7.0F);
  return request;
}

// Requests of every kind: greedy and sampled, penalties, log-probabilities, few tokens and many.
std::vector<GenerationRequest> all_kinds() {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < 10; ++n) requests.push_back(repeating_request(n, 20 + 11 * (n % 5)));
  requests[1].sampling.repetition_penalty = 1.2F;
  requests[2].sampling.repetition_penalty = 1.3F;
  requests[2].sampling.repetition_window = 9;
  requests[3].sampling.frequency_penalty = 0.3F;
  requests[4].sampling.presence_penalty = 0.5F;
  requests[4].sampling.top_k = 3;
  requests[5].sampling.top_p = 0.8F;
  requests[6].max_tokens = 1;
  requests[7].max_tokens = 2;
  requests[8].stop_ids = {11};
  requests[8].min_tokens = 25;
  for (int n = 0; n < 10; n += 2) requests[static_cast<size_t>(n)].sampling.logprobs = n % 4;
  return requests;
}

class DraftsTest : public testing::TestWithParam<const char*> {
 protected:
  DraftsTest() { runtime_.device.ops().set_deterministic(true); }

  Outcome run(const std::vector<GenerationRequest>& requests, EngineOptions options,
              const DraftOptions& drafts, int32_t blocks = 200,
              const Tokenizer* tokenizer = nullptr, float topk = 0) {
    KvCache kv = runtime_.make_kv(blocks);
    Decoder decoder = runtime_.make_decoder(64);
    decoder.set_attention_topk(topk);
    options.drafts = drafts;
    Engine engine(decoder, kv, tokenizer, options);
    return answer(engine, requests);
  }
  // Expects the same answers with drafts, some of them right and some wrong, as without.
  Outcome expect_same(const std::vector<GenerationRequest>& requests,
                      const EngineOptions& options = {}, int32_t blocks = 200,
                      const Tokenizer* tokenizer = nullptr, float topk = 0) {
    const Outcome without = run(requests, options, {}, blocks, tokenizer, topk),
                  with = run(requests, options, kLookup, blocks, tokenizer, topk);
    EXPECT_EQ(without.stats.draft_proposed, 0);
    EXPECT_EQ(without.accepted + without.rejected, 0);
    EXPECT_GT(with.stats.draft_accepted, 0);
    EXPECT_GT(with.stats.draft_proposed, with.stats.draft_accepted);
    EXPECT_EQ(with.accepted, with.stats.draft_accepted);
    EXPECT_EQ(with.accepted + with.rejected, with.stats.draft_proposed);
    EXPECT_LT(with.stats.steps, without.stats.steps);
    EXPECT_EQ(with.stats.generated_tokens, without.stats.generated_tokens);
    EXPECT_EQ(with.told.size(), without.told.size());
    for (size_t i = 0; i < with.told.size(); ++i)
      EXPECT_EQ(with.told[i], without.told[i]) << "request " << i;
    return with;
  }

  TinyRuntime runtime_{GetParam()};
};

TEST_P(DraftsTest, AnswersAreTheSame) { expect_same(all_kinds()); }

TEST_P(DraftsTest, AnswersAreTheSameInSmallSteps) {
  for (const int step_tokens : {3, 7, 20}) {
    SCOPED_TRACE(step_tokens);
    expect_same(all_kinds(), {.max_step_tokens = step_tokens, .admission = {.max_sequences = 3}});
  }
}

TEST_P(DraftsTest, AnswersAreTheSameWhereSequencesArePreempted) {
  for (const bool reuses : {false, true}) {
    SCOPED_TRACE(reuses);
    EXPECT_GT(expect_same(all_kinds(), {.reuse_prefixes = reuses}, 12).stats.preemptions, 0);
  }
}

TEST_P(DraftsTest, AnswersAreTheSameWithSparseAttention) {
  expect_same(all_kinds(), {}, 200, nullptr, 0.3F);
}

TEST_P(DraftsTest, ChoicesOfOnePromptAreTheSame) {
  std::vector<GenerationRequest> requests(6, repeating_request(7));
  for (size_t n = 0; n < requests.size(); ++n) requests[n].sampling.seed = n;
  for (GenerationRequest& request : requests) request.sampling.temperature = 0.9F;
  expect_same(requests, {.reuse_prefixes = true});
}

TEST_P(DraftsTest, EndWhereTheyWouldWithout) {
  const Tokenizer tokenizer = letter_tokenizer();
  std::vector<GenerationRequest> requests;
  const Outcome whole = run({repeating_request(4)}, {}, {}, 200, &tokenizer);
  const std::string& text = whole.told[0].answer.text;
  for (size_t n = 0; n + 3 < text.size(); n += 4) {
    requests.push_back(repeating_request(4));
    requests.back().stop = {text.substr(n, 1 + n % 3)};
    requests.back().min_tokens = static_cast<int>(n % 30);
  }
  for (int n = 0; n < 6; ++n) {
    requests.push_back(repeating_request(n));
    requests.back().sampling.logit_bias.emplace_back(0, 4.5F);  // the end token, sooner or later
    requests.back().sampling.temperature = 1;
    requests.back().min_tokens = 5 * n;
  }
  const Outcome with = expect_same(requests, {}, 200, &tokenizer);
  EXPECT_TRUE(std::ranges::any_of(
      with.told, [](const Told& of) { return of.answer.finish == FinishReason::kStop; }));
}

// A conversation reuses KV that accepted drafts have computed, including whole blocks of it, but no
// KV of rejected drafts.
TEST_P(DraftsTest, AConversationGoesOnFromWhatDraftsHaveComputed) {
  KvCache kv = runtime_.make_kv(40);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .drafts = kLookup});
  GenerationRequest request = repeating_request(9, 45);
  int64_t computed = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const int64_t before = engine.stats().reused_tokens;
    const Outcome with = answer(engine, {request});
    const Outcome alone = run({request}, {}, {});
    EXPECT_EQ(with.told, alone.told) << "turn " << turn;
    EXPECT_EQ(engine.stats().reused_tokens - before, computed);
    const std::vector<TokenId>& ids = with.told[0].answer.ids;
    computed = std::ssize(request.prompt) + std::ssize(ids) - 1;
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    for (int i = 0; i < 5; ++i) request.prompt.push_back(10 + (turn + i) % 5);
  }
  EXPECT_GT(engine.stats().draft_accepted, 0);
}

TEST_P(DraftsTest, StopWhereTheContextEnds) {
  GenerationRequest request = repeating_request(10, 500);
  EngineOptions options{.max_sequence_tokens = 100};
  const Outcome with = expect_same({request}, options);
  EXPECT_EQ(with.told[0].answer.ids.size(), 100 - request.prompt.size());
  EXPECT_EQ(with.told[0].answer.finish, FinishReason::kLength);
}

INSTANTIATE_TEST_SUITE_P(Families, DraftsTest,
                         testing::Values("llama", "window", "mixed", "chunks", "opt", "qwen3",
                                         "neox"));

// The number of swapped layers changes from step to step.
TEST(DraftsOnAcceleratorTest, AnswersAreTheSameWithSwappedLayers) {
  SwappingRuntime runtime("llama-deep");
  std::vector<std::vector<Told>> told;
  int64_t accepted = 0;
  for (const DraftOptions& drafts : {DraftOptions{}, kLookup}) {
    KvCache kv = runtime.make_kv(14, 7);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .drafts = drafts});
    std::vector<GenerationRequest> requests = all_kinds();
    std::map<RequestId, Told> answers;
    for (const GenerationRequest& request : requests) answers[engine.submit(request)];
    constexpr int kSwapped[] = {0, 5, 7, 4, 0, 6};
    int step = 0;
    while (engine.step([&](const GenerationEvent& event) {
      EXPECT_EQ(event.error, "");
      if (event.token) answers.at(event.id).answer.ids.push_back(*event.token);
    })) {
      if (++step % 9 == 0) engine.change_swapped_layers(kSwapped[step / 9 % 6]);
      ASSERT_LT(step, 5000);
    }
    told.emplace_back();
    for (auto& [id, of] : answers) told.back().push_back(std::move(of));
    accepted = engine.stats().draft_accepted;
  }
  EXPECT_EQ(told[0], told[1]);
  EXPECT_GT(accepted, 0);
}

// Drafts that are accepted at random cost as much as right ones; the tokens are those that are
// sampled.
TEST(DrawnDraftsTest, AreAcceptedAsOftenAsIsAsked) {
  TinyRuntime runtime("llama");
  for (const double acceptance : {0.0, 0.6, 1.0}) {
    SCOPED_TRACE(acceptance);
    KvCache kv = runtime.make_kv(200);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.drafts = {.kind = DraftKind::kDrawn, .acceptance = acceptance, .tokens = 4}});
    for (uint32_t n = 0; n < 4; ++n) engine.submit(make_request(10, n, 300));
    for (const auto& [id, of] : run_all(engine)) EXPECT_EQ(of.ids.size(), 300U);
    const EngineStats& stats = engine.stats();
    const double tokens_a_step = 300.0 / static_cast<double>(stats.steps);
    // The expected number is 1 + p + p^2 + p^3 + p^4 with p = 0.6: 2.31.
    if (acceptance == 0.0) {
      EXPECT_EQ(stats.draft_accepted, 0);
      EXPECT_LT(stats.draft_proposed, 4 * 100) << "they are given up";
    } else if (acceptance == 1.0) {
      EXPECT_EQ(stats.draft_proposed, stats.draft_accepted);
      EXPECT_GT(tokens_a_step, 4.8);
    } else {
      EXPECT_GT(tokens_a_step, 2.0);
      EXPECT_LT(tokens_a_step, 2.4);
    }
  }
}

// A model whose logits are all 0, so that the probabilities of tokens depend on their biases alone,
// at every position and whatever came before.
class DistributionTest : public testing::Test {
 protected:
  static constexpr std::array<float, 6> kBiases = {0, 0.4F, 0.9F, 1.3F, 1.5F, 2.2F};
  static constexpr TokenId kFirst = 20;
  static constexpr float kOthers = 60;  // all other tokens get so much less bias

  DistributionTest() {
    for (const auto& op : runtime_.weights.head.ops) {
      for (const MatrixWeights& matrix : op) {
        if (!matrix.is_matrix()) continue;
        const WeightView& head = matrix.weight;
        std::memset(const_cast<std::byte*>(head.data), 0, static_cast<size_t>(head.bytes()));
      }
    }
  }
  static std::vector<double> probabilities() {
    double sum = 0;
    std::vector<double> of;
    for (const float bias : kBiases) sum += std::exp(double{bias});
    for (const float bias : kBiases) of.push_back(std::exp(double{bias}) / sum);
    return of;
  }
  // Returns chi-square of counts that should be `total` times these probabilities.
  static double chi_square(const std::vector<int64_t>& counts, const std::vector<double>& of) {
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    double sum = 0;
    for (size_t i = 0; i < of.size(); ++i) {
      const double wanted = of[i] * static_cast<double>(total);
      sum += (static_cast<double>(counts[i]) - wanted) * (static_cast<double>(counts[i]) - wanted) /
             wanted;
    }
    return sum;
  }

  TinyRuntime runtime_{"llama"};
};

TEST_F(DistributionTest, AHundredThousandDrawsWithDraftsAreDistributedAsTheModelSays) {
  constexpr int kRequests = 170, kTokens = 600;
  KvCache kv = runtime_.make_kv(32 * 40);
  Decoder decoder = runtime_.make_decoder(512);
  Engine engine(decoder, kv, nullptr, {.admission = {.max_sequences = 10}, .drafts = kLookup});
  for (uint32_t n = 0; n < kRequests; ++n) {
    GenerationRequest request = make_request(20, n, kTokens, 1);
    for (size_t i = 0; i < kBiases.size(); ++i)
      request.sampling.logit_bias.emplace_back(kFirst + static_cast<TokenId>(i),
                                               kOthers + kBiases[i]);
    request.sampling.seed = 1000 + n;
    engine.submit(request);
  }
  const std::vector<double> single = probabilities();
  std::vector<int64_t> counts(single.size()), pairs(single.size() * single.size());
  int64_t draws = 0;
  for (const auto& [id, of] : run_all(engine)) {
    size_t before = single.size();
    for (const TokenId token : of.ids) {
      ASSERT_GE(token, kFirst);
      const auto index = static_cast<size_t>(token - kFirst);
      ASSERT_LT(index, single.size());
      ++counts[index];
      ++draws;
      if (before < single.size()) ++pairs[before * single.size() + index];
      before = index;
    }
  }
  EXPECT_GE(draws, 100'000);
  EXPECT_GT(engine.stats().draft_accepted, 5'000);
  EXPECT_GT(engine.stats().draft_proposed - engine.stats().draft_accepted, 5'000);
  // With five and 35 degrees of freedom, these values are exceeded by chance once in a thousand
  // times.
  EXPECT_LT(chi_square(counts, single), 20.5);
  std::vector<double> both;
  for (const double a : single)
    for (const double b : single) both.push_back(a * b);
  EXPECT_LT(chi_square(pairs, both), 66.6);
}

}  // namespace
}  // namespace spillway::testing_models
