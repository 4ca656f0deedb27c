// SPDX-License-Identifier: Apache-2.0
// An engine that schedules by predicted lengths, right and wrong ones, answers every request as
// without them, within its memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cpu/emulated_accelerator.h"
#include "engine/answer_lengths.h"
#include "engine/engine.h"
#include "engine/engine_client.h"
#include "kv/kv_store.h"
#include "predict/simple_predictors.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

constexpr SchedulingOptions kPacked{.packs_predicted = true};

struct Machine {
  const char* name;
  bool has_accelerator;  // and a store in host memory for KV that the pool has no room for
};

class LengthPredictionTest : public testing::TestWithParam<Machine> {
 protected:
  LengthPredictionTest() : runtime_(make_device(), "llama", DType::kF32) {
    runtime_.device.ops().set_deterministic(true);
  }
  static std::unique_ptr<Device> make_device() {
    if (!GetParam().has_accelerator)
      return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 100;
    return std::make_unique<EmulatedAccelerator>(options);
  }
  std::unique_ptr<KvStore> make_store(const KvCache& kv) {
    if (!GetParam().has_accelerator) return nullptr;
    return std::make_unique<KvStore>(kv, *runtime_.transfers, host_, KvStore::Options{.slots = 256},
                                     nullptr);
  }

  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  TinyRuntime runtime_;
};

// Returns requests with answers of many lengths; the predicted length is this share of the real
// one.
std::vector<GenerationRequest> predicted_requests(int count, double share) {
  std::vector<GenerationRequest> requests;
  std::mt19937 random(7);
  for (int n = 0; n < count; ++n) {
    const int answer = 8 + static_cast<int>(random() % 90);
    requests.push_back(make_request(10 + n % 13, static_cast<uint32_t>(n + 1), answer, 0.8F));
    requests.back().prediction.tokens = std::max<int64_t>(1, static_cast<int64_t>(share * answer));
  }
  return requests;
}

TEST_P(LengthPredictionTest, WhoOutgrowsItsPromiseGoesOnToTheBit) {
  for (const double share : {0.01, 0.3, 1.0, 5.0}) {
    SCOPED_TRACE(share);
    const std::vector<GenerationRequest> requests = predicted_requests(16, share);
    KvCache kv = runtime_.make_kv(18);
    const auto store = make_store(kv);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 16},
                   .scheduling = kPacked,
                   .reuse_prefixes = true,
                   .store = store.get()});
    for (const GenerationRequest& request : requests) engine.submit(request);
    const auto answers = run_all(engine);
    for (const auto& [id, answer] : answers)
      EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
    EXPECT_EQ(answers.size(), requests.size());
    const EngineStats& stats = engine.stats();
    if (share < 1) {
      EXPECT_GT(stats.predictions_exceeded, 0);
      EXPECT_GT(stats.exceeded_preemptions, 0);
      EXPECT_LE(stats.exceeded_preemptions, stats.preemptions);
    } else {
      EXPECT_EQ(stats.predictions_exceeded, 0);
    }
    // KV in the store is not computed again, except for the token whose logits are needed.
    if (store) {
      EXPECT_LE(stats.recomputed_tokens, 2 * stats.preemptions);
    }
    EXPECT_EQ(engine.state().kv.at(0).free, engine.state().kv.at(0).total);
  }
}

// Predictions count the last block of each sequence as half full, as it is on average, so a few
// preemptions may remain.
TEST_P(LengthPredictionTest, RightPredictionsHardlyPreempt) {
  const auto preemptions = [&](bool packs) {
    KvCache kv = runtime_.make_kv(18);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 32}, .scheduling = {.packs_predicted = packs}});
    for (const GenerationRequest& request : predicted_requests(48, 1)) engine.submit(request);
    run_all(engine);
    EXPECT_EQ(engine.stats().recomputed_tokens > 0, engine.stats().preemptions > 0);
    return engine.stats().preemptions;
  };
  const int64_t on_demand = preemptions(false), packed = preemptions(true);
  EXPECT_GE(on_demand, 10);
  EXPECT_LE(packed, on_demand / 5);
}

TEST_P(LengthPredictionTest, ALongAnswerIsNotPassedForEver) {
  KvCache kv = runtime_.make_kv(18);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr,
                {.admission = {.max_sequences = 2},
                 .scheduling = {.order = OrderKind::kShortest, .packs_predicted = true}});
  GenerationRequest brief = make_request(10, 1, 4), lengthy = make_request(10, 2, 100);
  brief.prediction.tokens = 4;
  lengthy.prediction.tokens = 100;
  for (int n = 0; n < 4; ++n) engine.submit(brief);
  const RequestId waiting = engine.submit(lengthy);
  bool has_ended = false;
  const auto sink = [&](const GenerationEvent& event) {
    has_ended |= event.id == waiting && event.finish.has_value();
    if (event.finish && !has_ended) engine.submit(brief);  // there is always another one
  };
  for (int steps = 0; steps < 5000 && !has_ended; ++steps) engine.step(sink);
  EXPECT_TRUE(has_ended);
}

TEST_P(LengthPredictionTest, SaysWhatKvThoseAtWorkWillNeed) {
  KvCache kv = runtime_.make_kv(18);
  Decoder decoder = runtime_.make_decoder(64);
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(LengthBuckets::linear(512)), {}, "");
  Engine engine(decoder, kv, nullptr, {.scheduling = kPacked, .lengths = &lengths});
  GenerationRequest request = make_request(16, 1, 160);
  request.prediction.tokens = 160;
  engine.submit(request);
  engine.step([](const GenerationEvent&) {});
  EXPECT_NEAR(static_cast<double>(engine.state().predicted_blocks), 11, 1);
  run_all(engine);
  EXPECT_EQ(engine.state().predicted_blocks, 0);
}

TEST_P(LengthPredictionTest, LearnsFromAnswersThatEndByThemselves) {
  const Tokenizer tokenizer = letter_tokenizer();
  KvCache kv = runtime_.make_kv(60);
  Decoder decoder = runtime_.make_decoder(64);
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(LengthBuckets::linear(512)), {}, "");
  Engine engine(decoder, kv, &tokenizer, {.scheduling = kPacked, .lengths = &lengths});
  int stopped = 0, ended = 0;
  {
    EngineClient client(engine);
    std::vector<GenerationRequest> requests;
    for (int n = 0; n < 60; ++n) {
      requests.push_back(make_request(10, static_cast<uint32_t>(n + 1), 80, 1.0F));
      requests.back().sampling.logit_bias = {{0, 3.0F}};  // the end token
    }
    client.submit(requests);
    while (ended < 60) {
      for (const GenerationEvent& event : client.take()) {
        ended += event.finish ? 1 : 0;
        stopped += event.finish == FinishReason::kStop ? 1 : 0;
      }
    }
  }
  EXPECT_GT(stopped, 20);
  const LengthCounts counts = *engine.state().lengths;
  EXPECT_EQ(counts.right + counts.over + counts.under, static_cast<uint64_t>(stopped));
  EXPECT_GT(counts.real_tokens, 0);
  EXPECT_GT(counts.predicting_s, 0);
}

INSTANTIATE_TEST_SUITE_P(Machines, LengthPredictionTest,
                         testing::Values(Machine{"Cpu", false}, Machine{"Accelerator", true}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace spillway::testing_models
