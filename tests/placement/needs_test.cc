// SPDX-License-Identifier: Apache-2.0
// The needs of a plan are computed before anything is allocated, and a run then takes exactly these
// bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "engine/runner.h"
#include "memory/transfer_scheduler.h"
#include "plan/memory_fit.h"
#include "plan/resolved_plan.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/sequence_tables.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

using testing::HasSubstr;

constexpr int kSequences = 4;
constexpr int64_t kTokens = 48;

constexpr RunSize kSize{
    .tokens = kTokens, .sequences = kSequences, .micro_tokens = 16, .kv_type = KvType::kF32};

// Runs prompts of different lengths in steps as long as possible, then a token of all sequences
// together.
void run_steps(Runner& runner) {
  constexpr auto kBlocks = static_cast<int32_t>(kTokens / kKvBlockTokens);
  std::vector<std::vector<int32_t>> tokens(kSequences);
  std::vector<testing_models::SequenceTables> tables;
  std::vector<StepSequence> together;
  tables.reserve(kSequences);
  for (int i = 0; i < kSequences; ++i) {
    auto& mine = tokens[static_cast<size_t>(i)];
    auto& table = tables.emplace_back(runner.kv, runner.kv.blocks_in_order(i * kBlocks, kBlocks));
    mine = testing_models::tiny_prompt(6 + 9 * i, static_cast<uint32_t>(i + 1));
    const std::span<const int32_t> all(mine);
    const size_t last = mine.size() - 1;
    for (size_t start = 0; start < last;) {
      const size_t now = std::min(last - start, static_cast<size_t>(runner.decoder.max_tokens()));
      const StepSequence part = table.sequence(all.subspan(start, now), start, 0);
      runner.decoder.step(runner.kv, {&part, 1});
      start += now;
    }
    together.push_back(table.sequence(all.last(1), last, 1, /*generates=*/true));
  }
  runner.decoder.step(runner.kv, together);
}

// Expects the computed peaks, except for what kernels take as workspace.
void expect_taken(const Device::Usage& needs, const Device::Usage& taken, const char* where) {
  SCOPED_TRACE(
      fmt::format("{}: needs {}; at the end {}", where, needs.describe(), taken.describe()));
  for (const MemoryTag tag :
       {MemoryTag::kWeights, MemoryTag::kKv, MemoryTag::kActivations, MemoryTag::kStaging})
    EXPECT_EQ(needs.peaks[static_cast<int>(tag)], taken.peaks[static_cast<int>(tag)])
        << memory_tag_name(tag);
}

TEST(NeedsTest, APlanTakesWhatItSaidItNeeds) {
  std::mt19937 random(5);
  const auto pick = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  const auto shares = [&]() -> TierShares {
    if (pick(1) < 0.3) return {};
    const double a = pick(1), b = pick(1) < 0.4 ? 1 : pick(1);
    return {std::min(a, b), std::abs(a - b), 1 - std::max(a, b)};
  };
  for (int i = 0; i < 40; ++i) {
    const bool with_accelerator = i % 2 == 0;
    Plan plan;
    plan.weights = shares();
    if (pick(1) < 0.5) plan.embeddings = Tier::kHost;
    if (pick(1) < 0.5)
      plan.overrides = {{.matrix = "mlp_down", .home = static_cast<Tier>(i % 3)},
                        {.layers = {{0, 0}}, .home = static_cast<Tier>(i / 3 % 3)}};
    plan.kv = shares();
    plan.activations = shares();
    plan.micro_batch = static_cast<int>(pick(4));
    plan.attention = pick(1) < 0.5 ? AttentionPlace::kGpu : AttentionPlace::kCpu;
    if (i % 4 < 3) plan.cpu_linear = {{4, pick(1), {{"mlp_up", pick(1)}}}, {12, pick(1)}};
    SCOPED_TRACE(fmt::format("accelerator {}, {}", with_accelerator, plan_to_json(plan)));
    TempFolder folder;
    CpuDevice host(CpuDeviceOptions{.threads = 2});
    EmulatedAccelerator accelerator{EmulatedAcceleratorOptions{}};
    Device& device = with_accelerator ? static_cast<Device&>(accelerator) : host;
    IoQueue queue;
    LoadedModel loaded;
    RunSize size = kSize;
    if (i % 3 == 1) size.max_concurrent = 9;  // concurrent sequences that share the KV of four
    constexpr const char* kKinds[] = {"opt-350m", "llama", "mixed", "shared"};
    loaded.model =
        testing_models::tiny_model(kKinds[i % 4], i % 5 == 0 ? DType::kQ4_0 : DType::kF32);
    const ResolvedPlan resolved = resolve(loaded.model, plan, size, traits_of(device, host));
    const Footprint& needs = resolved.needs;
    EXPECT_EQ(device.usage().peak_bytes, 0u) << "asking takes nothing";
    loaded.weights = load_weights(device, loaded.model, {}, {},
                                  {.homes = resolved.homes,
                                   .host = &host,
                                   .queue = &queue,
                                   .disk_dir = folder.path(),
                                   .disk_budget = ~uint64_t{0}});
    {
      TransferScheduler transfers(device);
      Runner runner = make_runner(transfers, host, queue, loaded, resolved, {folder.path()});
      runner.decoder.expect_rows(size.max_running());
      run_steps(runner);
    }
    expect_taken(needs.device, device.usage(), "device");
    if (with_accelerator) expect_taken(needs.host, host.usage(), "host");
    if (HasFailure()) return;
  }
}

