// SPDX-License-Identifier: Apache-2.0
// Requests that arrive together with a common prefix compute it once, and clients that arrive
// together share the engine.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "engine/engine.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

class SharedPromptsTest : public testing::Test {
 protected:
  SharedPromptsTest() { runtime_.device.ops().set_deterministic(true); }

  // Returns requests that are equal except for the sampled tokens.
  static GenerationRequest one_of_many(uint32_t n) {
    GenerationRequest request = make_request(kPrompt, 1, 12, 0.8F);
    request.sampling.seed = n;
    return request;
  }

  static constexpr int kPrompt = 100;
  TinyRuntime runtime_{"llama"};
};

TEST_F(SharedPromptsTest, AreComputedOnceWhereTheyComeTogether) {
  for (const int step_tokens : {20, 64, 256}) {  // also where several would fit into a step
    SCOPED_TRACE(step_tokens);
    KvCache kv = runtime_.make_kv(100);
    Decoder decoder = runtime_.make_decoder(256);
    Engine engine(decoder, kv, nullptr, {.max_step_tokens = step_tokens, .reuse_prefixes = true});
    std::map<RequestId, GenerationRequest> requests;
    constexpr uint32_t kRequests = 8;
    for (uint32_t n = 0; n < kRequests; ++n)
      requests[engine.submit(one_of_many(n))] = one_of_many(n);
    const auto answers = run_all(engine);
    ASSERT_EQ(answers.size(), kRequests);
    for (const auto& [id, answer] : answers)
      EXPECT_EQ(answer, answer_alone(runtime_, requests.at(id)));
    // The other requests compute at most what follows the last whole block that was worth waiting
    // for.
    EXPECT_LE(engine.stats().prompt_tokens, kPrompt + (kRequests - 1) * 4 * kKvBlockTokens);
    EXPECT_EQ(engine.stats().prompt_tokens + engine.stats().reused_tokens, kRequests * kPrompt);
    if (step_tokens == 256) {
      EXPECT_EQ(engine.stats().prompt_tokens, kPrompt + kRequests - 1)
          << "but for each one's last token";
    }
  }
}

// A request that waited for a cancelled one computes the rest itself, and the others wait for that.
TEST_F(SharedPromptsTest, AreComputedOnceThoughTheFirstIsCancelled) {
  KvCache kv = runtime_.make_kv(100);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 20, .reuse_prefixes = true});
  std::map<RequestId, GenerationRequest> requests;
  const RequestId first = engine.submit(one_of_many(0));
  for (uint32_t n = 1; n < 6; ++n) requests[engine.submit(one_of_many(n))] = one_of_many(n);
  std::map<RequestId, Answer> answers;
  const auto sink = [&](const GenerationEvent& event) {
    if (event.token) answers[event.id].ids.push_back(*event.token);
    if (event.finish) answers[event.id].finish = event.finish;
  };
  engine.step(sink);
  engine.step(sink);
  EXPECT_EQ(engine.stats().prompt_tokens, 40) << "nobody begins beside the first";
  EXPECT_EQ(engine.state().running, 1);
  engine.cancel(first);
  while (engine.step(sink)) {
  }
  EXPECT_EQ(answers.at(first).finish, FinishReason::kCancelled);
  EXPECT_TRUE(answers.at(first).ids.empty());
  for (const auto& [id, request] : requests)
    EXPECT_EQ(answers.at(id), answer_alone(runtime_, request));
  EXPECT_LE(engine.stats().prompt_tokens, kPrompt + 8 + 4 * 4 * kKvBlockTokens);
  EXPECT_EQ(engine.state().kv.at(0).free, engine.state().kv.at(0).total);
}

// Requests with another salt do not find a prompt's KV, so they learn nothing about it; the bits of
// answers stay the same.
TEST_F(SharedPromptsTest, AreSharedAmongThoseWithTheSameSalt) {
  KvCache kv = runtime_.make_kv(200);
  Decoder decoder = runtime_.make_decoder(256);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  const Answer alone = answer_alone(runtime_, one_of_many(1));
  const auto reused = [&](const std::string& salt) {
    GenerationRequest request = one_of_many(1);
    request.cache_salt = salt;
    const RequestId id = engine.submit(std::move(request));
    const int64_t before = engine.stats().reused_tokens;
    EXPECT_EQ(run_all(engine).at(id), alone) << salt;
    return engine.stats().reused_tokens - before;
  };
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("a"), 0);
  EXPECT_EQ(reused("b"), 0);
  EXPECT_EQ(reused("a"), kPrompt - 1);
  EXPECT_EQ(reused("b"), kPrompt - 1);
  EXPECT_EQ(reused(""), kPrompt - 1);
  // If they arrive together, requests with other salts do not wait for each other's KV either.
  for (const char* const salt : {"c", "d", ""}) {
    GenerationRequest request = make_request(kPrompt, 77, 4);
    request.cache_salt = salt;
    engine.submit(std::move(request));
  }
  const int64_t before = engine.stats().reused_tokens;
  run_all(engine);
  EXPECT_EQ(engine.stats().reused_tokens, before);
}

TEST_F(SharedPromptsTest, AClientWithOneRequestDoesNotWaitForAllOfAnothers) {
  for (const bool fairly : {false, true}) {
    KvCache kv = runtime_.make_kv(100);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 2},
                   .scheduling = {.order = fairly ? OrderKind::kFair : OrderKind::kFirstCome}});
    GenerationRequest request = make_request(20, 1, 10);
    request.client = 1;
    for (int n = 0; n < 20; ++n) engine.submit(request);
    engine.step([](const GenerationEvent&) {});
    request.client = 2;
    const RequestId late = engine.submit(request);
    int before = 0;
    bool has_ended = false;
    const auto sink = [&](const GenerationEvent& event) {
      if (!event.finish) return;
      has_ended |= event.id == late;
      before += has_ended ? 0 : 1;
    };
    while (engine.step(sink)) {
    }
    if (fairly) {
      EXPECT_LE(before, 5);
    } else {
      EXPECT_GE(before, 19);
    }
  }
}

}  // namespace
}  // namespace spillway::testing_models
