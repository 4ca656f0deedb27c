// SPDX-License-Identifier: Apache-2.0
// The engine gives every request the same answer, whatever else it runs and however little memory
// it has.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

class EngineTest : public testing::Test {
 protected:
  std::vector<TokenId> alone(const GenerationRequest& request) {
    return answer_alone(runtime_, request).ids;
  }

  TinyRuntime runtime_{"llama"};
};

TEST_F(EngineTest, AnswersAlikeAloneAndInABatchGreedyAndSeeded) {
  runtime_.device.ops().set_deterministic(true);
  for (const float temperature : {0.0F, 1.0F}) {
    for (const int step_tokens : {3, 16, 256}) {
      KvCache kv = runtime_.make_kv(200);
      Decoder decoder = runtime_.make_decoder(step_tokens);
      Engine engine(decoder, kv, nullptr,
                    {.max_step_tokens = step_tokens, .admission = {.max_sequences = 5}});
      std::map<RequestId, GenerationRequest> requests;
      for (uint32_t n = 0; n < 9; ++n) {
        GenerationRequest request = make_request(1 + static_cast<int>(n) * 7, n, 24, temperature);
        requests[engine.submit(request)] = request;
      }
      for (const auto& [id, answer] : run_all(engine)) {
        EXPECT_EQ(answer.finish, FinishReason::kLength);
        EXPECT_EQ(answer.ids, alone(requests.at(id)))
            << "step " << step_tokens << ", temperature " << temperature;
      }
    }
  }
}

TEST_F(EngineTest, AnswersAlikeWhenSequencesArePreempted) {
  runtime_.device.ops().set_deterministic(true);
  KvCache kv = runtime_.make_kv(9);  // 144 tokens for sequences of up to 80 each
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 64});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 5; ++n) {
    GenerationRequest request = make_request(20 + static_cast<int>(n), n, 56, 0.8F);
    requests[engine.submit(request)] = request;
  }
  const auto answers = run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids, alone(requests.at(id)));
}

// KV from the earlier turns of a conversation is not computed again, and answers stay the same.
TEST_F(EngineTest, AnswersAlikeWhereTheBeginningIsThereAlready) {
  runtime_.device.ops().set_deterministic(true);
  KvCache kv = runtime_.make_kv(40);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  GenerationRequest request = make_request(50, 7, 24, 0.8F);
  int64_t computed = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const EngineStats before = engine.stats();
    const RequestId id = engine.submit(request);
    const std::vector<TokenId> answer = run_all(engine).at(id).ids;
    EXPECT_EQ(answer, alone(request)) << "turn " << turn;
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t reused = engine.stats().reused_tokens - before.reused_tokens;
    EXPECT_EQ(engine.stats().prompt_tokens - before.prompt_tokens, prompt - reused);
    // Everything that was computed before is reused, which leaves out the last token.
    EXPECT_EQ(reused, computed);
    computed = prompt + static_cast<int64_t>(answer.size()) - 1;
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    for (const TokenId token : tiny_prompt(5, static_cast<uint32_t>(turn)))
      request.prompt.push_back(token);
  }
}

// Memory is scarce here: blocks of finished requests are evicted first, and waiting requests are
// computed.
TEST_F(EngineTest, AnswersAlikeWhereBeginningsAreSharedAndPreempted) {
  runtime_.device.ops().set_deterministic(true);
  KvCache kv = runtime_.make_kv(9);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 64, .reuse_prefixes = true});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 8; ++n) {
    GenerationRequest request = make_request(34, 1, 40, 0.8F);  // equal but for the sampled tokens
    request.sampling.seed = n;
    requests[engine.submit(request)] = request;
  }
  const auto answers = run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_GT(engine.stats().reused_tokens, 0);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids, alone(requests.at(id)));
}

// Only the last token of the prompt is computed again, even if it is in a block that other
// sequences share.
TEST_F(EngineTest, AnswersAlikeWhereAllIsThereAlready) {
  runtime_.device.ops().set_deterministic(true);
  KvCache kv = runtime_.make_kv(60);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  for (const int length : {1, 2, 15, 16, 17, 31, 32, 33, 48}) {
    GenerationRequest request = make_request(length, static_cast<uint32_t>(length), 20, 0.8F);
    engine.submit(request);
    run_all(engine);
    const int64_t before = engine.stats().reused_tokens;
    // The requests run together, so they share blocks, and each continues in its own copy of the
    // last one.
    std::map<RequestId, GenerationRequest> requests;
    for (uint64_t seed = 100; seed < 103; ++seed) {
      request.sampling.seed = seed;
      requests[engine.submit(request)] = request;
    }
    const auto answers = run_all(engine);
    EXPECT_EQ(engine.stats().reused_tokens - before, 3 * (length - 1)) << length;
    for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids, alone(requests.at(id)));
  }
}