// One sequence has KV in several memories, or more than fits into staging, so its KV is
// partitioned.
TEST(NeedsTest, ALongSequenceTakesWhatItSaidItNeeds) {
  constexpr RunSize kLong{
      .tokens = 1600, .sequences = 1, .micro_tokens = 64, .kv_type = KvType::kF16};
  for (const auto& [kind, with_accelerator] : {std::pair("llama", true),
                                               {"llama", false},
                                               {"mixed", true},
                                               {"mixed", false},
                                               {"shared", true}}) {
    for (const TierShares& kv :
         {TierShares{0.3, 0.7, 0}, {0.2, 0.4, 0.4}, {0, 1, 0}, {0.5, 0, 0.5}, {0, 0, 1}}) {
      for (const AttentionPlace place : {AttentionPlace::kGpu, AttentionPlace::kCpu}) {
        Plan plan;
        plan.kv = kv;
        plan.attention = place;
        SCOPED_TRACE(
            fmt::format("{}, accelerator {}, {}", kind, with_accelerator, plan_to_json(plan)));
        TempFolder folder;
        CpuDevice host(CpuDeviceOptions{.threads = 2});
        EmulatedAccelerator accelerator{EmulatedAcceleratorOptions{}};
        Device& device = with_accelerator ? static_cast<Device&>(accelerator) : host;
        IoQueue queue;
        LoadedModel loaded;
        loaded.model = testing_models::tiny_model(kind);
        loaded.model.spec.max_context = kLong.tokens;
        DeviceTraits traits = traits_of(device);
        // Leave room for half of the staging blocks, and for softmax states.
        Footprint needs = footprint(loaded.model, plan, kLong, traits);
        const int64_t blocks = needs.layout.staging_blocks,
                      left = std::max(needs.layout.least_staging() + 20, blocks / 2);
        traits.memory_bytes =
            needs.device.total() - needs.device.of(MemoryTag::kWorkspace) + needs.workspace;
        if (blocks > left) {
          traits.memory_bytes -= needs.device.of(MemoryTag::kStaging) /
                                 static_cast<uint64_t>(blocks) *
                                 static_cast<uint64_t>(blocks - left);
        }
        const ResolvedPlan resolved = resolve(loaded.model, plan, kLong, traits);
        needs = resolved.needs;
        const bool away = needs.layout.blocks_away() > 0;
        EXPECT_EQ(needs.layout.partitioned, away);
        loaded.weights = load_weights(device, loaded.model, {}, {});
        {
          TransferScheduler transfers(device);
          Runner runner = make_runner(transfers, host, queue, loaded, resolved, {folder.path()},
                                      traits.memory_bytes);
          Engine engine(runner.decoder, runner.kv, nullptr, {});
          EXPECT_EQ(engine.max_sequence_tokens(), kLong.tokens);
          engine.submit(testing_models::make_request(1500, 1, 20));
          EXPECT_EQ(testing_models::run_all(engine).begin()->second.ids.size(), 20u);
        }
        expect_taken(needs.device, device.usage(), "device");
        if (with_accelerator) expect_taken(needs.host, host.usage(), "host");
        if (HasFailure()) return;
      }
    }
  }
}

