// SPDX-License-Identifier: Apache-2.0
// Plans follow each other over the same weights: each gives the logits that it gives alone, and no
// weight is made or read twice.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/fault_points.h"
#include "engine/runner.h"
#include "memory/transfer_scheduler.h"
#include "plan/resolved_plan.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "runtime/weight_mover.h"
#include "storage/gguf_writer.h"
#include "tensor/random_fill.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 33;

// Writes a model of two layers, with types that stay as they are stored, and types that are packed.
void write_tiny_gguf(const std::filesystem::path& path) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, uint32_t>>{{"llama.block_count", 2},
                                                               {"llama.embedding_length", 128},
                                                               {"llama.feed_forward_length", 160},
                                                               {"llama.attention.head_count", 4},
                                                               {"llama.context_length", 64}}) {
    writer.add_u32(key, value);
  }
  uint64_t seed = 3;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, DType dtype) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, count)));
    fill_random(dtype, bytes.data(), count, ++seed, 0.1F);
    writer.add_tensor(name, dtype, shape, bytes);
  };
  add("token_embd.weight", {97, 128}, DType::kF16);
  add("output_norm.weight", {128}, DType::kF32);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    add(layer + "attn_norm.weight", {128}, DType::kF32);
    add(layer + "ffn_norm.weight", {128}, DType::kF32);
    add(layer + "attn_q.weight", {128, 128}, DType::kQ4_0);
    add(layer + "attn_k.weight", {128, 128}, DType::kQ8_0);
    add(layer + "attn_v.weight", {128, 128}, DType::kQ8_0);
    add(layer + "attn_output.weight", {128, 128}, DType::kF16);
    add(layer + "ffn_gate.weight", {160, 128}, DType::kQ4_0);
    add(layer + "ffn_up.weight", {160, 128}, DType::kQ4_0);
    add(layer + "ffn_down.weight", {128, 160}, DType::kBF16);
  }
  writer.write(path);
}

class ReplanTest : public testing::Test {
 protected:
  static constexpr int kSequences = 3;
  static constexpr int64_t kTokens = 32;
  void TearDown() override { disarm_faults(); }

  // Devices for a sequence of plans.
  struct Machine {
    explicit Machine(bool with_accelerator, uint64_t host_bytes = 0)
        : host(CpuDeviceOptions{.threads = 2, .memory_bytes = host_bytes}),
          accelerator(with_accelerator
                          ? std::make_unique<EmulatedAccelerator>(EmulatedAcceleratorOptions{})
                          : nullptr) {
      host.ops().set_deterministic(true);
      device().ops().set_deterministic(true);
    }
    Device& device() { return accelerator ? static_cast<Device&>(*accelerator) : host; }
    CpuDevice host;
    std::unique_ptr<EmulatedAccelerator> accelerator;
    IoQueue queue;
  };

  Plan plan_of(const TierShares& weights) const {
    Plan plan;
    plan.weights = weights;
    plan.embeddings = embeddings_;
    plan.overrides = overrides_;
    return plan;
  }
  RunSize size() const {
    return {
        .tokens = kTokens, .sequences = kSequences, .micro_tokens = 32, .kv_type = KvType::kF32};
  }
  void load(Machine& machine, LoadedModel& loaded, const TierShares& weights, uint64_t host_budget,
            uint64_t disk_budget = kPlenty) {
    const WeightPlacement placement{
        .homes = weight_homes(machine.device().host_visible(), loaded.model,
                              plan_of(weights).weight_plan()),
        .host = &machine.host,
        .queue = &machine.queue,
        .disk_dir = folder_.path(),
        .disk_budget = disk_budget};
    KeptWeights kept = keep_weights(machine.device(), loaded.model,
                                    std::exchange(loaded.weights, {}), placement, host_budget);
    load_weights_of(loaded, machine.device(), options_, placement, std::move(kept));
  }
  std::vector<float> logits(Machine& machine, const LoadedModel& loaded,
                            const TierShares& weights) {
    TransferScheduler transfers(machine.device());
    Runner runner = make_runner(
        transfers, machine.host, machine.queue, loaded,
        resolve(loaded.model, plan_of(weights), size(), traits_of(machine.device(), machine.host)),
        {folder_.path()});
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<BlockId>> tables;
    std::vector<StepSequence> sequences;
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(testing_models::tiny_prompt(3 + 7 * i, static_cast<uint32_t>(i + 1)));
      tables.push_back(runner.kv.blocks_in_order(2 * i, 2));
    }
    for (size_t i = 0; i < kSequences; ++i) sequences.push_back({tokens[i], 0, tables[i], 1});
    const Activations rows = runner.decoder.step(runner.kv, sequences);
    std::vector<float> all(static_cast<size_t>(rows.rows * rows.cols));
    machine.device().copy_to_host(reinterpret_cast<std::byte*>(all.data()), rows.data,
                                  all.size() * sizeof(float));
    return all;
  }
  std::unique_ptr<LoadedModel> describe(Machine& machine, const std::string& kind) {
    if (kind == "file") {
      if (!std::filesystem::exists(file_folder_.path() / "tiny.gguf"))
        write_tiny_gguf(file_folder_.path() / "tiny.gguf");
      return describe_for_loading(machine.device(), file_folder_.path() / "tiny.gguf", options_);
    }
    auto loaded = std::make_unique<LoadedModel>();
    loaded->model = testing_models::tiny_model(kind, kind == "opt" ? DType::kQ4_0 : DType::kF32);
    return loaded;
  }

  const std::vector<TierShares> plans_ = {{1, 0, 0},     {0, 1, 0},     {0, 0, 1}, {0.3, 0.3, 0.4},
                                          {0, 0.5, 0.5}, {0.5, 0, 0.5}, {0, 0, 1}, {0, 0.7, 0.3},
                                          {1, 0, 0},     {0.2, 0.8, 0}};
  Tier embeddings_ = Tier::kDevice;  // of the current plan
  std::vector<WeightOverride> overrides_ = {};
  TempFolder folder_, file_folder_;
  WeightLoadOptions options_ = [] {
    WeightLoadOptions options;
    options.access = WeightAccess::kDirect;
    return options;
  }();
};

