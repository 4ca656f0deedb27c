// SPDX-License-Identifier: Apache-2.0
// An engine whose device samples tokens gives the same answers as one that samples on the host, and
// keeps track of the tokens that it has given out, whatever fails. (tests/generation/cuda_test.cc
// tests sampling on a GPU.)
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

std::unique_ptr<Device> make_device(bool draws) {
  EmulatedAcceleratorOptions options;
  options.draws = draws;
  return std::make_unique<EmulatedAccelerator>(options);
}

class DeviceDrawsTest : public testing::Test {
 protected:
  DeviceDrawsTest() {
    drawing_.device.ops().set_deterministic(true);
    plain_.device.ops().set_deterministic(true);
  }

  Answer from_host(const GenerationRequest& request, const Tokenizer* tokenizer = nullptr) {
    return answer_alone(plain_, request, tokenizer);
  }

  TinyRuntime drawing_{make_device(/*draws=*/true), "llama", DType::kF32};
  TinyRuntime plain_{make_device(/*draws=*/false), "llama", DType::kF32};
};

TEST_F(DeviceDrawsTest, AnswersAreThoseOfTheHost) {
  KvCache kv = drawing_.make_kv(200);
  Decoder decoder = drawing_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.max_step_tokens = 64, .admission = {.max_sequences = 5}});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 12; ++n) {
    GenerationRequest request =
        make_request(1 + static_cast<int>(n) * 7, n, 9 + static_cast<int>(5 * n),
                     0.7F * static_cast<float>(n % 3));
    if (n % 4 == 3) request.sampling.logit_bias = {{5, 3.0F}, {9, -100.0F}};
    if (n == 4) request.sampling.repetition_penalty = 1.5F;
    if (n == 5) request.sampling.presence_penalty = 1.5F;
    if (n == 6) request.sampling.frequency_penalty = 1.5F;
    if (n == 7 || n == 8) {
      request.min_tokens = 5;
      request.stop_ids = {3, 9, 40};
      request.sampling.logit_bias = {{9, 100.0F}};
    }
    requests[engine.submit(request)] = request;
  }
  const auto answers = run_all(engine);
  ASSERT_EQ(answers.size(), requests.size());
  for (const auto& [id, answer] : answers) {
    // With stop ids the bias makes the sixth token a stop id, right after the minimum of five
    // tokens.
    const GenerationRequest& request = requests.at(id);
    EXPECT_EQ(answer.finish,
              request.stop_ids.empty() ? FinishReason::kLength : FinishReason::kStop);
    EXPECT_TRUE(request.stop_ids.empty() || answer.ids.size() == 6U) << answer.ids.size();
    EXPECT_EQ(answer.ids, from_host(request).ids);
  }
}

TEST_F(DeviceDrawsTest, LogprobsAreThoseOfTheHost) {
  const auto logprobs_of = [](TinyRuntime& runtime) {
    KvCache kv = runtime.make_kv(100);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    for (const GenerationRequest& request : logprobs_requests()) engine.submit(request);
    return run_for_logprobs(engine);
  };
  const auto found = logprobs_of(drawing_), expected = logprobs_of(plain_);
  ASSERT_EQ(found.size(), 4U);  // the other two requests have none
  for (const auto& [id, wanted] : expected) {
    const std::vector<Logprobs>& got = found.at(id);
    ASSERT_EQ(got.size(), 20U);
    ASSERT_EQ(wanted.size(), 20U);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].chosen, wanted[i].chosen);
      ASSERT_EQ(got[i].top.size(), wanted[i].top.size());
      for (size_t j = 0; j < got[i].top.size(); ++j) {
        EXPECT_EQ(got[i].top[j].id, wanted[i].top[j].id);
        EXPECT_EQ(got[i].top[j].logprob, wanted[i].top[j].logprob);
      }
    }
  }
}

TEST_F(DeviceDrawsTest, StopsInTheMiddleOfABatch) {
  const Tokenizer tokenizer = letter_tokenizer();
  KvCache kv = drawing_.make_kv(100);
  Decoder decoder = drawing_.make_decoder(64);
  Engine engine(decoder, kv, &tokenizer, {});
  std::map<RequestId, GenerationRequest> requests;
  for (uint32_t n = 0; n < 4; ++n) {
    GenerationRequest request = make_request(10 + static_cast<int>(n), n, 30);
    if (n % 2 == 1) request.stop = {from_host(request, &tokenizer).text.substr(4 + n, 3)};
    requests[engine.submit(request)] = request;
  }
  for (const auto& [id, answer] : run_all(engine))
    EXPECT_EQ(answer, from_host(requests.at(id), &tokenizer)) << answer.text;
  EXPECT_FALSE(engine.step([](const GenerationEvent&) { FAIL(); }));
}

// A step fails, or its tokens cannot be read. The engine's caller gets the error and can continue.
TEST_F(DeviceDrawsTest, TheDeviceFailsOnce) {
  for (const std::string point : {"step.device", "draw.device"}) {
    for (const uint64_t nth : {1, 2, 4, 9}) {
      KvCache kv = drawing_.make_kv(40);
      Decoder decoder = drawing_.make_decoder(64);
      Engine engine(decoder, kv, nullptr, {});
      std::map<RequestId, GenerationRequest> requests;
      for (uint32_t n = 0; n < 2; ++n) {
        GenerationRequest request = make_request(10, n, 20, 0.8F);
        request.sampling.frequency_penalty = 0.5F;  // a token that did not count is not penalized
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
      EXPECT_EQ(engine.stats().steps, 20);
      for (const auto& [id, request] : requests)
        EXPECT_EQ(answers.at(id).ids, from_host(request).ids) << point << " " << nth;
    }
  }
}

// A request that ended before a failing step is reported all the same: no later step would report
// it.
TEST_F(DeviceDrawsTest, ACancelledRequestEndsAlthoughTheStepFails) {
  KvCache kv = drawing_.make_kv(40);
  Decoder decoder = drawing_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  engine.submit(make_request(10, 1, 20));
  const RequestId cancelled = engine.submit(make_request(10, 2, 20));
  engine.cancel(cancelled);
  arm_fault("step.device", 1, FaultKind::kEio);
  std::vector<RequestId> ended;
  EXPECT_THROW(engine.step([&](const GenerationEvent& event) {
    if (event.finish == FinishReason::kCancelled) ended.push_back(event.id);
  }),
               Error);
  disarm_faults();
  EXPECT_EQ(ended, std::vector<RequestId>{cancelled});
}

// If the sink throws, only that step's events are lost: the engine counts them as given out.
TEST_F(DeviceDrawsTest, TheSinkThrows) {
  KvCache kv = drawing_.make_kv(40);
  Decoder decoder = drawing_.make_decoder(64);
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
    std::vector<TokenId> wanted = from_host(request).ids;
    wanted.erase(wanted.begin() + 5);
    EXPECT_EQ(answers.at(id).ids, wanted);
  }
}

}  // namespace
}  // namespace spillway::testing_models