TEST(NeedsTest, SwappedLayersNeedTheirRoomInHostMemory) {
  const Plan plan;
  RunSize size = kSize;
  size.most_swapped = 4;
  CpuDevice host(CpuDeviceOptions{.threads = 2});
  EmulatedAccelerator accelerator{EmulatedAcceleratorOptions{}};
  IoQueue queue;
  LoadedModel loaded;
  loaded.model = testing_models::tiny_model("llama-deep");
  const ResolvedPlan resolved = resolve(loaded.model, plan, size, traits_of(accelerator, host));
  const Footprint& needs = resolved.needs;
  EXPECT_GT(needs.host.of(MemoryTag::kKv), 0u);
  loaded.weights = load_weights(accelerator, loaded.model, {}, {}, {.host = &host});
  TransferScheduler transfers(accelerator);
  Runner runner = make_runner(transfers, host, queue, loaded, resolved);
  const int32_t before = runner.kv.device_blocks();
  for (const int swapped : {0, 4}) {
    runner.decoder.change_swapped_layers(runner.kv, swapped);
    run_steps(runner);
    expect_taken(needs.device, accelerator.usage(), "device");
    expect_taken(needs.host, host.usage(), "host");
  }
  EXPECT_GT(runner.kv.device_blocks(), before) << "more blocks in the same memory";
}

std::string refusal(const Footprint& needs, bool has_device, const Budgets& budgets) {
  try {
    require_fit(needs, has_device, budgets);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    return error.what();
  }
  return "";
}

TEST(NeedsTest, WhatDoesNotFitIsRefusedWithWhatTakesHowMuch) {
  Footprint needs;
  needs.device.add(MemoryTag::kWeights, 100);
  needs.device.add(MemoryTag::kStaging, 50);
  needs.host.add(MemoryTag::kKv, 300);
  needs.host.add(MemoryTag::kActivations, 20);
  needs.disk.add(MemoryTag::kActivations, 70);
  EXPECT_EQ(refusal(needs, true, {150, 320, 70}), "");
  const std::string gpu = refusal(needs, true, {149, 320, 70});
  EXPECT_THAT(gpu, HasSubstr("150 B of GPU memory (weights 100 B, staging 50 B)"));
  EXPECT_THAT(gpu, HasSubstr("there are 149 B"));
  const std::string host = refusal(needs, true, {150, 319, 70});
  EXPECT_THAT(
      host,
      HasSubstr("320 B of host memory (KV cache 300 B, activations 20 B), and there are 319 B"));
  // One message lists everything that is missing.
  const std::string all = refusal(needs, true, {1, 2, 3});
  for (const char* memory : {"GPU memory", "host memory", "70 B of disk (activations 70 B)"})
    EXPECT_THAT(all, HasSubstr(memory));
  EXPECT_THAT(all, testing::Not(HasSubstr("\n")));
  // Mapped weights need no budget, unless the host's memory was limited explicitly.
  needs.mapped = 1000;
  EXPECT_EQ(refusal(needs, true, {150, 320, 70}), "");
  EXPECT_THAT(refusal(needs, true, {150, 320, 70, true}), HasSubstr("weights 1000 B"));
  needs.mapped = 0;
  // Without a GPU its memory is the host's.
  EXPECT_EQ(refusal(needs, false, {0, 150, 70}), "");
  EXPECT_THAT(refusal(needs, false, {0, 149, 70}), HasSubstr("host memory"));
}

TEST(NeedsTest, NothingGoesToADiskThatWasNotGiven) {
  Footprint needs;
  needs.disk.add(MemoryTag::kKv, 70);
  try {
    require_fit(needs, true, {100, 100, 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("--kv"));
    EXPECT_THAT(error.what(), HasSubstr("--disk-memory is 0"));
  }
}

}  // namespace
}  // namespace spillway::placement
