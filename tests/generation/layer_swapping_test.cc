// SPDX-License-Identifier: Apache-2.0
// With swapped layers answers are the same as with the KV of all layers on the device.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "engine/answer_lengths.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "kv/kv_store.h"
#include "plan/resolved_plan.h"
#include "plan/weight_homes.h"
#include "predict/simple_predictors.h"
#include "runtime/device_traits.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/swapping_runtime.h"

namespace spillway::testing_models {
namespace {

class LayerSwappingTest : public testing::TestWithParam<const char*> {
 protected:
  // Returns the answers with the KV of all layers on the device, and room for all requests.
  std::vector<Answer> expected(const std::vector<GenerationRequest>& requests,
                               KvType type = KvType::kF32) {
    KvCache kv = runtime_.make_kv(200, 0, kSpareBuffers, type);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    return answers_of(engine, requests);
  }

  SwappingRuntime runtime_{GetParam()};
};

TEST_P(LayerSwappingTest, AnswersAreTheSameWhicheverLayersAreSwapped) {
  const auto requests = requests_of(8);
  const auto wanted = expected(requests);
  for (const int spare : {1, 2}) {
    for (int swapped = spare + 1; swapped <= kLayers; ++swapped) {
      SCOPED_TRACE(testing::Message() << swapped << " of " << kLayers << ", spare " << spare);
      KvCache kv = runtime_.make_kv(14, kLayers, spare);
      Decoder decoder = runtime_.make_decoder(64);
      Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
      engine.change_swapped_layers(swapped);
      EXPECT_EQ(kv.device_blocks(), 14 * kLayers / (kLayers - swapped + spare));
      EXPECT_EQ(engine.state().kv.at(0).total, kv.device_blocks());
      EXPECT_EQ(answers_of(engine, requests), wanted);
      // Each swapped layer is loaded once a step, and the first ones also for the step after the
      // last.
      const LayerSwapper::Stats stats = decoder.take_stats().layer_swaps;
      EXPECT_EQ(stats.loads, swapped * engine.stats().steps + spare);
    }
  }
}

// In a model with several layer groups, layers with full attention are swapped.
TEST(LayerSwapperOfGroupsTest, AnswersAreTheSameWhereSomeLayersHaveAWindow) {
  SwappingRuntime runtime("mixed-deep");
  const auto requests = requests_of(10);
  const auto expected = [&] {
    KvCache kv = runtime.make_kv(200, 0);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    return answers_of(engine, requests);
  }();
  constexpr int kFull = kLayers / 3;  // layers
  for (const auto& [swapped, spare] : {std::pair(2, 1), {3, 1}, {3, 2}}) {
    SCOPED_TRACE(testing::Message() << swapped << " of " << kFull << ", spare " << spare);
    KvCache kv = runtime.make_kv(16, kFull, spare);
    ASSERT_EQ(kv.shape(kv.swapped_group()).layers, kFull);
    Decoder decoder = runtime.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
    engine.change_swapped_layers(swapped);
    EXPECT_EQ(kv.device_blocks(kv.swapped_group()), 16 * kFull / (kFull - swapped + spare));
    EXPECT_EQ(kv.device_blocks(1 - kv.swapped_group()), 16);
    EXPECT_EQ(answers_of(engine, requests), expected);
    EXPECT_EQ(decoder.take_stats().layer_swaps.loads, swapped * engine.stats().steps + spare);
  }
  // The number of swapped layers changes while the requests run.
  KvCache kv = runtime.make_kv(16, kFull, 1);
  Decoder decoder = runtime.make_decoder(48);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  const auto change = [&](int step) {
    constexpr int kSwapped[] = {0, 2, 3, 0, 3, 2};
    if (step % 7 == 0) engine.change_swapped_layers(kSwapped[step / 7 % 6]);
  };
  EXPECT_EQ(answers_of(engine, requests, change), expected);
  EXPECT_GT(engine.stats().layer_swap_changes, 3);
}

TEST_P(LayerSwappingTest, AnswersAreTheSameWhileTheirNumberChanges) {
  const auto requests = requests_of(10);
  const auto wanted = expected(requests);
  for (const int spare : {1, 2}) {
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", spare " << spare);
      const int most = seed % 2 == 0 ? kLayers : 6;
      KvCache kv = runtime_.make_kv(12, most, spare);
      Decoder decoder = runtime_.make_decoder(48);
      Engine engine(decoder, kv, nullptr, {.reuse_prefixes = seed != 3});
      std::mt19937 random(seed);
      const auto change = [&](int /*step*/) {
        if (random() % 5 != 0) return;
        const int swapped = static_cast<int>(random() % static_cast<uint32_t>(most + 1));
        engine.change_swapped_layers(swapped > spare ? swapped : 0);
      };
      EXPECT_EQ(answers_of(engine, requests, change), wanted);
      EXPECT_GT(engine.stats().layer_swap_changes, 3);
      EXPECT_EQ(engine.state().kv.at(0).free, engine.state().kv.at(0).total);
    }
  }
}

