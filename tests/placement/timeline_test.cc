// SPDX-License-Identifier: Apache-2.0
// A step that is recorded has spans of every worker, and its results are unchanged.
#include "runtime/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/generation/swapping_runtime.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

Placement shared_between_all() {
  Placement p{.name = "drawn"};
  p.weights = {0.3, 0.7, 0};
  p.device_sequences = 0.4;
  p.host_share = 0.5;
  p.slots = kSegmentSlots;
  p.slot_content = SlotContent::kSegments;
  p.segment_bytes = 16 << 10;
  p.cpu_linear = {{kAnyTokens, 0.5}};
  return p;
}

// Copies of swapped layers' KV are on the link's lanes, and waits for them on the GPU's.
TEST(TimelineTest, SwappedLayersAreInTheDrawing) {
  using testing_models::SwappingRuntime;
  constexpr int kSwapped = 5, kSteps = 4;
  const auto ids = testing_models::tiny_prompt(32, 5);
  const std::vector<BlockId> table = {DeviceBlock{1}, DeviceBlock{0}, DeviceBlock{2}};
  SwappingRuntime runtime("llama-deep");
  const auto run = [&](KvCache& kv, Decoder& decoder) {
    std::vector<float> all;
    for (int step = 0; step < kSteps; ++step) {
      const std::span<const TokenId> tokens(ids);
      const StepSequence sequence{
          .tokens = step == 0 ? tokens : tokens.subspan(static_cast<size_t>(step), 1),
          .start = step == 0 ? 0 : 31 + step,
          .block_table = table,
          .generates = step > 0};
      const Activations logits = decoder.step(kv, {&sequence, 1});
      all.insert(all.end(), logits.f32(0), logits.f32(0) + logits.cols);
    }
    return all;
  };
  KvCache resident = runtime.make_kv(3, 0), swapped = runtime.make_kv(3, kSwapped);
  Decoder plain = runtime.make_decoder(32), drawn = runtime.make_decoder(32);
  const auto expected = run(resident, plain);
  drawn.change_swapped_layers(swapped, kSwapped);
  Timeline timeline(*runtime.accelerator);
  drawn.record(&timeline);
  EXPECT_EQ(run(swapped, drawn), expected);
  drawn.record(nullptr);
  timeline.drain();
  std::map<std::pair<TimelineLane, std::string>, std::set<int>> layers;
  std::map<TimelineLane, int> spans;
  for (const Timeline::Span& span : timeline.spans()) {
    if (!span.name.ends_with("KV of the layer")) continue;
    layers[{span.lane, span.name}].insert(span.layer);
    if (span.lane != TimelineLane::kGpu) ++spans[span.lane];
  }
  const auto them = choose_swapped_layers(testing_models::kLayers, kSwapped);
  const std::set<int> all(them.begin(), them.end());
  for (const auto lane : {TimelineLane::kToGpu, TimelineLane::kToHost, TimelineLane::kGpuWaits})
    EXPECT_EQ((layers[{lane, "KV of the layer"}]), all) << timeline_lane_name(lane);
  for (const char* event : {"load ", "wait for ", "store ", "release "})
    EXPECT_EQ((layers[{TimelineLane::kGpu, event + std::string("KV of the layer")}]), all) << event;
  EXPECT_EQ(spans[TimelineLane::kToHost], kSwapped * kSteps);
  EXPECT_EQ(spans[TimelineLane::kGpuWaits], kSwapped * kSteps);
}

TEST(TimelineTest, EveryWorkerIsInTheDrawing) {
  const Placement placement = shared_between_all();
  PlacedModel plain(false, placement, "llama", DType::kF16, KvType::kF16, false);
  const auto expected = plain.run();
  PlacedModel drawn(false, placement, "llama", DType::kF16, KvType::kF16, false);
  Timeline timeline(*drawn.device);
  const double begin = timeline.now_s();
  drawn.decoder->record(&timeline);
  EXPECT_EQ(drawn.run(), expected);
  drawn.decoder->record(nullptr);
  timeline.drain();
  const double end = timeline.now_s();

  std::set<TimelineLane> lanes;
  for (const Timeline::Span& span : timeline.spans()) {
    lanes.insert(span.lane);
    EXPECT_GE(span.end_s, span.begin_s) << span.name;
    EXPECT_GE(span.begin_s, begin - 1e-3) << span.name;
    EXPECT_LE(span.end_s, end + 1e-3) << span.name;
  }
  EXPECT_EQ(lanes.size(), static_cast<size_t>(kTimelineLanes));
  for (int lane = 0; lane < kTimelineLanes; ++lane) {
    const double busy = timeline.busy_s(static_cast<TimelineLane>(lane), begin, end);
    EXPECT_GT(busy, 0) << lane;
    EXPECT_LE(busy, end - begin) << lane;
  }
  // Within shared linear ops, CPU and link cannot work longer than the op lasts.
  const auto linears = timeline.shared_linears(begin, end);
  ASSERT_TRUE(linears.contains("mlp_up"));
  for (const auto& [name, of] : linears) {
    EXPECT_GT(of.count, 0) << name;
    EXPECT_LE(of.cpu_s, of.seconds + 1e-9) << name;
    EXPECT_LE(of.to_gpu_s, of.seconds + 1e-9) << name;
  }

  // The trace is what Perfetto reads.
  const auto trace = nlohmann::json::parse(timeline.chrome_trace());
  size_t spans = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    EXPECT_GT(event["dur"].get<double>(), 0);
  }
  EXPECT_GT(spans, 100U);

  // Without the timeline nothing more is recorded.
  const size_t before = timeline.spans().size();
  drawn.run(1);
  timeline.drain();
  EXPECT_EQ(timeline.spans().size(), before);
}

}  // namespace
}  // namespace spillway::placement
