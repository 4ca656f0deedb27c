// SPDX-License-Identifier: Apache-2.0
// CPU and device share linear layers: logits are the same however rows are split between them, bit
// for bit if both compute alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/fault_points.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

class SplitTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
  }
  void TearDown() override { disarm_faults(); }
  bool cuda() const { return GetParam(); }

  std::vector<float> logits(const Placement& placement, const std::string& kind, DType dtype,
                            bool deterministic) {
    PlacedModel placed(cuda(), placement, kind, dtype, KvType::kF16, deterministic);
    return placed.run();
  }
  // The emulated accelerator computes as the CPU does. A GPU rounds otherwise: rows that it
  // computes are the same however rows are split, and the others are close.
  void expect_same(const std::vector<float>& result, const std::vector<float>& expected,
                   bool all_on_device = false) {
    ASSERT_EQ(result.size(), expected.size());
    if (!cuda() || all_on_device) {
      EXPECT_EQ(result, expected);
      return;
    }
    double error = 0, power = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      error += std::pow(double{result[i]} - expected[i], 2);
      power += std::pow(double{expected[i]}, 2);
    }
    EXPECT_LT(error / power, 2e-4);
  }
};

Placement all_in_host_memory(std::vector<CpuLinearShare> shares) {
  Placement p;
  p.weights = {0, 1, 0};
  p.cpu_linear = std::move(shares);
  return p;
}

// The CPU's share goes from nothing to everything, for every type and family: with and without
// gates, norms before and behind.
TEST_P(SplitTest, NoCutChangesLogits) {
  for (const char* kind : {"llama", "opt", "opt-350m", "llama-tied", "qwen3", "neox", "stablelm",
                           "gemma3", "olmo2", "gptj"}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ8_0}) {
      const auto expected = logits({}, kind, dtype, false);
      for (const double share : {0.0, 0.2, 0.65, 1.0}) {
        Placement p = all_in_host_memory({{1000, share}});
        p.embeddings = Tier::kHost;  // and the head with them
        SCOPED_TRACE(fmt::format("{} {}, {}% on the CPU", kind, dtype_name(dtype), share * 100));
        expect_same(logits(p, kind, dtype, false), expected, share == 0);
        if (HasFailure()) return;
      }
    }
  }
}

// Random shares by number of tokens, in small segments or by layers, beside everything else that
// moves.
TEST_P(SplitTest, NorDoAnyOthers) {
  std::mt19937 random(17);
  const auto pick = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  const auto expected = logits({}, "llama", DType::kQ4_0, true);
  for (int i = 0; i < 60; ++i) {
    const double a = pick(1), b = i % 3 == 0 ? 1 : pick(1);
    Placement p;
    p.weights = {std::min(a, b), std::abs(a - b), 1 - std::max(a, b)};
    p.embeddings = pick(1) < 0.5 ? Tier::kDevice : Tier::kHost;
    p.cpu_linear = {{1, pick(1)}, {5, pick(1)}, {20 + i, i % 2 == 0 ? 1 : pick(1)}};
    p.overlap = pick(1) < 0.8;
    p.slots = 1 + static_cast<int>(pick(4));
    if (pick(1) < 0.5) {
      p.slot_content = SlotContent::kSegments;
      p.segment_bytes = 500 + static_cast<uint64_t>(pick(8000));
    } else {
      p.micro_tokens = pick(1) < 0.5 ? 0 : 1 + static_cast<int>(pick(60));
      p.micro_sequences = static_cast<int>(pick(5));
    }
    if (pick(1) < 0.3) p.pinnable_bytes = static_cast<uint64_t>(pick(60'000));
    if (pick(1) < 0.5) {
      p.device_sequences = pick(1);
      p.host_share = pick(1);
    }
    if (pick(1) < 0.3) p.activations = {0.5, 0.5, 0};
    SCOPED_TRACE(fmt::format(
        "{}: weights {:.2f} {:.2f} {:.2f}, by layers {}, micro {} {}, slots {}", i,
        p.weights.device, p.weights.host, p.weights.disk, p.slot_content == SlotContent::kLayers,
        p.micro_tokens, p.micro_sequences, p.slots));
    expect_same(logits(p, "llama", DType::kQ4_0, true), expected);
    if (HasFailure()) return;
  }
}

// The CPU reads its rows where they are, and only the other rows are copied.
TEST_P(SplitTest, EveryByteHasOneWay) {
  for (const double share : {0.0, 0.5, 1.0}) {
    PlacedModel placed(cuda(), all_in_host_memory({{1000, share}}), "llama", DType::kF16,
                       KvType::kF16, true);
    const std::vector<int32_t> tokens = {5};
    const std::vector<BlockId> table = block_range(0, 5);
    const StepSequence step[] = {{tokens, 0, table, 1}};
    placed.decoder->step(*placed.kv, step);
    const DecoderStats stats = placed.decoder->take_stats();
    uint64_t all = 0;
    for (const auto& layer : placed.weights.streamed) {
      for (const StreamedWeight& weight : layer) all += static_cast<uint64_t>(weight.view.bytes());
    }
    EXPECT_EQ(stats.weights.host_bytes + stats.host_linear.weight_bytes, all);
    const double of_cpu =
        static_cast<double>(stats.host_linear.weight_bytes) / static_cast<double>(all);
    EXPECT_NEAR(of_cpu, share, 0.15) << "whole groups of 16 rows, of matrices of a few hundred";
    EXPECT_EQ(stats.host_linear.to_device_bytes > 0, share > 0);
  }
}

TEST_P(SplitTest, AStepAfterAFailedOneIsRight) {
  Placement p = all_in_host_memory({{1000, 0.5}});
  p.weights = {0, 0.5, 0.5};
  const auto expected = logits(p, "llama", DType::kF32, true);
  PlacedModel placed(cuda(), p, "llama", DType::kF32, KvType::kF16, true);
  const std::vector<int32_t> tokens = {5, 6, 7};
  const std::vector<BlockId> table = block_range(0, 5);
  const StepSequence step[] = {{tokens, 0, table, 1}};
  placed.decoder->step(*placed.kv, step);
  arm_fault("io.read", 1, FaultKind::kEio, /*count=*/1'000'000);
  EXPECT_THROW(
      {
        for (int i = 0; i < 3; ++i) placed.decoder->step(*placed.kv, step);
      },
      Error);
  disarm_faults();
  expect_same(placed.run(), expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, SplitTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
