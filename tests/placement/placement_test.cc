// SPDX-License-Identifier: Apache-2.0
// The same prompts give bit-equal logits wherever the model is, and close ones if the CPU computes
// what the GPU would have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "tests/logits_error.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

std::vector<Placement> every_placement() {
  const std::vector<std::pair<std::string, TierShares>> weights = {
      {"gpu", {1, 0, 0}},          {"host", {0, 1, 0}},      {"disk", {0, 0, 1}},
      {"gpu+host", {0.5, 0.5, 0}}, {"all", {0.3, 0.3, 0.4}},
  };
  struct Kv {
    std::string name;
    double device, host_share;
    bool can_swap;
    double disk = 0;
  };
  const std::vector<Kv> kvs = {{"gpu", 1, 1, true},        {"cpu", 0, 1, true},
                               {"swap", 0, 0, true},       {"both", 0, 0.5, true},
                               {"gpu+cpu", 0.4, 1, false}, {"gpu+swap", 0.4, 0, true},
                               {"disk", 0, 0, true, 1},    {"everywhere", 0.2, 0.5, true, 0.5}};
  std::vector<Placement> all;
  for (const auto& [weights_name, shares] : weights) {
    for (const Kv& kv : kvs) {
      Placement p;
      p.name = "weights " + weights_name + ", kv " + kv.name;
      p.weights = shares;
      p.device_sequences = kv.device;
      p.host_share = kv.host_share;
      p.can_swap = kv.can_swap;
      p.disk_sequences = kv.disk;
      all.push_back(p);
      p.name += ", no overlap";
      p.overlap = false;
      all.push_back(p);
      p.overlap = true;
      p.name = "weights " + weights_name + ", kv " + kv.name + ", micro-batches of 2 and 37 tokens";
      p.micro_sequences = 2;
      p.micro_tokens = 37;
      all.push_back(p);
      p.name += ", activations half in host memory";
      p.activations = {0.5, 0.5, 0};
      all.push_back(p);
      p.name += " and on disk";
      p.activations = {0.1, 0.2, 0.7};
      all.push_back(p);
    }
  }
  // Embeddings and head are in host memory, with all else on the device, or beside some of the
  // other placements.
  for (size_t i = 0, count = all.size(); i < count; ++i) {
    const bool taken = all[i].device_sequences == 1 || all[i].device_sequences == 0.2;
    if (!taken) continue;
    Placement& away = all.emplace_back(all[i]);
    away.name += ", embeddings in host memory";
    away.embeddings = Tier::kHost;
  }
  // Overrides place named matrices beside shares of the others: all of a name, those of a layer,
  // and one of them again.
  for (const Tier home : {Tier::kHost, Tier::kDisk}) {
    for (const TierShares& shares : {TierShares{1, 0, 0}, {0, 0.5, 0.5}}) {
      Placement named;
      named.name = fmt::format("MLPs' last matrices in tier {}, of others {}% on the device",
                               static_cast<int>(home), shares.device * 100);
      named.weights = shares;
      named.overrides = {{.matrix = "mlp_down", .home = home},
                         {.layers = {{0, 1}}, .home = Tier::kDevice},
                         {.layers = {{1, 1}}, .matrix = "query", .home = home}};
      all.push_back(named);
    }
  }
  Placement p;
  p.name = "activations in host memory";
  p.activations = {0, 1, 0};
  all.push_back(p);
  p.name = "activations on disk";
  p.activations = {0, 0, 1};
  all.push_back(p);
  // There are many micro-batches of few rows, so that several are under way; the first ones have no
  // logits.
  for (const bool overlap : {true, false}) {
    for (const TierShares& shares : {TierShares{0, 1, 0}, {0, 0, 1}, {0, 0.2, 0.8}}) {
      p.name = fmt::format("micro-batches of 2 tokens, activations {}% on disk, overlap {}",
                           shares.disk * 100, overlap);
      p.micro_tokens = 2;
      p.activations = shares;
      p.overlap = overlap;
      all.push_back(p);
    }
  }
  p = {};
  p.weights = {0, 1, 0};
  p.device_sequences = 0;
  p.host_share = 0.5;
  for (const uint64_t bytes : {0, 60'000}) {  // none of it, some
    p.pinnable_bytes = bytes;
    p.name = fmt::format("{} bytes can be pinned", bytes);
    all.push_back(p);
  }
  p.embeddings = Tier::kHost;
  for (const uint64_t bytes : {0, 60'000}) {
    p.pinnable_bytes = bytes;
    p.name = fmt::format("{} bytes can be pinned, embeddings in host memory", bytes);
    all.push_back(p);
  }
  p.pinnable_bytes = ~uint64_t{0};
  for (const Tier embeddings : {Tier::kDevice, Tier::kHost}) {
    for (const int slots : {1, 3, 9}) {
      p.name = fmt::format("{} slots, embeddings {}", slots, static_cast<int>(embeddings));
      p.embeddings = embeddings;
      p.slots = slots;
      all.push_back(p);
    }
  }
  return all;
}

Placement at_home() {
  Placement p;
  p.name = "all on the device";
  return p;
}

class PlacementTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
  }
  bool cuda() const { return GetParam(); }

  std::vector<float> logits(const Placement& placement, const std::string& kind, DType dtype,
                            KvType kv_type, bool deterministic) {
    PlacedModel placed(cuda(), placement, kind, dtype, kv_type, deterministic);
    return placed.run();
  }
  void expect_same(const Placement& placement, const std::vector<float>& result,
                   const std::vector<float>& expected) {
    ASSERT_EQ(result.size(), expected.size());
    if (cuda() && placement.computes_on_host()) {
      EXPECT_LT(nmse(result, expected), 1e-4);
    } else {
      EXPECT_EQ(result, expected);
    }
  }
};