// If the number of buffers does not divide that of swapped layers, a layer comes to another buffer
// in every step, and all layers move when the number of swapped layers changes. Recorded steps are
// replayed all the same.
TEST_P(LayerSwappingTest, AMovedLayerRecordsNothingAgain) {
  const auto ids = tiny_prompt(96, 5);
  const std::vector<BlockId> table = {DeviceBlock{3}, DeviceBlock{0}, DeviceBlock{5},
                                      DeviceBlock{1}, DeviceBlock{4}, DeviceBlock{2}};
  const auto logits_at = [&](Decoder& decoder, KvCache& kv, int position) {
    const StepSequence sequence{std::span(ids).subspan(static_cast<size_t>(position), 1), position,
                                table, 1, /*generates=*/true};
    const Activations logits = decoder.step(kv, {&sequence, 1});
    return std::vector<float>(logits.f32(0), logits.f32(0) + logits.cols);
  };
  EmulatedOps& ops = runtime_.accelerator->ops();
  std::vector<std::vector<float>> wanted;
  {
    KvCache kv = runtime_.make_kv(6, 0);
    Decoder decoder = runtime_.make_decoder(1);
    decoder.observe_attention([](const auto&, const auto&, auto, const auto&) {});  // op by op
    for (int i = 0; i < std::ssize(ids); ++i) wanted.push_back(logits_at(decoder, kv, i));
  }
  for (const int spare : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "spare " << spare);
    KvCache kv = runtime_.make_kv(6, kLayers, spare);
    Decoder decoder = runtime_.make_decoder(1);
    std::map<int, int> steps_with;
    constexpr int kTurns[] = {0, 5, 9, 5, 0, 4, 9, 3, 0, 4, 5, 3};
    for (int i = 0; i < std::ssize(ids); ++i) {
      const int swapped = kTurns[i / 8];
      decoder.change_swapped_layers(kv, swapped);
      const int64_t recordings = ops.recordings(), replays = ops.replays();
      ASSERT_EQ(logits_at(decoder, kv, i), wanted[static_cast<size_t>(i)]) << "step " << i;
      const int before = steps_with[swapped]++;
      ASSERT_EQ(ops.recordings() - recordings, before == 1 ? 1 : 0) << "step " << i;
      ASSERT_EQ(ops.replays() - replays, before > 1 ? 1 : 0) << "step " << i;
    }
    // With another cache of the same shape nothing is recorded again either.
    KvCache other = runtime_.make_kv(6, kLayers, spare);
    const int64_t recordings = ops.recordings();
    for (int i = 0; i < 20; ++i)
      ASSERT_EQ(logits_at(decoder, other, i), wanted[static_cast<size_t>(i)]) << "step " << i;
    EXPECT_EQ(ops.recordings(), recordings);
  }
}

TEST_P(LayerSwappingTest, MoreRequestsRunAtOnceThanTheDeviceHasRoomFor) {
  std::vector<GenerationRequest> requests;
  for (uint32_t n = 0; n < 12; ++n) requests.push_back(make_request(30, n, 30));
  const auto wanted = expected(requests);
  int64_t steps = 0;
  for (const int swapped : {0, 7}) {
    KvCache kv = runtime_.make_kv(12, 7);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    engine.change_swapped_layers(swapped);
    EXPECT_EQ(answers_of(engine, requests), wanted);
    if (swapped > 0) {
      EXPECT_LT(engine.stats().steps, steps * 6 / 10);
    }
    steps = engine.stats().steps;
  }
}

TEST_P(LayerSwappingTest, AnswersAreTheSameWhileTheirNumberIsFound) {
  std::vector<GenerationRequest> requests = requests_of(40);
  const auto wanted = expected(requests);
  KvCache kv = runtime_.make_kv(12, kLayers - 1);
  Decoder decoder = runtime_.make_decoder(48);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .adapts_swapped_layers = true});
  EXPECT_EQ(answers_of(engine, requests), wanted);
  EXPECT_GT(engine.stats().layer_swap_changes, 0) << "requests waited for room";
  EXPECT_GT(engine.stats().layer_swap_bytes, 0u);
}

