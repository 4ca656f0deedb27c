// SPDX-License-Identifier: Apache-2.0
// Parts of a model that run one after the other in one process give the logits of the whole model
// bit for bit, for prompts and decoding, wherever weights, KV and hidden states are.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <tuple>

#include "base/error.h"
#include "model/model_part.h"
#include "runtime/test_weight_file.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

// Links a part to the next one through host memory.
class HostMemoryLink final : public HiddenStatesLink {
 public:
  void receive(const Activations& rows) override {
    if (fails) throw std::runtime_error("the part before is gone");
    ASSERT_FALSE(sent.empty());
    ASSERT_EQ(sent.front().size(), bytes_of(rows));
    to->copy_to_device(rows.data, sent.front().data(), sent.front().size());
    sent.pop_front();
  }
  void send(const Activations& rows) override {
    std::vector<std::byte> copy(bytes_of(rows));
    from->copy_to_host(copy.data(), rows.data, copy.size());
    sent.push_back(std::move(copy));
  }

  Device *from = nullptr, *to = nullptr;
  std::deque<std::vector<std::byte>> sent;
  bool fails = false;

 private:
  static size_t bytes_of(const Activations& rows) {
    EXPECT_EQ(rows.dtype, DType::kF32);
    EXPECT_EQ(rows.stride, rows.cols);
    return static_cast<size_t>(rows.rows * rows.cols) * sizeof(float);
  }
};

// Combines the links to the previous and to the next part.
class LinkOfBoth final : public HiddenStatesLink {
 public:
  LinkOfBoth(HiddenStatesLink* before, HiddenStatesLink* behind)
      : before_(before), behind_(behind) {}
  void receive(const Activations& rows) override { before_->receive(rows); }
  void send(const Activations& rows) override { behind_->send(rows); }

 private:
  HiddenStatesLink *before_, *behind_;
};

// A model divided into parts that end behind these layers.
struct CutModel {
  CutModel(bool cuda, const Placement& how, const Model& whole, const std::filesystem::path& file,
           const ModelFacts& facts, std::vector<int> ends) {
    const int layers = whole.spec.layer_count();
    ends.push_back(layers);
    links.resize(ends.size() - 1);
    const std::vector<std::filesystem::path> files{file};
    for (size_t i = 0; i < ends.size(); ++i) {
      HostMemoryLink* const before = i == 0 ? nullptr : &links[i - 1];
      HostMemoryLink* const behind = i + 1 == ends.size() ? nullptr : &links[i];
      sides.push_back(std::make_unique<LinkOfBoth>(before, behind));
      parts.push_back(std::make_unique<PlacedModel>(
          cuda, how, part_of(whole, i == 0 ? 0 : ends[i - 1], ends[i]), files, KvType::kF16,
          /*deterministic=*/false, PlacedPart{.facts = facts, .link = sides.back().get()}));
      if (before != nullptr) before->to = parts.back()->device.get();
      if (behind != nullptr) behind->from = parts.back()->device.get();
      if (behind != nullptr) others.push_back(parts.back().get());
    }
  }
  std::vector<float> run(PlacedModel::Decoding decoding = PlacedModel::Decoding::kTogether) {
    return parts.back()->run(4, decoding, others);
  }

  std::deque<HostMemoryLink> links;
  std::vector<std::unique_ptr<LinkOfBoth>> sides;
  std::vector<std::unique_ptr<PlacedModel>> parts;
  std::vector<PlacedModel*> others;  // all but the last
};

std::vector<Placement> placements() {
  return {
      {.name = "on the CPU", .on_cpu = true},
      {.name = "on the CPU, micro-batches", .micro_tokens = 20, .on_cpu = true},
      {.name = "resident"},
      {.name = "weights, embeddings and hidden states offloaded",
       .weights = {0.3, 0.7, 0},
       .embeddings = Tier::kHost,
       .micro_tokens = 20,
       .activations = {0.5, 0.5, 0}},
      {.name = "the same without overlap",
       .weights = {0.3, 0.7, 0},
       .embeddings = Tier::kHost,
       .micro_tokens = 20,
       .activations = {0.5, 0.5, 0},
       .overlap = false},
      {.name = "weights and hidden states on disk, KV swapped",
       .weights = {0, 0, 1},
       .device_sequences = 0.4,
       .host_share = 0,
       .micro_tokens = 37,
       .micro_sequences = 2,
       .activations = {0.2, 0.3, 0.5}},
      {.name = "shared with the CPU",
       .weights = {0, 1, 0},
       .device_sequences = 0.4,
       .slots = 3,
       .slot_content = SlotContent::kSegments,
       .segment_bytes = 4096,
       .cpu_linear = {{kAnyTokens, 0.5}}},
  };
}