// In deterministic mode not even the division into micro-batches changes a bit.
TEST_P(PlacementTest, LogitsDoNotDependOnWhereThingsAre) {
  for (const char* kind : {"llama", "opt", "mixed", "shared"}) {
    const auto expected = logits(at_home(), kind, DType::kF32, KvType::kF32, true);
    for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
    for (const Placement& placement : every_placement()) {
      SCOPED_TRACE(fmt::format("{}: {}", kind, placement.name));
      expect_same(placement, logits(placement, kind, DType::kF32, KvType::kF32, true), expected);
    }
  }
}

TEST_P(PlacementTest, NorOnTheTypesOfWeightsAndKv) {
  for (const auto& [dtype, kv_type] : {std::pair(DType::kF16, KvType::kF16),
                                       {DType::kQ4_0, KvType::kInt8},
                                       {DType::kQ8_0, KvType::kInt4},
                                       {DType::kBF16, KvType::kF16}}) {
    const auto expected = logits(at_home(), "llama", dtype, kv_type, true);
    for (const Placement& placement : every_placement()) {
      if (placement.micro_tokens > 0 || !placement.overlap) continue;
      SCOPED_TRACE(
          fmt::format("{} {}: {}", dtype_name(dtype), kv_type_name(kv_type), placement.name));
      expect_same(placement, logits(placement, "llama", dtype, kv_type, true), expected);
    }
  }
}

// Embeddings and head are in host memory. Heads are the embedding or not, and are streamed as a
// whole or in segments.
TEST_P(PlacementTest, NorOnWhereEmbeddingsAre) {
  for (const char* kind :
       {"llama", "llama-tied", "llama-many-words", "opt-350m", "opt-many-words"}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ4_0, DType::kQ8_0}) {
      const auto expected = logits(at_home(), kind, dtype, KvType::kF16, false);
      for (const TierShares& weights :
           {TierShares{1, 0, 0}, {0.5, 0.5, 0}, {0, 0, 1}, {0.3, 0.3, 0.4}}) {
        for (const bool overlap : {true, false}) {
          Placement p;
          p.weights = weights;
          p.embeddings = Tier::kHost;
          p.overlap = overlap;
          SCOPED_TRACE(fmt::format("{} {}, weights {} {} {}, overlap {}", kind, dtype_name(dtype),
                                   weights.device, weights.host, weights.disk, overlap));
          PlacedModel placed(cuda(), p, kind, dtype, KvType::kF16, false);
          const StreamingSchedule& schedule = placed.stream->schedule(0);
          const bool whole = schedule.linears.back().segments.size() == 1;
          EXPECT_EQ(whole, !std::string_view(kind).ends_with("many-words"));
          EXPECT_EQ(placed.run(), expected);
        }
      }
    }
  }
}

// The choice of kernels depends on how many tokens go through a layer together, and on nothing
// else.
TEST_P(PlacementTest, WithoutDeterministicModeOnlyTheCutMatters) {
  for (const char* kind :
       {"window", "mixed", "shared", "opt-350m", "qwen3", "neox", "gemma3", "olmo2"}) {
    const auto expected = logits(at_home(), kind, DType::kF16, KvType::kF16, false);
    for (Placement placement : every_placement()) {
      if (placement.micro_tokens > 0) continue;
      placement.staging_blocks = 1000;  // all of a step together, as on the device
      SCOPED_TRACE(fmt::format("{}: {}", kind, placement.name));
      expect_same(placement, logits(placement, kind, DType::kF16, KvType::kF16, false), expected);
    }
  }
}