// There are two batch blocks of three requests. Each block computes its prompts in several steps,
// and then all of its answers together.
TEST_F(EngineTest, TellsWhenPrefillAndDecodeBegin) {
  KvCache kv = runtime_.make_kv(200);
  Decoder decoder = runtime_.make_decoder(16);
  Engine engine(
      decoder, kv, nullptr,
      {.admission = {.max_sequences = 3, .admit_in_blocks = true, .prompts_first = true}});
  std::vector<std::pair<bool, int64_t>> phases;  // and the steps before each
  engine.observe_phases(
      [&](bool has_prompts) { phases.emplace_back(has_prompts, engine.stats().steps); });
  for (uint32_t n = 0; n < 6; ++n) engine.submit(make_request(20, n, 9));
  run_all(engine);
  EXPECT_EQ(phases, (std::vector<std::pair<bool, int64_t>>{
                        {true, 0}, {false, 4}, {true, 12}, {false, 16}}));
  EXPECT_EQ(engine.stats().steps, 24);
  EXPECT_EQ(engine.stats().prompt_tokens, 120);
}

TEST_F(EngineTest, EndsOnlyTheSequenceThatOutgrowsTheCache) {
  KvCache kv = runtime_.make_kv(4);  // 64 tokens
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  const RequestId large = engine.submit(make_request(50, 1, 500));
  const GenerationRequest small_request = make_request(10, 2, 20);
  const RequestId small = engine.submit(small_request);
  auto answers = run_all(engine);
  EXPECT_EQ(answers[large].finish, FinishReason::kLength);
  EXPECT_EQ(answers[large].ids.size(), 14U);
  EXPECT_EQ(answers[small].ids, alone(small_request));
}

TEST_F(EngineTest, StopsWhereTheContextEnds) {
  KvCache kv = runtime_.make_kv(60);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {});
  engine.submit(make_request(639, 1, 100));
  const Answer answer = run_all(engine).begin()->second;
  EXPECT_EQ(answer.ids.size(), 1U);
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_THROW(engine.submit(make_request(640, 1, 1)), Error);
  EXPECT_THROW(engine.submit(make_request(6400, 1, 1)), Error);
}

TEST_F(EngineTest, RefusesBadRequestsAndGoesOn) {
  KvCache kv = runtime_.make_kv(20);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {});
  EXPECT_THROW(engine.submit({}), Error);
  GenerationRequest request = make_request(4, 1);
  request.prompt[2] = 97;
  EXPECT_THROW(engine.submit(request), Error);
  request = make_request(4, 1);
  request.sampling.top_p = -1;
  EXPECT_THROW(engine.submit(request), Error);
  request = make_request(4, 1, 0);
  EXPECT_THROW(engine.submit(request), Error);
  request = make_request(4, 1);
  request.stop_ids = {97};
  EXPECT_THROW(engine.submit(request), Error);
  request = make_request(4, 1, 5);
  request.min_tokens = 6;
  EXPECT_THROW(engine.submit(request), Error);
  engine.submit(make_request(4, 1));
  EXPECT_EQ(run_all(engine).size(), 1U);
}

TEST_F(EngineTest, CancelsOneAndLeavesTheOthersAlone) {
  runtime_.device.ops().set_deterministic(true);
  KvCache kv = runtime_.make_kv(40);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {});
  const GenerationRequest request = make_request(10, 1, 30);
  const RequestId kept = engine.submit(request);
  const RequestId cancelled = engine.submit(make_request(12, 2, 30));
  std::map<RequestId, Answer> answers;
  int steps = 0;
  while (engine.step([&](const GenerationEvent& event) {
    if (event.token) answers[event.id].ids.push_back(*event.token);
    if (event.finish) answers[event.id].finish = event.finish;
  })) {
    if (++steps == 5) engine.cancel(cancelled);
  }
  EXPECT_EQ(answers[cancelled].finish, FinishReason::kCancelled);
  EXPECT_EQ(answers[cancelled].ids.size(), 5U);
  EXPECT_EQ(answers[kept].ids, alone(request));
  engine.cancel(kept);  // it has ended already
  EXPECT_FALSE(engine.step([](const GenerationEvent&) { FAIL(); }));
}

