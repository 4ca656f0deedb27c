// SPDX-License-Identifier: Apache-2.0
// The log-probabilities of a prompt's own tokens are those of a plain pass over it, however the
// engine divides the prompt into steps, and whatever happens in between.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "cpu/emulated_accelerator.h"
#include "device/logprobs.h"
#include "engine/engine.h"
#include "runtime/test_weight_view.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

constexpr int kTop = 3;

class ScoredPromptsTest : public testing::Test {
 protected:
  struct Scored {
    std::vector<Logprobs> prompt;
    Answer answer;
    std::string error;
  };

  ScoredPromptsTest() { runtime_.device.ops().set_deterministic(true); }
  ~ScoredPromptsTest() override { disarm_faults(); }

  static std::unique_ptr<Device> make_device() {
    EmulatedAcceleratorOptions options;
    options.draws = true;
    return std::make_unique<EmulatedAccelerator>(options);
  }

  static GenerationRequest scored_request(int prompt, uint32_t seed, int max_tokens) {
    GenerationRequest request = make_request(prompt, seed, max_tokens, 0.8F);
    request.prompt_logprobs = kTop;
    return request;
  }

  // Computes all of the prompt in one step, with a row of logits for each of its tokens.
  std::vector<Logprobs> plain(const std::vector<TokenId>& prompt) {
    KvCache kv = runtime_.make_kv(20);
    Decoder decoder = runtime_.make_decoder(256);
    const std::vector<BlockId> blocks = block_range(0, 20);
    const std::vector<StepSequence> step = {
        {prompt, 0, blocks, static_cast<int32_t>(prompt.size())}};
    const Activations logits = decoder.step(kv, step);
    std::vector<float> row(static_cast<size_t>(logits.cols));
    std::vector<Logprobs> all;
    for (size_t i = 1; i < prompt.size(); ++i) {
      runtime_.device.copy_to_host(reinterpret_cast<std::byte*>(row.data()),
                                   logits.row_range(static_cast<int64_t>(i) - 1, 1).data,
                                   row.size() * sizeof(float));
      all.push_back(compute_logprobs(row, prompt[i], kTop));
    }
    return all;
  }

  static std::map<RequestId, Scored> run(Engine& engine, int failures = 0) {
    std::map<RequestId, Scored> all;
    const auto sink = [&](const GenerationEvent& event) {
      Scored& scored = all[event.id];
      EXPECT_TRUE(event.token || event.finish || !event.prompt_logprobs.empty()) << "says nothing";
      scored.prompt.insert(scored.prompt.end(), event.prompt_logprobs.begin(),
                           event.prompt_logprobs.end());
      if (event.token) scored.answer.ids.push_back(*event.token);
      if (event.finish) scored.answer.finish = event.finish;
      scored.error += event.error;
    };
    for (bool more = true; more;) {
      try {
        more = engine.step(sink);
      } catch (const Error&) {
        EXPECT_GE(--failures, 0);
      }
    }
    EXPECT_EQ(failures, 0);
    return all;
  }

  void expect_plain(const Scored& scored, const GenerationRequest& request) {
    const std::vector<Logprobs> wanted = plain(request.prompt);
    ASSERT_EQ(scored.prompt.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(scored.prompt[i].chosen, wanted[i].chosen, 1e-5) << i;
      ASSERT_EQ(scored.prompt[i].top.size(), static_cast<size_t>(kTop));
      for (size_t j = 0; j < kTop; ++j) {
        EXPECT_EQ(scored.prompt[i].top[j].id, wanted[i].top[j].id);
        EXPECT_NEAR(scored.prompt[i].top[j].logprob, wanted[i].top[j].logprob, 1e-5);
      }
    }
    EXPECT_EQ(scored.answer.finish, FinishReason::kLength);
    if (request.max_tokens == 0) {
      EXPECT_TRUE(scored.answer.ids.empty());
    } else {
      GenerationRequest unscored = request;
      unscored.prompt_logprobs = -1;
      EXPECT_EQ(scored.answer, answer_alone(runtime_, unscored));
    }
  }