// For one token at a time a GPU may compute all layers in one launch
// (cuda/persistent/persistent_step.h), or op by op.
TEST_P(PlacementTest, NorDoesItMatterToOneTokenWhereThingsAre) {
  using Kinds = std::vector<std::pair<const char*, DType>>;
  // The single launch takes models with heads of 64 or 128; without a GPU smaller models suffice.
  const Kinds kinds = cuda() ? Kinds{{"window-64", DType::kF16},      {"mixed-64", DType::kF16},
                                     {"llama-128", DType::kF16},      {"opt-64", DType::kBF16},
                                     {"llama-64-wide", DType::kQ4_0}, {"opt-64-wide", DType::kQ4_K}}
                             : Kinds{{"window", DType::kF16},
                                     {"mixed", DType::kF16},
                                     {"shared", DType::kF16},
                                     {"llama", DType::kF16}};
  for (const auto& [kind, type] : kinds) {
    const auto alone = [&](const Placement& placement) {
      PlacedModel placed(cuda(), placement, kind, type, KvType::kF16, false);
      return placed.run(3, PlacedModel::Decoding::kAlone);
    };
    const auto expected = alone(at_home());
    for (Placement placement : every_placement()) {
      if (placement.micro_tokens > 0) continue;
      placement.staging_blocks = 1000;
      SCOPED_TRACE(fmt::format("{}: {}", kind, placement.name));
      expect_same(placement, alone(placement), expected);
    }
  }
}

TEST_P(PlacementTest, RandomPlansGiveTheSameLogits) {
  std::mt19937 random(11);
  const auto pick = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  const auto expected = logits(at_home(), "llama", DType::kF32, KvType::kF32, true);
  for (int i = 0; i < 40; ++i) {
    Placement p;
    const double a = pick(1), b = pick(1);
    p.weights = {std::min(a, b), std::abs(a - b), 1 - std::max(a, b)};
    p.embeddings = pick(1) < 0.5 ? Tier::kDevice : Tier::kHost;
    p.device_sequences = pick(1);
    p.host_share = pick(1);
    p.can_swap = pick(1) < 0.8;
    p.disk_sequences = p.can_swap && pick(1) < 0.5 ? pick(1) : 0;
    p.micro_tokens = pick(1) < 0.5 ? 0 : 1 + static_cast<int>(pick(60));
    p.micro_sequences = static_cast<int>(pick(5));
    p.slots = 1 + static_cast<int>(pick(4));
    p.overlap = pick(1) < 0.8;
    if (pick(1) < 0.6) {
      const double c = pick(1), d = pick(1) < 0.5 ? 1 : pick(1);
      p.activations = {std::min(c, d), std::abs(c - d), 1 - std::max(c, d)};
    }
    p.name = fmt::format(
        "{}: weights {:.2f} {:.2f} {:.2f}, kv {:.2f}, host {:.2f}, swap {}, micro {} {}, slots {}, "
        "activations {:.2f} {:.2f}, overlap {}",
        i, p.weights.device, p.weights.host, p.weights.disk, p.device_sequences, p.host_share,
        p.can_swap, p.micro_tokens, p.micro_sequences, p.slots, p.activations.device,
        p.activations.disk, p.overlap);
    SCOPED_TRACE(p.name);
    expect_same(p, logits(p, "llama", DType::kF32, KvType::kF32, true), expected);
  }
}

// Without an accelerator, what is on disk is read ahead to where it is used.
TEST_P(PlacementTest, NorOnWhereThingsAreWithoutAGpu) {
  if (cuda()) GTEST_SKIP() << "no GPU is used";
  Placement home = at_home();
  home.on_cpu = true;
  const auto expected = logits(home, "llama", DType::kF32, KvType::kF32, true);
  for (const TierShares& weights : {TierShares{1, 0, 0}, {0.4, 0, 0.6}}) {
    for (const double kv : {0.0, 0.6}) {
      for (const TierShares& activations :
           {TierShares{0, 0, 1}, {0.3, 0.2, 0.5}, {0.9, 0, 0.1}, {0.5, 0.5, 0}}) {
        for (const int tokens : {0, 2, 37}) {
          for (const bool overlap : {true, false}) {
            Placement p = home;
            p.weights = weights;
            p.device_sequences = 1 - kv;
            p.disk_sequences = 1;
            p.activations = activations;
            p.micro_tokens = tokens;
            p.overlap = overlap;
            p.name = fmt::format("weights {}, kv {}, activations {} on disk, micro {}, overlap {}",
                                 weights.disk, kv, activations.disk, tokens, overlap);
            SCOPED_TRACE(p.name);
            EXPECT_EQ(logits(p, "llama", DType::kF32, KvType::kF32, true), expected);
          }
        }
      }
    }
  }
}

// A step that fails leaves everything usable: the next gives what it would have given.
TEST_P(PlacementTest, AStepAfterAFailedOneIsRight) {
  Placement p;
  p.name = "failing";
  p.weights = {0.3, 0.7, 0};
  p.device_sequences = 0;
  p.host_share = 0.5;
  const auto expected = logits(p, "llama", DType::kF32, KvType::kF32, true);
  PlacedModel placed(cuda(), p, "llama", DType::kF32, KvType::kF32, true);
  const std::vector<int32_t> good = {5, 6, 7}, bad = {5, 100'000};
  const std::vector<BlockId> table = block_range(0, 5, Tier::kHost);
  const StepSequence step[] = {{good, 0, table, 1}}, wrong[] = {{bad, 0, table, 1}};
  placed.decoder->step(*placed.kv, step);
  EXPECT_THROW(placed.decoder->step(*placed.kv, wrong), Error);
  expect_same(p, placed.run(), expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, PlacementTest, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