TEST_F(ReplanTest, PlansInARowAreLikeEachAloneAndMakeNothingAgain) {
  for (const bool with_accelerator : {true, false}) {
    for (const char* kind : {"llama", "opt", "file"}) {
      Machine machine(with_accelerator);
      const auto loaded = describe(machine, kind);
      for (size_t i = 0; i < plans_.size(); ++i) {
        SCOPED_TRACE(fmt::format("{}, accelerator {}, plan {}", kind, with_accelerator, i));
        embeddings_ = i % 3 == 1 ? Tier::kHost : Tier::kDevice;
        overrides_.clear();
        if (i % 4 == 2) overrides_ = {{.matrix = "mlp_down", .home = Tier::kHost}};
        if (i % 4 == 3) overrides_ = {{.layers = {{1, 1}}, .home = Tier::kDisk}};
        Machine fresh(with_accelerator);
        const auto alone = describe(fresh, kind);
        load(fresh, *alone, plans_[i], kPlenty);
        const std::vector<float> expected = logits(fresh, *alone, plans_[i]);
        EXPECT_EQ(alone->weights.counts().kept, 0);
        EXPECT_GT(alone->weights.counts().made, 0);

        load(machine, *loaded, plans_[i], kPlenty);
        EXPECT_EQ(logits(machine, *loaded, plans_[i]), expected);
        // Weights that stay in the model's own file are not kept; they are read again when a plan
        // wants them in memory.
        if (i > 0 && std::string_view(kind) != "file") {
          EXPECT_EQ(loaded->weights.counts().made, 0);
          EXPECT_EQ(static_cast<size_t>(loaded->weights.counts().kept),
                    loaded->model.weights.size());
        }
        EXPECT_EQ(loaded->weights.counts().kept > 0, i > 0);
        // Host memory has nothing but the weights that live there.
        EXPECT_EQ(machine.host.usage().bytes[static_cast<int>(MemoryTag::kWeights)],
                  fresh.host.usage().bytes[static_cast<int>(MemoryTag::kWeights)]);
        if (HasFailure()) return;
      }
      loaded->weights = ModelWeights();
      EXPECT_EQ(machine.host.usage().bytes[static_cast<int>(MemoryTag::kWeights)], 0u);
      EXPECT_EQ(with_accelerator ? machine.accelerator->pinned_bytes() : 0, 0u);
    }
  }
}

TEST_F(ReplanTest, WhatIsAtHomeStays) {
  for (const bool with_accelerator : {true, false}) {
    Machine machine(with_accelerator);
    const auto loaded = describe(machine, "llama");
    const TierShares shares{0.3, 0.3, 0.4};
    const auto stay = [&](const TierShares& next, Tier embeddings = Tier::kDevice,
                          const std::vector<WeightOverride>& overrides = {}) {
      WeightPlacement placement;
      placement.homes =
          weight_homes(!with_accelerator, loaded->model, {next, embeddings, overrides});
      return loaded->weights.try_stay(loaded->model, placement);
    };
    EXPECT_FALSE(stay(shares));
    load(machine, *loaded, shares, kPlenty);
    const std::vector<float> expected = logits(machine, *loaded, shares);
    EXPECT_FALSE(stay({0, 0.3, 0.7}));
    EXPECT_EQ(stay(shares, Tier::kHost), !with_accelerator) << "without one they are there already";
    EXPECT_FALSE(stay(shares, Tier::kDevice, {{.home = Tier::kDevice}}));
    EXPECT_TRUE(stay(shares));
    EXPECT_EQ(loaded->weights.counts().made, 0);
    EXPECT_EQ(logits(machine, *loaded, shares), expected);
  }
}

