// SPDX-License-Identifier: Apache-2.0
// An engine that queues a step before it has seen the tokens of the one before gives the answers of
// one that waits.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "cpu/emulated_accelerator.h"
#include "cuda/cuda.h"
#include "engine/engine.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

std::unique_ptr<Device> make_device(const std::string& name) {
  if (name == "cuda") return make_cuda_device({.index = 0, .memory_bytes = uint64_t{2} << 30});
  EmulatedAcceleratorOptions options;
  options.draws = true;
  return std::make_unique<EmulatedAccelerator>(options);
}

class RunAheadTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
    runtime_.emplace(make_device(GetParam()), "llama", DType::kF32);
    runtime_->device.ops().set_deterministic(true);
  }

  // With logprobs the host draws, and waits for what it draws from.
  Answer waited_for(GenerationRequest request, const Tokenizer* tokenizer = nullptr) {
    request.sampling.logprobs = 0;
    const int64_t before = unseen();
    Answer answer = answer_alone(*runtime_, request, tokenizer);
    EXPECT_EQ(unseen(), before);
    return answer;
  }

  // Tokens that steps began with before the host knew them; always 0 on a GPU, which does not
  // count.
  int64_t unseen() const {
    const auto* const ops = dynamic_cast<const EmulatedOps*>(&runtime_->device.ops());
    return ops == nullptr ? 0 : ops->unseen();
  }
  bool counts() const { return GetParam() == "emulated"; }

  std::optional<TinyRuntime> runtime_;
};

TEST_P(RunAheadTest, AnswersAreTheSame) {
  KvCache kv = runtime_->make_kv(200);
  Decoder decoder = runtime_->make_decoder(64);
  ASSERT_TRUE(decoder.runs_ahead(kv));
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 64, .max_sequences = 5});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 9; ++n) {
    GenerationRequest request =
        make_request(1 + static_cast<int>(n) * 7, n, 9 + static_cast<int>(5 * n),
                     0.7F * static_cast<float>(n % 3));
    if (n % 4 == 3) request.sampling.logit_bias = {{5, 3.0F}, {9, -100.0F}};
    requests[engine.submit(request)] = request;
  }
  const auto answers = run_all(engine);
  EXPECT_EQ(unseen() > 0, counts());
  ASSERT_EQ(answers.size(), requests.size());
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kLength);
    EXPECT_EQ(answer.ids, waited_for(requests.at(id)).ids);
  }
}

TEST_P(RunAheadTest, NothingIsComputedForOneThatEndsByItsLength) {
  KvCache kv = runtime_->make_kv(40);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  engine.submit(make_request(10, 1, 20));
  run_all(engine);
  EXPECT_EQ(engine.stats().steps, 20);
  EXPECT_EQ(engine.stats().generated_tokens, 20);
  EXPECT_EQ(unseen(), counts() ? 18 : 0);  // not behind the prompt
}

TEST_P(RunAheadTest, NorForOneThatFillsTheContext) {
  KvCache kv = runtime_->make_kv(40);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_sequence_tokens = 30});
  engine.submit(make_request(10, 1, 100));
  EXPECT_EQ(run_all(engine).begin()->second.ids.size(), 20U);
  EXPECT_EQ(engine.stats().steps, 20);
}

// Others wait, and could not begin: those that run go on without a look at their tokens.
TEST_P(RunAheadTest, WhereAllSeatsAreTaken) {
  KvCache kv = runtime_->make_kv(100);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_sequences = 2});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 6; ++n) {
    const GenerationRequest request = make_request(10, n, 20 + static_cast<int>(n), 0.8F);
    requests[engine.submit(request)] = request;
  }
  for (const auto& [id, answer] : run_all(engine))
    EXPECT_EQ(answer.ids, waited_for(requests.at(id)).ids);
  EXPECT_GE(unseen(), counts() ? 100 : 0);  // of 135
}

TEST_P(RunAheadTest, SequencesComeAndGo) {
  KvCache kv = runtime_->make_kv(200);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  std::map<RequestId, GenerationRequest> requests;
  std::map<RequestId, Answer> answers;
  const auto submit = [&](uint32_t n) {
    const GenerationRequest request = make_request(5 + static_cast<int>(n), n, 30);
    const RequestId id = engine.submit(request);
    requests[id] = request;
    return id;
  };
  const RequestId first = submit(1), cancelled = submit(2);
  int steps = 0;
  while (engine.step([&](const GenerationEvent& event) {
    Answer& answer = answers[event.id];
    ASSERT_FALSE(answer.finish);
    if (event.token) answer.ids.push_back(*event.token);
    answer.finish = event.finish;
  })) {
    ++steps;
    if (steps == 4) engine.cancel(cancelled);
    if (steps == 7 || steps == 8 || steps == 15) submit(static_cast<uint32_t>(steps));
    ASSERT_LT(steps, 1000);
  }
  EXPECT_EQ(answers.size(), 5U);
  EXPECT_EQ(answers.at(cancelled).finish, FinishReason::kCancelled);
  EXPECT_EQ(answers.at(cancelled).ids.size(), 4U);
  EXPECT_EQ(answers.at(first).ids.size(), 30U);
  for (const auto& [id, answer] : answers) {
    std::vector<TokenId> wanted = waited_for(requests.at(id)).ids;
    wanted.resize(answer.ids.size());
    EXPECT_EQ(answer.ids, wanted);
  }
}

