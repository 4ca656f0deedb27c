// SPDX-License-Identifier: Apache-2.0
// Tests what a decoder does around its ops: refusals, the order of events, observers and
// statistics. tests/generation/ and tests/placement/ test its logits, for every placement.
#include "runtime/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "runtime/weight_mover.h"
#include "tests/generation/tiny_models.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

using testing_models::tiny_model;
using testing_models::tiny_prompt;

// A model on an accelerator, with its weights resident or streamed from host memory.
struct RunningModel {
  explicit RunningModel(const char* kind, bool streams = false, int micro_tokens = 0)
      : model(tiny_model(kind, DType::kF16)),
        plan{.shares = {streams ? 0.0 : 1.0, streams ? 1.0 : 0.0, 0}},
        weights(load_weights(
            machine.device(), model, {}, {},
            {.homes = weight_homes(/*host_visible=*/false, model, plan), .host = &machine.host})),
        kv(machine.device(), machine.host, kv_shapes(model.spec.states, KvType::kF16),
           {.device_blocks = 16}) {
    if (streams) {
      schedules = streaming_schedules(model, weight_homes(/*host_visible=*/false, model, plan), {},
                                      SlotContent::kLayers);
      stream = std::make_unique<WeightStream>(*machine.transfers, machine.host, machine.queue,
                                              weights, schedules, WeightStreamOptions{});
    }
    decoder = std::make_unique<Decoder>(machine.device(), model.spec, weights,
                                        DecoderOptions{.max_tokens = 64,
                                                       .micro_tokens = micro_tokens,
                                                       .stream = stream.get(),
                                                       .host = &machine.host});
  }

  StepSequence sequence(const std::vector<int32_t>& tokens, int32_t start = 0,
                        int32_t logit_rows = 1) const {
    return {tokens, start, blocks, logit_rows};
  }
  std::vector<std::byte> kv_bytes() {
    std::vector<std::byte> all;
    for (int i = 0; i < model.spec.layer_count(); ++i) {
      const KvLayerView view = kv.layer(i);
      for (const std::byte* plane : {view.k, view.v}) {
        const size_t before = all.size();
        all.resize(before + static_cast<size_t>(view.blocks * view.block_bytes()));
        machine.device().copy_to_host(all.data() + before, plane, all.size() - before);
      }
    }
    return all;
  }

  TestMachine machine{/*has_accelerator=*/true};
  Model model;
  WeightPlan plan;
  ModelWeights weights;
  KvCache kv;
  std::vector<BlockId> blocks = block_range(0, 16);
  std::vector<StreamingSchedule> schedules;
  std::unique_ptr<WeightStream> stream;
  std::unique_ptr<Decoder> decoder;
};

TEST(RuntimeDecoderTest, ARefusedStepLeavesTheCacheAsItWas) {
  RunningModel running("llama");
  const std::vector<int32_t> good = tiny_prompt(20, 1);
  const StepSequence first = running.sequence(good);
  (void)running.decoder->step(running.kv, {&first, 1});
  const auto before = running.kv_bytes();
  const std::vector<int32_t> next{5}, large{97}, negative{3, -1}, many = tiny_prompt(64, 2), none;
  const StepSequence fine = running.sequence(next, 20);
  const auto refuses = [&](const StepSequence& bad, const char* why) {
    const StepSequence both[] = {fine, bad};
    try {
      (void)running.decoder->step(running.kv, both);
      ADD_FAILURE() << "it was not refused: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
    EXPECT_EQ(running.kv_bytes(), before) << why;
  };
  refuses(running.sequence(large), "token id 97 is outside the vocabulary of 97 tokens");
  refuses(running.sequence(negative), "token id -1");
  refuses(running.sequence(many), "a step of more than 64 tokens");
  refuses(running.sequence(next, 640), "position 640 is past the model's context of 640 tokens");
  refuses(running.sequence(next, -1), "at position -1");
  refuses(running.sequence(none), "0 tokens");
  EXPECT_EQ(running.decoder->step(running.kv, {&fine, 1}).rows, 1);
  EXPECT_NE(running.kv_bytes(), before);
}

TEST(RuntimeDecoderTest, AStepOfNothingOrWithoutLogitsReturnsNone) {
  RunningModel running("opt");
  EXPECT_TRUE(running.decoder->step(running.kv, {}).empty());
  const std::vector<int32_t> tokens = tiny_prompt(10, 1);
  const StepSequence inside = running.sequence(tokens, 0, 0);
  EXPECT_TRUE(running.decoder->step(running.kv, {&inside, 1}).empty());
  const StepSequence all = running.sequence(tokens, 10, 10);
  const Activations logits = running.decoder->step(running.kv, {&all, 1});
  EXPECT_EQ(logits.rows, 10);
  EXPECT_EQ(logits.cols, 97);
  EXPECT_EQ(logits.dtype, DType::kF32);
}

// A timeline records every event, so it shows the order in which they are executed.
TEST(RuntimeDecoderTest, EventsAreExecutedInTheOrderOfTheSchedule) {
  for (const bool streams : {false, true}) {
    for (const int batches : {1, 3}) {
      SCOPED_TRACE(testing::Message() << "streams " << streams << ", micro-batches " << batches);
      RunningModel running("llama", streams, batches == 1 ? 0 : 10);
      StepShape shape{.model = running.model.spec.lowered,
                      .batches = std::vector<BatchShape>(static_cast<size_t>(batches))};
      shape.batches.back().logits = true;
      if (streams) {
        for (const StreamedLinear& linear : running.schedules.front().linears)
          shape.streamed.push_back(streamed_shape(linear));
        shape.slot_groups = running.schedules.front().slot_groups();
        shape.weight_slots = running.stream->slots();
      }
      std::vector<std::string> expected, drawn;
      for (const StepEvent& event : schedule_step(shape))
        expected.push_back(event_name(*shape.model, event) + " " + std::to_string(event.layer));

      const std::vector<int32_t> tokens = tiny_prompt(30, 1);
      const StepSequence all = running.sequence(tokens);
      Timeline timeline(running.machine.device());
      running.decoder->record(&timeline);
      (void)running.decoder->step(running.kv, {&all, 1});
      running.decoder->record(nullptr);
      timeline.drain();
      for (const Timeline::Span& span : timeline.spans()) {
        if (span.lane == TimelineLane::kGpu)
          drawn.push_back(span.name + " " + std::to_string(span.layer));
      }
      EXPECT_EQ(drawn, expected);
    }
  }
}

TEST(RuntimeDecoderTest, TheObserverSeesEveryLayerOnce) {
  RunningModel running("llama");
  std::vector<int> layers;
  running.decoder->observe_attention([&](const Activations& q, const KvLayerView& kv,
                                         std::span<const SequenceSpan> spans,
                                         const AttentionParams& params) {
    layers.push_back(kv.layer);
    EXPECT_EQ(q.cols, running.model.spec.q_dim());
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].rows, static_cast<int32_t>(q.rows));
    EXPECT_EQ(spans[0].start, q.rows == 1 ? 9 : 0);
    EXPECT_EQ(params.heads, running.model.spec.heads);
  });
  const std::vector<int32_t> prompt = tiny_prompt(9, 1), next{7};
  const StepSequence first = running.sequence(prompt), second = running.sequence(next, 9);
  // The later rounds would be replayed if there were no observer.
  for (int round = 0; round < 4; ++round) {
    for (const StepSequence& step : {first, second}) {
      layers.clear();
      (void)running.decoder->step(running.kv, {&step, 1});
      EXPECT_THAT(layers, testing::ElementsAre(0, 1, 2));
    }
  }
}