// Host memory has room only for what the plans themselves need; weights without room are made
// again.
TEST_F(ReplanTest, BudgetsHoldFromPlanToPlan) {
  for (const bool with_accelerator : {true, false}) {
    uint64_t most = 0;
    {
      Machine machine(with_accelerator);
      const auto loaded = describe(machine, "llama");
      for (const TierShares& weights : plans_) {
        load(machine, *loaded, weights, 0);
        machine.host.reset_peaks();
        loaded->weights = ModelWeights();
        load(machine, *loaded, weights, 0);
        logits(machine, *loaded, weights);
        most = std::max(most, machine.host.usage().peak_bytes);
        loaded->weights = ModelWeights();
      }
    }
    Machine machine(with_accelerator, most);
    const auto loaded = describe(machine, "llama");
    int made = 0, kept = 0;
    for (const TierShares& weights : plans_) {
      Machine fresh(with_accelerator);
      const auto alone = describe(fresh, "llama");
      load(fresh, *alone, weights, kPlenty);
      load(machine, *loaded, weights, most);
      EXPECT_EQ(logits(machine, *loaded, weights), logits(fresh, *alone, weights));
      made += loaded->weights.counts().made;
      kept += loaded->weights.counts().kept;
    }
    EXPECT_GT(made, 0);
    EXPECT_GT(kept, 0);
    EXPECT_LE(machine.host.usage().peak_bytes, most);
  }
}

// Whatever fails between two plans, either the next plan is right, or there is an error and the
// plan after it, made from nothing, is right.
TEST_F(ReplanTest, FaultsBetweenPlansCostTimeOrAnError) {
  for (const bool with_accelerator : {true, false}) {
    const TierShares before{0.3, 0.3, 0.4}, after{0.4, 0.4, 0.2};
    for (const char* point : {"alloc.host", "alloc.device", "io.read", "io.write", "io.open"}) {
      int failed = 0;
      for (uint64_t n = 1, hits = 1; n <= hits; ++n) {
        SCOPED_TRACE(fmt::format("{} {}, accelerator {}", point, n, with_accelerator));
        Machine machine(with_accelerator);
        const auto loaded = describe(machine, "llama");
        load(machine, *loaded, before, kPlenty);
        const std::vector<float> expected = logits(machine, *loaded, before);
        arm_fault(point, n, point[0] == 'a' ? FaultKind::kEnomem : FaultKind::kEio);
        try {
          load(machine, *loaded, after, kPlenty);
          hits = std::max(hits, fault_hits(point));
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), point[0] == 'a' ? ErrorCode::kOutOfMemory : ErrorCode::kIo);
          ++failed;
          hits = std::max(hits, n + 1);
          disarm_faults();
          load(machine, *loaded, after, kPlenty);
        }
        disarm_faults();
        EXPECT_EQ(logits(machine, *loaded, after), expected);
        loaded->weights = ModelWeights();
        EXPECT_EQ(machine.host.usage().bytes[static_cast<int>(MemoryTag::kWeights)], 0u);
        if (HasFailure()) return;
      }
      RecordProperty(fmt::format("{} {}", point, with_accelerator), failed);
    }
  }
}

// If the previous plan's file leaves no room for the new one, it is deleted first.
TEST_F(ReplanTest, TheDisksBudgetHoldsToo) {
  Machine machine(true);
  const auto loaded = describe(machine, "llama");
  load(machine, *loaded, {0, 0, 1}, kPlenty);
  const std::vector<float> expected = logits(machine, *loaded, {0, 0, 1});
  uint64_t all = 0;
  for (const BoundWeight& weight : loaded->model.weights) {
    if (weight.slot.layer >= 0 && !weight.slot.is_vector())
      all += align_up(static_cast<uint64_t>(weight.bytes()));
  }
  // Half of what was on disk stays there: the old file, which is longer, may stay too.
  load(machine, *loaded, {0, 0.5, 0.5}, kPlenty, all);
  EXPECT_EQ(loaded->weights.counts().made, 0);
  EXPECT_EQ(logits(machine, *loaded, {0, 0.5, 0.5}), expected);
  // With this budget it may not stay.
  load(machine, *loaded, {0, 0.6, 0.4}, kPlenty, all * 2 / 3);
  EXPECT_GT(loaded->weights.counts().made, 0);
  EXPECT_EQ(logits(machine, *loaded, {0, 0.6, 0.4}), expected);
}

}  // namespace
}  // namespace spillway::placement