// A sequence that ends with its token is in the next step already; the others go on.
TEST_P(RunAheadTest, StopsInTheMiddleOfABatch) {
  const Tokenizer tokenizer = letter_tokenizer();
  KvCache kv = runtime_->make_kv(100);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, &tokenizer, {});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 4; ++n) {
    GenerationRequest request = make_request(10 + static_cast<int>(n), n, 30);
    if (n % 2 == 1) request.stop = {waited_for(request, &tokenizer).text.substr(4 + n, 3)};
    requests[engine.submit(request)] = request;
  }
  for (const auto& [id, answer] : run_all(engine)) {
    EXPECT_EQ(answer, waited_for(requests.at(id), &tokenizer)) << answer.text;
  }
  EXPECT_FALSE(engine.step([](const GenerationEvent&) { FAIL(); }));
  // Alone: the step behind its last token is of no use to anybody, and the next request does not
  // meet it.
  for (const auto& [id, request] : requests) {
    engine.submit(request);
    EXPECT_EQ(run_all(engine).begin()->second.ids, waited_for(request, &tokenizer).ids);
  }
}

TEST_P(RunAheadTest, SequencesArePreempted) {
  KvCache kv = runtime_->make_kv(9);  // 144 tokens for sequences of up to 80 each
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 64});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 5; ++n) {
    GenerationRequest request = make_request(20 + static_cast<int>(n), n, 56);
    requests[engine.submit(request)] = request;
  }
  const auto answers = run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_EQ(unseen() > 0, counts());
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids, waited_for(requests.at(id)).ids);
}

// What is drawn next depends on the tokens before, or the host wants to see the logits.
TEST_P(RunAheadTest, WaitsForPenaltiesAndLogprobs) {
  for (int what = 0; what < 4; ++what) {
    GenerationRequest request = make_request(10, 3, 20);
    if (what == 0) request.sampling.repetition_penalty = 1.5F;
    if (what == 1) request.sampling.presence_penalty = 1.5F;
    if (what == 2) request.sampling.frequency_penalty = 1.5F;
    if (what == 3) request.sampling.logprobs = 2;
    const int64_t before = unseen();
    const Answer answer = answer_alone(*runtime_, request);
    EXPECT_EQ(unseen(), before);
    EXPECT_EQ(answer.ids, waited_for(request).ids);
  }
}

// A step fails, or the tokens of one do not come back. What was drawn before is given out; whoever
// runs the engine is told after that, and can go on.
TEST_P(RunAheadTest, TheDeviceFailsOnce) {
  if (!counts()) GTEST_SKIP() << "only the emulated accelerator fails when it is told to";
  for (const auto& [point, nth] :
       std::vector<std::pair<std::string, uint64_t>>{{"step.device", 1},
                                                     {"step.device", 2},
                                                     {"step.device", 4},
                                                     {"step.device", 9},
                                                     {"draw.device", 1},
                                                     {"draw.device", 2},
                                                     {"draw.device", 4},
                                                     {"draw.device", 9}}) {
    KvCache kv = runtime_->make_kv(40);
    Decoder decoder = runtime_->make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    std::map<RequestId, GenerationRequest> requests;
    for (uint32_t n = 0; n < 2; ++n) {
      const GenerationRequest request = make_request(10, n, 20, 0.8F);
      requests[engine.submit(request)] = request;
    }
    arm_fault(point, nth, FaultKind::kEio);
    std::map<RequestId, Answer> answers;
    const auto sink = [&](const GenerationEvent& event) {
      if (event.token) answers[event.id].ids.push_back(*event.token);
    };
    int failures = 0, steps = 0;
    for (bool more = true; more;) {
      ASSERT_LT(++steps, 100) << "it does not come to an end";
      try {
        more = engine.step(sink);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDevice);
        for (const auto& [id, answer] : answers) EXPECT_EQ(answer.ids.size(), nth - 1);
        ASSERT_EQ(++failures, 1);
      }
    }
    disarm_faults();
    EXPECT_EQ(failures, 1);
    for (const auto& [id, request] : requests)
      EXPECT_EQ(answers.at(id).ids, waited_for(request).ids) << point << " " << nth;
  }
}

// Whatever the sink does, the engine knows what it has given out: only these events are lost.
TEST_P(RunAheadTest, TheSinkThrows) {
  KvCache kv = runtime_->make_kv(40);
  Decoder decoder = runtime_->make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 2; ++n) {
    const GenerationRequest request = make_request(10, n, 20);
    requests[engine.submit(request)] = request;
  }
  std::map<RequestId, Answer> answers;
  int steps = 0;
  const auto sink = [&](const GenerationEvent& event) {
    if (steps == 5) throw std::runtime_error("enough");
    if (event.token) answers[event.id].ids.push_back(*event.token);
  };
  for (bool more = true; more; ++steps) {
    try {
      more = engine.step(sink);
    } catch (const std::runtime_error&) {
      EXPECT_EQ(steps, 5);
    }
    ASSERT_LT(steps, 100);
  }
  EXPECT_EQ(steps, 20);
  for (const auto& [id, request] : requests) {
    std::vector<TokenId> wanted = waited_for(request).ids;
    wanted.erase(wanted.begin() + 5);
    EXPECT_EQ(answers.at(id).ids, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RunAheadTest, testing::Values("emulated", "cuda"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace spillway::testing_models