  TinyRuntime runtime_{make_device(), "llama", DType::kF32};
};

TEST_F(ScoredPromptsTest, AreThoseOfAPlainPassHoweverTheyAreCut) {
  for (const int step_tokens : {1, 7, 16, 50, 256}) {
    SCOPED_TRACE(step_tokens);
    KvCache kv = runtime_.make_kv(100);
    Decoder decoder = runtime_.make_decoder(256);
    Engine engine(decoder, kv, nullptr, {.max_step_tokens = step_tokens, .reuse_prefixes = true});
    std::map<RequestId, GenerationRequest> requests;
    uint32_t seed = 0;
    for (const int prompt : {1, 2, 40, 90}) {
      for (const int max_tokens : {0, 1, 9}) {
        const GenerationRequest request = scored_request(prompt, ++seed, max_tokens);
        requests[engine.submit(request)] = request;
        engine.submit(make_request(20, seed, 12));  // a request that is not scored, beside it
      }
    }
    const auto all = run(engine);
    for (const auto& [id, request] : requests) expect_plain(all.at(id), request);
  }
}

TEST_F(ScoredPromptsTest, AreToldOnceWhereSequencesArePreempted) {
  KvCache kv = runtime_.make_kv(9);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 20});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 5; ++n) {
    const GenerationRequest request = scored_request(20 + static_cast<int>(n), n, 56);
    requests[engine.submit(request)] = request;
  }
  const auto all = run(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  for (const auto& [id, request] : requests) expect_plain(all.at(id), request);
}

// A step that throws has no effect, so log-probabilities of prompts from it do not count either.
TEST_F(ScoredPromptsTest, AreToldThoughAStepFails) {
  for (const char* const point : {"step.device", "draw.device"}) {
    for (const uint64_t nth : {1, 2, 3}) {
      SCOPED_TRACE(point);
      KvCache kv = runtime_.make_kv(60);
      Decoder decoder = runtime_.make_decoder(64);
      Engine engine(decoder, kv, nullptr, {.max_step_tokens = 24});
      std::map<RequestId, GenerationRequest> requests;
      engine.submit(make_request(4, 9, 12));  // samples a token in each step
      for (uint32_t n = 0; n < 2; ++n) {
        const GenerationRequest request = scored_request(30, n, 4);
        requests[engine.submit(request)] = request;
      }
      arm_fault(point, nth, FaultKind::kEio);
      const auto all = run(engine, /*failures=*/1);
      disarm_faults();
      for (const auto& [id, request] : requests) expect_plain(all.at(id), request);
    }
  }
}

TEST_F(ScoredPromptsTest, AnErrorIsToldInsteadOfWhatIsNoNumber) {
  constexpr TokenId kOffender = 2;  // tiny_prompt() has ids from 3 on
  const WeightView embedding = view_of(runtime_.weights, runtime_.model, "token_embedding");
  ASSERT_FALSE(runtime_.model.spec.has_tied_head());
  std::vector<float> row(static_cast<size_t>(embedding.cols),
                         std::numeric_limits<float>::quiet_NaN());
  runtime_.device.copy_to_device(
      const_cast<std::byte*>(embedding.data) + kOffender * embedding.row_bytes(),
      reinterpret_cast<const std::byte*>(row.data()), row.size() * sizeof(float));
  runtime_.device.synchronize();
  KvCache kv = runtime_.make_kv(60);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  GenerationRequest bad = scored_request(20, 1, 0);
  bad.prompt[11] = kOffender;
  const GenerationRequest good = scored_request(20, 2, 0);
  const RequestId bad_id = engine.submit(bad), good_id = engine.submit(good);
  const auto all = run(engine);
  EXPECT_EQ(all.at(bad_id).answer.finish, FinishReason::kError);
  EXPECT_FALSE(all.at(bad_id).error.empty());
  for (const Logprobs& of : all.at(bad_id).prompt) EXPECT_FALSE(std::isnan(of.chosen));
  expect_plain(all.at(good_id), good);
}

}  // namespace
}  // namespace spillway::testing_models