struct HandOverTest : testing::TestWithParam<bool> {
  void SetUp() override {
    if (cuda() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
  }
  bool cuda() const { return GetParam(); }
  // Expects the logits of the whole model from its parts, with all sequences together and with each
  // alone.
  void expect_equal(const Placement& how, const Model& model, const std::vector<int>& ends) {
    const auto path = folder.path() / "weights";
    const Model whole = write_weights(host, model, path);
    PlacedModel all(cuda(), how, whole, {path}, KvType::kF16, /*deterministic=*/false);
    CutModel cut(cuda(), how, whole, path, all.weights.facts(), ends);
    using enum PlacedModel::Decoding;
    for (const auto decoding : {kTogether, kAlone}) {
      const auto expected = all.run(4, decoding), found = cut.run(decoding);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
      for (const HostMemoryLink& link : cut.links) EXPECT_TRUE(link.sent.empty());
    }
  }

  TempFolder folder;
  CpuDevice host{CpuDeviceOptions{.threads = 1}};
};

TEST_P(HandOverTest, HalvesOfEveryKindGiveTheLogitsOfTheWhole) {
  for (const char* kind : {"llama", "window", "llama-tied", "opt", "opt-350m", "qwen2", "qwen3",
                           "neox", "gemma3", "olmo2", "gptj"}) {
    for (const Placement& how : placements()) {
      if (cuda() && how.on_cpu) continue;
      SCOPED_TRACE(fmt::format("{}, {}", kind, how.name));
      expect_equal(how, testing_models::tiny_model(kind, DType::kF16), {1});
      if (HasFailure()) return;
    }
  }
}

// The parts have other types of matrices than the whole model, on which the choice of kernels
// depends.
TEST_P(HandOverTest, PartsOfMixedTypesGiveTheLogitsOfTheWhole) {
  for (const auto& [kind, type, other] : {std::tuple("llama", DType::kF32, DType::kF16),
                                          std::tuple("llama", DType::kF16, DType::kF32),
                                          std::tuple("llama-64-wide", DType::kQ4_0, DType::kQ6_K),
                                          std::tuple("opt-64-wide", DType::kQ4_0, DType::kF16)}) {
    for (const Placement& how :
         {Placement{.name = "resident"}, Placement{.name = "streamed", .weights = {0, 1, 0}}}) {
      SCOPED_TRACE(
          fmt::format("{} of {} and {}, {}", kind, dtype_name(type), dtype_name(other), how.name));
      expect_equal(how, testing_models::tiny_model(kind, type, other), {1, 2});
      if (HasFailure()) return;
    }
  }
}

// The step that failed has no effect, and the next ones are right.
TEST_P(HandOverTest, APartGoesOnAfterItsLinkHasFailed) {
  const auto path = folder.path() / "weights";
  const Model whole = write_weights(host, testing_models::tiny_model("llama", DType::kF16), path);
  for (const Placement& how : placements()) {
    if (cuda() && how.on_cpu) continue;
    SCOPED_TRACE(how.name);
    PlacedModel all(cuda(), how, whole, {path}, KvType::kF16, /*deterministic=*/false);
    CutModel cut(cuda(), how, whole, path, all.weights.facts(), {2});
    cut.links.front().fails = true;
    EXPECT_THROW(cut.run(), std::runtime_error);
    cut.links.front().fails = false;
    cut.links.front().sent.clear();
    EXPECT_EQ(cut.run(), all.run());
  }
}

// Between receiving and sending hidden states, a part's step is recorded as a whole model's is.
TEST_P(HandOverTest, StepsOfPartsAreReplayed) {
  if (cuda()) GTEST_SKIP() << "the emulated accelerator counts them";
  const auto path = folder.path() / "weights";
  const Model whole = write_weights(host, testing_models::tiny_model("llama", DType::kF16), path);
  const Placement how{.name = "resident"};
  PlacedModel all(cuda(), how, whole, {path}, KvType::kF16, /*deterministic=*/false);
  CutModel cut(cuda(), how, whole, path, all.weights.facts(), {1, 2});
  const auto replays = [](PlacedModel& placed) {
    return dynamic_cast<EmulatedAccelerator&>(*placed.device).ops().replays();
  };
  EXPECT_EQ(cut.run(), all.run());
  EXPECT_GT(replays(all), 0);
  for (const auto& part : cut.parts) EXPECT_EQ(replays(*part), replays(all));
}

TEST_P(HandOverTest, IsInTheTimeline) {
  const auto path = folder.path() / "weights";
  const Model whole = write_weights(host, testing_models::tiny_model("opt", DType::kF16), path);
  const Placement how{.name = "resident"};
  PlacedModel all(cuda(), how, whole, {path}, KvType::kF16, /*deterministic=*/false);
  CutModel cut(cuda(), how, whole, path, all.weights.facts(), {1, 2});
  Timeline timeline(*cut.parts[1]->device);
  cut.parts[1]->decoder->record(&timeline);
  EXPECT_EQ(cut.run(), all.run());
  cut.parts[1]->decoder->record(nullptr);
  timeline.drain();
  std::map<std::string, int> seen;
  for (const Timeline::Span& span : timeline.spans()) ++seen[span.name];
  EXPECT_EQ(seen["take over hidden states"], 6);
  EXPECT_EQ(seen["hand over hidden states"], 6);
  EXPECT_EQ(seen["token_embedding"], 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, HandOverTest, testing::Values(false, true),
                         [](const auto& kind) { return kind.param ? "cuda" : "emulated"; });

// With the facts of its own weights, a part would compute other bits and report no error.
TEST(HandOverInputTest, APartNeedsFactsAndALink) {
  CpuDevice device(CpuDeviceOptions{.threads = 1});
  const Model half = part_of(testing_models::tiny_model("llama"), 0, 1);
  const ModelWeights weights = load_weights(device, half, {}, {});
  HostMemoryLink link;
  const auto make = [&](const DecoderOptions& options) {
    Decoder(device, half.spec, weights, options);
  };
  EXPECT_THROW(make({}), Error);
  EXPECT_THROW(make({.link = &link}), Error);
  EXPECT_THROW(make({.facts = weights.facts()}), Error);
  make({.facts = weights.facts(), .link = &link});
}

}  // namespace
}  // namespace spillway::placement
