// SPDX-License-Identifier: Apache-2.0
// Sparse attention to KV that is not on the device gives the same logits as with all of it there,
// and of V only the chosen entries cross the bus.
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

constexpr int kSteps = 14;  // every sequence fills a block and begins another, at its own time

Placement swapped() {
  Placement p;
  p.name = "all swapped";
  p.device_sequences = 0;
  p.host_share = 0;
  p.attention_topk = 0.1F;
  return p;
}

std::vector<Placement> swapping_placements() {
  std::vector<Placement> all = {swapped()};
  const auto add = [&](const std::string& name, auto&& change) {
    Placement p = swapped();
    p.name = name;
    change(p);
    all.push_back(p);
  };
  add("no overlap", [](Placement& p) { p.overlap = false; });
  add("all of a step at once", [](Placement& p) { p.staging_blocks = 1000; });
  add("one sequence at a time", [](Placement& p) { p.staging_blocks = 5; });
  add("micro-batches of 2", [](Placement& p) { p.micro_sequences = 2; });
  add("part of it on the device", [](Placement& p) { p.device_sequences = 0.4; });
  add("on disk", [](Placement& p) { p.disk_sequences = 1; });
  add("on disk and in host memory", [](Placement& p) { p.disk_sequences = 0.5; });
  add("weights come too", [](Placement& p) { p.weights = {0.3, 0.7, 0}; });
  return all;
}

class SparseSwapTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
  }
  bool cuda() const { return GetParam(); }

  struct Run {
    std::vector<float> logits;
    KvSwap::Stats swap;
  };
  Run run(const Placement& placement, const std::string& kind, DType dtype, KvType kv_type,
          int steps = kSteps) {
    PlacedModel placed(cuda(), placement, kind, dtype, kv_type, /*deterministic=*/true);
    std::vector<float> logits = placed.run(steps);
    return {std::move(logits), placed.decoder->take_stats().swap};
  }
  // Returns what the steps after the prompts copied.
  KvSwap::Stats decode_traffic(const Placement& placement, const std::string& kind,
                               KvType kv_type) {
    KvSwap::Stats stats = run(placement, kind, DType::kF32, kv_type).swap;
    const KvSwap::Stats prompts = run(placement, kind, DType::kF32, kv_type, 0).swap;
    EXPECT_EQ(prompts.v_read_bytes, 0U) << "prompts attend to all";
    stats.to_device_bytes -= prompts.to_device_bytes;
    stats.to_host_bytes -= prompts.to_host_bytes;
    return stats;
  }
};

// Sums over the decoding steps of PlacedModel::run, in pages of a block and in rows of V.
struct Expected {
  uint64_t pages = 0;       // with content when a step begins
  uint64_t last_pages = 0;  // of these, the ones that the step writes to
  uint64_t written = 0;
  uint64_t v_rows = 0;  // of one head, chosen in V that stays in host memory
};
Expected expected_of(double share, int window) {
  Expected sum;
  for (int i = 0; i < PlacedModel::kSequences; ++i) {
    for (int s = 0; s < kSteps; ++s) {
      const int start = 3 + 13 * i + s;
      const int seen = window > 0 ? std::min(window, start + 1) : start + 1;
      // Blocks behind a window have been released.
      const StateRule rule{window > 0 ? StateKind::kWindow : StateKind::kFull, window};
      sum.pages += static_cast<uint64_t>((start + 15) / 16 - rule.releasable(start));
      sum.last_pages += start % 16 == 0 ? 0 : 1;
      sum.written += 1;
      if (start >= 16) sum.v_rows += static_cast<uint64_t>(std::ceil(share * seen - 1e-9));
    }
  }
  return sum;
}
uint64_t plane_page_bytes(const ModelSpec& spec, KvType type) {
  return static_cast<uint64_t>(spec.layer_count() * spec.kv_heads *
                               kv_page_bytes(type, spec.head_dim));
}

TEST_P(SparseSwapTest, LogitsAreThoseOfKvOnTheDevice) {
  Placement home;
  home.attention_topk = 0.1F;
  for (const char* kind : {"llama", "window", "opt"}) {
    for (const auto& [dtype, kv_type] : {std::pair(DType::kF32, KvType::kF32),
                                         {DType::kF16, KvType::kF16},
                                         {DType::kQ8_0, KvType::kInt8},
                                         {DType::kQ8_0, KvType::kInt4}}) {
      if (kv_type != KvType::kF16 && kind != std::string_view("llama")) continue;
      const Run expected = run(home, kind, dtype, kv_type);
      for (const float value : expected.logits) ASSERT_TRUE(std::isfinite(value));
      for (const Placement& placement : swapping_placements()) {
        SCOPED_TRACE(fmt::format("{} {} {}: {}", kind, dtype_name(dtype), kv_type_name(kv_type),
                                 placement.name));
        EXPECT_EQ(run(placement, kind, dtype, kv_type).logits, expected.logits);
      }
    }
  }
}