TEST_F(EngineTest, EndsBeforeAStopStringAndAtAnEndToken) {
  const Tokenizer tokenizer = letter_tokenizer();
  KvCache kv = runtime_.make_kv(40);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, &tokenizer, {});
  GenerationRequest request = make_request(10, 3, 30, 1);
  engine.submit(request);
  const Answer whole = run_all(engine).begin()->second;
  ASSERT_GT(whole.text.size(), 12U);

  request.stop = {whole.text.substr(8, 3)};
  engine.submit(request);
  const Answer stopped = run_all(engine).begin()->second;
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(request.stop[0])));
  EXPECT_EQ(stopped.finish, FinishReason::kStop);

  request.stop.clear();
  request.sampling.logit_bias = {{0, 1000.0F}};
  engine.submit(request);
  const Answer ended = run_all(engine).begin()->second;
  EXPECT_EQ(ended.ids, std::vector<TokenId>{0});
  EXPECT_EQ(ended.finish, FinishReason::kStop);
  EXPECT_EQ(ended.text, "");

  request.ignore_end = true;
  request.max_tokens = 3;
  engine.submit(request);
  EXPECT_EQ(run_all(engine).begin()->second.ids, (std::vector<TokenId>{0, 0, 0}));
}

TEST_F(EngineTest, EndsAtAStopIdWithoutItsText) {
  const Tokenizer tokenizer = letter_tokenizer();
  GenerationRequest request = make_request(10, 3, 30, 1);
  const Answer whole = answer_alone(runtime_, request, &tokenizer);
  ASSERT_EQ(whole.ids.size(), 30U);
  request.stop_ids = {96, whole.ids[8]};
  for (const bool ignore_end : {false, true}) {
    request.ignore_end = ignore_end;
    const Answer stopped = answer_alone(runtime_, request, &tokenizer);
    const auto end = std::ranges::find(whole.ids, whole.ids[8]);
    EXPECT_EQ(stopped.ids, std::vector<TokenId>(whole.ids.begin(), end + 1));
    EXPECT_EQ(stopped.finish, FinishReason::kStop);
    const std::vector<TokenId> before(whole.ids.begin(), end);
    EXPECT_EQ(stopped.text, tokenizer.decode(before, {.continues = true}));
  }
  const Answer ids_alone = answer_alone(runtime_, request);
  EXPECT_EQ(ids_alone.finish, FinishReason::kStop) << "also without a tokenizer";
}

TEST_F(EngineTest, NothingEndsAnAnswerBeforeItsLeastTokens) {
  const Tokenizer tokenizer = letter_tokenizer();
  GenerationRequest request = make_request(10, 3, 30, 0);
  request.sampling.logit_bias = {{0, 1000.0F}, {40, 900.0F}};  // the end token, and a stop id
  request.stop_ids = {40};
  for (const int least : {0, 1, 7, 30}) {
    request.min_tokens = least;
    const Answer answer = answer_alone(runtime_, request, &tokenizer);
    for (int i = 0; i < least; ++i)
      EXPECT_TRUE(answer.ids[static_cast<size_t>(i)] != 0 &&
                  answer.ids[static_cast<size_t>(i)] != 40);
    EXPECT_EQ(answer.ids.size(), static_cast<size_t>(std::min(least + 1, 30)));
    EXPECT_EQ(answer.finish, least < 30 ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(answer.ids.back() == 0, least < 30);
  }

  // Stop strings only count behind the minimum number of tokens.
  request = make_request(10, 3, 30, 0);
  request.ignore_end = true;
  request.sampling.logit_bias = {{33, 1000.0F}};
  request.stop = {"A"};
  ASSERT_EQ(answer_alone(runtime_, request, &tokenizer).text, "");
  request.min_tokens = 5;
  const Answer stopped = answer_alone(runtime_, request, &tokenizer);
  EXPECT_EQ(stopped.text, "AAAAA");
  EXPECT_EQ(stopped.ids.size(), 6U);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
}

TEST_F(EngineTest, ReportsLogprobsOfWhatItChose) {
  KvCache kv = runtime_.make_kv(40);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {});
  GenerationRequest request = make_request(10, 3, 4);
  request.sampling.logprobs = 3;
  engine.submit(request);
  int events = 0;
  while (engine.step([&](const GenerationEvent& event) {
    ASSERT_TRUE(event.logprobs.has_value());
    ASSERT_EQ(event.logprobs->top.size(), 3U);
    EXPECT_EQ(event.logprobs->top[0].id, *event.token);
    EXPECT_EQ(event.logprobs->top[0].logprob, event.logprobs->chosen);
    EXPECT_LT(event.logprobs->chosen, 0);
    ++events;
  })) {
  }
  EXPECT_EQ(events, 4);
}

}  // namespace
}  // namespace spillway::testing_models