// Two requests will not fit together, which is predicted long before they have grown.
TEST_P(LayerSwappingTest, WherePredictedThereIsRoomBeforeARequestHasToWait) {
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(LengthBuckets::linear(512)), {}, "");
  for (const bool predicts : {false, true}) {
    KvCache kv = runtime_.make_kv(14, kLayers - 1);
    Decoder decoder = runtime_.make_decoder(48);
    Engine engine(decoder, kv, nullptr,
                  {.lengths = predicts ? &lengths : nullptr, .adapts_swapped_layers = true});
    for (uint32_t n = 0; n < 2; ++n) {
      GenerationRequest request = make_request(20, n + 1, 160);
      request.prediction.tokens = 160;
      engine.submit(request);
    }
    for (int step = 0; step < 40; ++step) engine.step([](const GenerationEvent&) {});
    EXPECT_EQ(engine.stats().preemptions, 0);
    EXPECT_EQ(engine.stats().layer_swap_changes > 0, predicts);
  }
}

TEST_P(LayerSwappingTest, MicroBatchesShareALayersTurn) {
  const auto requests = requests_of(8);
  const auto wanted = expected(requests);
  KvCache kv = runtime_.make_kv(30, 5);
  Decoder decoder = runtime_.make_decoder(64, /*micro_tokens=*/16);
  Engine engine(decoder, kv, nullptr, {});
  engine.change_swapped_layers(5);
  EXPECT_EQ(answers_of(engine, requests), wanted);
}

// Each layer is loaded when it is needed, as FlexGen does it, and none ahead of its step.
TEST_P(LayerSwappingTest, AnswersAreTheSameWhereLayersComeOnDemand) {
  const auto requests = requests_of(8);
  const auto wanted = expected(requests);
  KvCache kv = runtime_.make_kv(14, 6);
  Decoder decoder(*runtime_.accelerator, runtime_.model.spec, runtime_.weights,
                  {.max_tokens = 64, .host = &runtime_.host, .overlap = false});
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  engine.change_swapped_layers(6);
  EXPECT_EQ(answers_of(engine, requests), wanted);
  EXPECT_EQ(decoder.take_stats().layer_swaps.loads, 6 * engine.stats().steps);
}

// Weights and KV come over the same link, each in its own order.
TEST_P(LayerSwappingTest, WeightsStreamBesideThem) {
  const auto requests = requests_of(8);
  const auto wanted = expected(requests);
  Plan plan;
  plan.weights = {.device = 0.4, .host = 0.6};
  IoQueue queue;
  LoadedModel loaded;
  loaded.model = runtime_.model;
  loaded.weights =
      load_weights(*runtime_.accelerator, loaded.model, {}, {},
                   {.homes = weight_homes(/*host_visible=*/false, loaded.model, plan.weight_plan()),
                    .host = &runtime_.host});
  for (const bool adapts : {false, true}) {
    SCOPED_TRACE(adapts ? "found" : "fixed");
    const RunSize size{.tokens = 224,
                       .sequences = 1,
                       .micro_tokens = 64,
                       .kv_type = KvType::kF32,
                       .most_swapped = 6};
    Runner runner = make_runner(
        *runtime_.transfers, runtime_.host, queue, loaded,
        resolve(loaded.model, plan, size, traits_of(*runtime_.accelerator, runtime_.host)));
    Engine engine(runner.decoder, runner.kv, nullptr,
                  {.reuse_prefixes = true, .adapts_swapped_layers = adapts});
    engine.change_swapped_layers(6);
    constexpr int kTurns[] = {4, 0, 6};
    const auto change = [&](int step) {
      if (!adapts && step % 12 == 11) engine.change_swapped_layers(kTurns[step / 12 % 3]);
    };
    EXPECT_EQ(answers_of(engine, requests, change), wanted);
    EXPECT_GT(engine.stats().layer_swap_changes, 1);
    EXPECT_GT(engine.take_traffic().to_gpu_bytes, 0u);
  }
}

TEST_P(LayerSwappingTest, CompressedKvIsSwappedToo) {
  const auto requests = requests_of(6);
  const auto wanted = expected(requests, KvType::kInt8);
  KvCache kv = runtime_.make_kv(14, 6, 1, KvType::kInt8);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  engine.change_swapped_layers(6);
  EXPECT_EQ(answers_of(engine, requests), wanted);
}