TEST(RuntimeDecoderTest, StatisticsAreOfTheStepsSinceTheyWereTaken) {
  RunningModel running("llama", /*streams=*/true);
  uint64_t layer_bytes = 0;
  for (const BoundWeight& weight : running.model.weights) {
    if (weight.slot.is_layer_matrix()) layer_bytes += static_cast<uint64_t>(weight.bytes());
  }
  const std::vector<int32_t> prompt = tiny_prompt(40, 1), next{7};
  const StepSequence first = running.sequence(prompt), second = running.sequence(next, 40);
  (void)running.decoder->step(running.kv, {&first, 1});
  DecoderStats stats = running.decoder->take_stats();
  EXPECT_EQ(stats.weights.host_bytes, layer_bytes) << "once a step, however many tokens it has";
  EXPECT_EQ(stats.weights.disk_bytes, 0U);
  (void)running.decoder->step(running.kv, {&second, 1});
  (void)running.decoder->step(running.kv, {&second, 1});
  DecoderStats more = running.decoder->take_stats();
  EXPECT_EQ(more.weights.host_bytes, 2 * layer_bytes);
  stats += more;
  EXPECT_EQ(stats.weights.host_bytes, 3 * layer_bytes);
  more = running.decoder->take_stats();
  EXPECT_EQ(more.weights.host_bytes, 0U);
  EXPECT_EQ(more.attention.dense_v_bytes, 0U);
  for (const double seconds : more.stall_s) EXPECT_EQ(seconds, 0);
}

TEST(RuntimeDecoderTest, NothingIsAllocatedInAStepThatWasExpected) {
  RunningModel running("llama");
  running.decoder->attach(running.kv);
  running.decoder->expect_rows(30);
  const uint64_t before = running.machine.used(MemoryTag::kActivations);
  const std::vector<int32_t> prompt = tiny_prompt(64, 1);
  const StepSequence all = running.sequence(prompt, 0, 30);
  (void)running.decoder->step(running.kv, {&all, 1});
  EXPECT_EQ(running.machine.used(MemoryTag::kActivations), before);
  const StepSequence more = running.sequence(prompt, 64, 31);
  (void)running.decoder->step(running.kv, {&more, 1});
  EXPECT_GT(running.machine.used(MemoryTag::kActivations), before);
}

TEST(RuntimeDecoderTest, ShapesForPlanningAreNotRun) {
  RunningModel running("llama");
  ModelSpec spec = running.model.spec;
  spec.executable = false;
  EXPECT_THROW(Decoder(running.machine.device(), spec, running.weights, 8), Error);
  EXPECT_THROW(Decoder(running.machine.device(), running.model.spec, running.weights, 0), Error);
}

}  // namespace
}  // namespace spillway