// Micro-batches of 47 tokens leave one prompt's last token alone. Like the rest of its prompt it
// attends to all positions, including values that the previous group has written in the same step.
TEST_P(SparseSwapTest, ReadsWhatTheGroupBeforeHasWritten) {
  Placement home, away = swapped();
  home.attention_topk = 0.1F;
  home.micro_tokens = away.micro_tokens = 47;
  const Run expected = run(home, "llama", DType::kF32, KvType::kF32, 1);
  for (const bool overlap : {true, false}) {
    away.overlap = overlap;
    const Run result = run(away, "llama", DType::kF32, KvType::kF32, 1);
    EXPECT_EQ(result.logits, expected.logits);
    const Run prompts = run(away, "llama", DType::kF32, KvType::kF32, 0);
    EXPECT_GT(result.swap.v_read_bytes, 0U);
    EXPECT_EQ(prompts.swap.v_read_bytes, 0U) << "a prompt's tokens attend to all";
  }
}

// The CPU attends to some of the sequences. Logits are bit-equal if it emulates the accelerator,
// too.
TEST_P(SparseSwapTest, TheHostMayTakeSomeOfThem) {
  if (cuda()) GTEST_SKIP() << "the CPU computes other bits, and may choose others of like scores";
  Placement home, both = swapped();
  home.attention_topk = 0.1F;
  both.name = "both";
  both.host_share = 0.5;
  EXPECT_EQ(run(both, "llama", DType::kF16, KvType::kF16).logits,
            run(home, "llama", DType::kF16, KvType::kF16).logits);
}

TEST_P(SparseSwapTest, OnlyKeysAndTheLastPageMove) {
  for (const char* kind : {"llama", "window", "opt"}) {
    for (const KvType type : {KvType::kF32, KvType::kF16}) {
      SCOPED_TRACE(fmt::format("{} {}", kind, kv_type_name(type)));
      const ModelSpec spec = testing_models::tiny_model(kind, DType::kF32).spec;
      const KvSwap::Stats moved = decode_traffic(swapped(), kind, type);
      const Expected expected = expected_of(0.1, spec.layer(0).find("attention")->attention.window);
      const uint64_t page = plane_page_bytes(spec, type);
      EXPECT_EQ(moved.to_device_bytes, (expected.pages + expected.last_pages) * page);
      EXPECT_EQ(moved.to_host_bytes, 2 * expected.written * page);
      const uint64_t row = page / kKvBlockTokens / static_cast<uint64_t>(spec.kv_heads);
      EXPECT_EQ(moved.v_read_bytes, expected.v_rows * row * static_cast<uint64_t>(spec.heads));
    }
  }
}

// Reading V in place is no gain for dense attention, which needs all of it, for quantized pages,
// and if each query head reads many entries of its own; and memory that is not pinned cannot be
// read.
TEST_P(SparseSwapTest, WholePagesMoveWhereReadingValuesInPlaceDoesNotPay) {
  Placement dense = swapped(), many = swapped(), unpinned = swapped();
  dense.attention_topk = 0;
  many.attention_topk = 0.5F;  // times the two query heads of a kv head
  unpinned.pinnable_bytes = 0;
  struct Case {
    Placement placement;
    KvType type;
  };
  std::vector<Case> cases = {{dense, KvType::kF16},
                             {many, KvType::kF16},
                             {swapped(), KvType::kInt8},
                             {swapped(), KvType::kInt4}};
  if (!cuda()) cases.push_back({unpinned, KvType::kF16});
  const ModelSpec spec = testing_models::tiny_model("llama", DType::kF32).spec;
  const Expected expected = expected_of(1, 0);
  for (const auto& [placement, type] : cases) {
    SCOPED_TRACE(fmt::format("{} {}", placement.attention_topk, kv_type_name(type)));
    const KvSwap::Stats moved = decode_traffic(placement, "llama", type);
    EXPECT_EQ(moved.to_device_bytes, 2 * expected.pages * plane_page_bytes(spec, type));
    EXPECT_EQ(moved.v_read_bytes, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SparseSwapTest, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