// Blocks that the pool evicts go to the store and come back, whichever layers are swapped
// meanwhile.
TEST_P(LayerSwappingTest, TheKvStoreHasTheirBlocksToo) {
  std::vector<GenerationRequest> requests = requests_of(8);
  for (const GenerationRequest& again : requests_of(8)) requests.push_back(again);
  const auto wanted = expected(requests);
  for (const bool changes : {false, true}) {
    SCOPED_TRACE(changes ? "changing" : "fixed");
    KvCache kv = runtime_.make_kv(12, 7);
    KvStore store(kv, *runtime_.transfers, runtime_.host, {.slots = 128});
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 3}, .reuse_prefixes = true, .store = &store});
    engine.change_swapped_layers(4);
    constexpr int kTurns[] = {7, 0, 5, 3, 6};
    const auto change = [&](int step) {
      if (changes && step % 9 == 8) engine.change_swapped_layers(kTurns[step / 9 % 5]);
    };
    EXPECT_EQ(answers_of(engine, requests, change), wanted);
    EXPECT_GT(engine.stats().reused_host_tokens, 0);
  }
}

// The prefix of a request may be blocks from the store and then a whole block in the pool, which is
// copied. Swapped layers have the copy afterwards, too, though no step writes to it.
TEST_P(LayerSwappingTest, AWholeBlockThatIsCopiedStays) {
  const std::vector<TokenId> shared = tiny_prompt(2 * kKvBlockTokens, 99);
  const auto begins_with_it = [&](int rest, uint32_t seed, int answer) {
    GenerationRequest request = make_request(rest, seed, answer);
    request.prompt.insert(request.prompt.begin(), shared.begin(), shared.end());
    return request;
  };
  const GenerationRequest first = begins_with_it(5, 1, 2), second = begins_with_it(64, 2, 60);
  GenerationRequest third = second;
  third.sampling = {.temperature = 1, .seed = 7};
  third.max_tokens = 40;
  const auto wanted = expected({third});
  int found = 0;
  // Some of these numbers of requests evict the blocks of `first` and leave those of `second`.
  for (int others = 3; others < 9; ++others) {
    SCOPED_TRACE(others);
    KvCache kv = runtime_.make_kv(60, 6);
    KvStore store(kv, *runtime_.transfers, runtime_.host, {.slots = 100});
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 8}, .reuse_prefixes = true, .store = &store});
    engine.change_swapped_layers(4);
    bool has_ended = false;
    const auto sink = [&](const GenerationEvent& event) { has_ended |= event.finish.has_value(); };
    engine.submit(first);  // both compute the shared part, which is too short to wait for
    engine.submit(second);
    while (!has_ended) engine.step(sink);
    uint32_t seed = 1000;
    for (const int more : {5, others}) {
      for (int n = 0; n < more; ++n) engine.submit(make_request(100, ++seed, 2));
      while (engine.step(sink)) continue;
    }
    const int64_t before = engine.stats().reused_tokens;
    EXPECT_EQ(answers_of(engine, {third}), wanted);
    found += engine.stats().reused_tokens - before == 3 * kKvBlockTokens ? 1 : 0;
  }
  EXPECT_GT(found, 0) << "or nothing was tested";
}

// The pool shrinks while sequences run: some are preempted and come back from the store; the others
// continue where their blocks are now.
TEST_P(LayerSwappingTest, WhoGivesWayToAPoolThatShrinksIsNotComputedAgain) {
  const std::vector<GenerationRequest> requests = requests_of(10);
  const auto wanted = expected(requests);
  KvCache kv = runtime_.make_kv(12, 7);
  KvStore store(kv, *runtime_.transfers, runtime_.host, {.slots = 128});
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .store = &store});
  engine.change_swapped_layers(7);
  constexpr int kTurns[] = {4, 7, 0, 6, 3, 7};  // each number swaps other layers
  const auto change = [&](int step) {
    if (step % 8 == 7) engine.change_swapped_layers(kTurns[step / 8 % 6]);
  };
  EXPECT_EQ(answers_of(engine, requests, change), wanted);
  EXPECT_GT(engine.stats().layer_swap_changes, 3);
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_EQ(engine.stats().recomputed_tokens, 0);
}

TEST_P(LayerSwappingTest, SequencesInHostMemoryRunBesideThem) {
  const auto requests = requests_of(8);
  KvCache kv = runtime_.make_kv(10, 5, 1, KvType::kF32, /*host_blocks=*/24);
  KvCache all = runtime_.make_kv(10, 0, 1, KvType::kF32, /*host_blocks=*/24);
  std::vector<std::vector<Answer>> answers;
  for (KvCache* const each : {&all, &kv}) {
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, *each, nullptr, {});
    if (each == &kv) engine.change_swapped_layers(5);
    answers.push_back(answers_of(engine, requests));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

// No request ever waits, since host memory has room for all. But sequences there are attended to by
// the CPU, so layers are swapped to make room on the device.
TEST_P(LayerSwappingTest, TheirNumberIsFoundBesideSequencesInHostMemory) {
  const auto requests = requests_of(40);
  const auto wanted = expected(requests);
  KvCache kv = runtime_.make_kv(12, kLayers - 1, kSpareBuffers, KvType::kF32, /*host_blocks=*/200);
  Decoder decoder = runtime_.make_decoder(48);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .adapts_swapped_layers = true});
  int32_t most_away = 0;
  const auto look = [&](int) {
    const auto away = engine.state().kv.at(1);
    most_away = std::max(most_away, away.total - away.free);
  };
  EXPECT_EQ(answers_of(engine, requests, look), wanted);
  EXPECT_GT(most_away, 0);
  EXPECT_GT(engine.stats().layer_swap_changes, 0) << "the device was short of room";
}

// If one of two sequences is in host memory, layers are swapped only while the other fills the
// device.
TEST_P(LayerSwappingTest, WhoIsElsewhereIsDemandWhileTheDeviceHasNoRoom) {
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(LengthBuckets::linear(512)), {}, "");
  for (const bool predicts : {false, true}) {
    for (const bool is_left : {false, true}) {
      SCOPED_TRACE(testing::Message() << predicts << is_left);
      KvCache kv = runtime_.make_kv(14, kLayers - 1, kSpareBuffers, KvType::kF32, 40);
      Decoder decoder = runtime_.make_decoder(48);
      Engine engine(decoder, kv, nullptr,
                    {.lengths = predicts ? &lengths : nullptr, .adapts_swapped_layers = true});
      std::vector<RequestId> ids;
      for (uint32_t n = 0; n < 2; ++n) {
        GenerationRequest request = make_request(20, n + 1, 160);
        request.ignore_end = true;
        request.prediction.tokens = 160;
        ids.push_back(engine.submit(request));
      }
      for (int step = 0; step < 60; ++step) {
        engine.step([](const GenerationEvent&) {});
        if (step == 2 && is_left) engine.cancel(ids.front());
      }
      EXPECT_EQ(engine.state().running, is_left ? 1 : 2);
      EXPECT_LT(engine.state().kv.at(1).free, engine.state().kv.at(1).total);
      EXPECT_EQ(engine.stats().layer_swap_changes > 0, !is_left);
    }
  }
}

// No sequence has KV on the device, so no swapped layer is loaded.
TEST_P(LayerSwappingTest, StepsWithoutRowsOnTheDeviceBringNoLayers) {
  const auto requests = requests_of(8);
  KvCache kv = runtime_.make_kv(1, 5, 1, KvType::kF32, /*host_blocks=*/40);
  const auto wanted = expected(requests);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {});
  engine.change_swapped_layers(5);
  EXPECT_EQ(answers_of(engine, requests), wanted);
}

// A step that fails has no effect, nor has a failed change of the number of swapped layers: the
// answers stay the same.
TEST_P(LayerSwappingTest, FailuresLoseNothingButTime) {
  const auto requests = requests_of(6);
  const auto wanted = expected(requests);
  for (const char* point : {"step.device", "copy.device"}) {
    for (const uint64_t nth : {1, 2, 3, 5, 8, 13, 21, 34}) {
      SCOPED_TRACE(testing::Message() << point << " " << nth);
      KvCache kv = runtime_.make_kv(14, 6);
      Decoder decoder = runtime_.make_decoder(64);
      Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
      std::map<RequestId, Answer> answers;
      for (const GenerationRequest& request : requests) engine.submit(request);
      const auto sink = [&](const GenerationEvent& event) {
        if (event.token) answers[event.id].ids.push_back(*event.token);
        if (event.finish) answers[event.id].finish = event.finish;
      };
      arm_fault(point, nth, FaultKind::kEio);
      constexpr int kTurns[] = {6, 3, 0, 5, 4};
      int failed = 0;
      bool more = true;
      for (int step = 0; more && step < 2000; ++step) {
        try {
          if (step % 6 == 0) engine.change_swapped_layers(kTurns[step / 6 % 5]);
          more = engine.step(sink);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kDevice);
          ++failed;
        }
      }
      disarm_faults();
      EXPECT_EQ(failed, 1);
      std::vector<Answer> all;
      for (const auto& [id, answer] : answers) all.push_back(answer);
      EXPECT_EQ(all, wanted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerSwappingTest,
                         testing::Values("llama-deep", "opt-deep", "qwen3-deep"),
                         [](const auto& of) {
                           return std::string(of.param).substr(0, std::string(of.param).find('-'));
                         });

}  // namespace
}  // namespace spillway::testing_models
