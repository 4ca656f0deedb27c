// SPDX-License-Identifier: Apache-2.0
// Every allocation, read and write that a placed model makes fails once. The result is a typed
// error, nothing leaks, and later runs give the same logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/fault_points.h"
#include "engine/runner.h"
#include "memory/transfer_scheduler.h"
#include "plan/resolved_plan.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

constexpr uint64_t kNever = uint64_t{1} << 40;

// Returns the code of the error that `work` throws, if any.
std::optional<ErrorCode> code_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_STRNE(error.what(), "");
    return error.code();
  }
}

// Returns how often `work` passes a fault point.
uint64_t hits_in(const char* point, const std::function<void()>& work) {
  arm_fault(point, kNever, FaultKind::kEio);
  work();
  const uint64_t hits = fault_hits(point);
  disarm_faults();
  return hits;
}

size_t files_in(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
size_t open_files() { return files_in("/proc/self/fd"); }

// Devices that outlive what runs on them, so that leaks are seen.
struct Machine {
  explicit Machine(bool with_accelerator)
      : accelerator(with_accelerator ? std::make_unique<EmulatedAccelerator>(options()) : nullptr) {
    for (Device* each : devices()) each->ops().set_deterministic(true);
  }
  static EmulatedAcceleratorOptions options() {
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 20;
    return options;
  }
  Device& device() { return accelerator ? static_cast<Device&>(*accelerator) : host; }
  std::vector<Device*> devices() {
    if (!accelerator) return {&host};
    return {&host, accelerator.get()};
  }

  // Ops keep their workspace; all other memory must have been freed with its owner.
  void expect_nothing_left() {
    for (Device* each : devices()) {
      const Device::Usage usage = each->usage();
      for (int tag = 0; tag < kMemoryTagCount; ++tag) {
        if (static_cast<MemoryTag>(tag) == MemoryTag::kWorkspace) continue;
        EXPECT_EQ(usage.bytes[tag], 0u) << each->info().name << ": " << usage.describe();
      }
    }
    EXPECT_EQ(accelerator ? accelerator->pinned_bytes() : 0, 0u);
    EXPECT_EQ(files_in(folder.path()), 0u);
  }

  TempFolder folder;
  CpuDevice host{CpuDeviceOptions{.threads = 2}};
  std::unique_ptr<EmulatedAccelerator> accelerator;
  IoQueue queue;
};

// A model and all that runs it, as the program makes them.
struct PlannedModel {
  static constexpr int kSequences = 3;
  static constexpr int64_t kTokens = 64;

  PlannedModel(Machine& machine, const Plan& plan)
      : device(machine.device()), runner(make(machine, plan)) {}
  Runner make(Machine& machine, const Plan& plan) {
    loaded.model = testing_models::tiny_model("llama", DType::kF32);
    loaded.weights = load_weights(
        device, loaded.model, {}, {},
        {.homes = weight_homes(device.host_visible(), loaded.model, plan.weight_plan()),
         .host = &machine.host,
         .queue = &machine.queue,
         .disk_dir = machine.folder.path(),
         .disk_budget = ~uint64_t{0}});
    return make_runner(transfers, machine.host, machine.queue, loaded,
                       resolve(loaded.model, plan,
                               {.tokens = kTokens,
                                .sequences = kSequences,
                                .micro_tokens = 16,
                                .kv_type = KvType::kF32},
                               traits_of(device, machine.host)),
                       {machine.folder.path()});
  }

  std::vector<float> run() {
    constexpr auto kBlocks = static_cast<int32_t>(kTokens / kKvBlockTokens);
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<BlockId>> tables;
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(testing_models::tiny_prompt(5 + 17 * i, static_cast<uint32_t>(i + 1)));
      tables.push_back(runner.kv.blocks_in_order(i * kBlocks, kBlocks));
    }
    std::vector<float> all;
    for (int step = 0; step < 3; ++step) {
      std::vector<StepSequence> sequences;
      for (size_t i = 0; i < kSequences; ++i) {
        if (step > 0) tokens[i].push_back(static_cast<int32_t>(i + 7) * step);
        const std::span<const int32_t> mine(tokens[i]);
        const size_t now = step == 0 ? mine.size() : 1;
        sequences.push_back({mine.last(now), static_cast<int32_t>(mine.size() - now), tables[i], 1,
                             /*generates=*/step > 0});
      }
      const Activations logits = runner.decoder.step(runner.kv, sequences);
      const size_t before = all.size();
      all.resize(before + static_cast<size_t>(logits.rows * logits.cols));
      device.copy_to_host(reinterpret_cast<std::byte*>(all.data() + before), logits.data,
                          (all.size() - before) * sizeof(float));
    }
    return all;
  }

  Device& device;
  TransferScheduler transfers{device};
  LoadedModel loaded;
  Runner runner;
};

struct NamedPlan {
  const char* name;
  bool with_accelerator;
  Plan plan;
};
std::vector<NamedPlan> plans() {
  Plan everywhere;
  everywhere.weights = {0.3, 0.3, 0.4};
  everywhere.kv = {0.4, 0.6, 0};
  everywhere.cpu_attention = 0.5;
  everywhere.micro_batch = 2;
  Plan swapped = everywhere;
  swapped.weights = {0, 1, 0};
  swapped.kv = {0, 1, 0};
  swapped.attention = AttentionPlace::kGpu;
  Plan rows = everywhere;
  rows.weights = {0.5, 0.5, 0};
  rows.kv = {1, 0, 0};
  rows.activations = {0.1, 0.1, 0.8};
  Plan disk;
  disk.weights = {0, 0.4, 0.6};
  Plan rows_on_cpu;
  rows_on_cpu.micro_batch = 2;
  rows_on_cpu.activations = {0, 0.1, 0.9};
  return {{"everywhere", true, everywhere},
          {"swapped", true, swapped},
          {"activations", true, rows},
          {"activations, no GPU", false, rows_on_cpu},
          {"no GPU", false, disk}};
}

class TierFaults : public testing::Test {
 protected:
  void TearDown() override { disarm_faults(); }
};

// Lets each allocation fail that making and running the model needs, one after the other.
void fail_every_allocation(const NamedPlan& named, const char* point) {
  const auto [name, with_accelerator, plan] = named;
  SCOPED_TRACE(fmt::format("{} {}", name, point));
  const auto logits = [&, &plan = plan](Machine& machine) {
    return PlannedModel(machine, plan).run();
  };
  std::vector<float> expected;
  const uint64_t hits = hits_in(point, [&, with = with_accelerator] {
    Machine machine(with);
    expected = logits(machine);
    machine.expect_nothing_left();
  });
  testing::Test::RecordProperty(fmt::format("{} {}", name, point), static_cast<int>(hits));
  for (uint64_t n = 1; n <= hits; ++n) {
    SCOPED_TRACE(fmt::format("allocation {} of {}", n, hits));
    Machine machine(with_accelerator);
    // Making the devices allocates too, which is not tested here.
    if (hits_in(point, [&, with = with_accelerator] { Machine only(with); }) >= n) continue;
    arm_fault(point, n, FaultKind::kEnomem);
    std::unique_ptr<PlannedModel> model;
    std::optional<ErrorCode> code =
        code_of([&, &plan = plan] { model = std::make_unique<PlannedModel>(machine, plan); });
    if (!code) {
      code = code_of([&] { model->run(); });
      disarm_faults();
      EXPECT_EQ(model->run(), expected) << "the same model, after a step that failed";
    }
    disarm_faults();
    EXPECT_EQ(code, ErrorCode::kOutOfMemory);
    model.reset();
    machine.expect_nothing_left();
    EXPECT_EQ(logits(machine), expected) << "a new model";
    machine.expect_nothing_left();
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(TierFaults, EveryAllocationMayFail) {
  for (const NamedPlan& plan : plans()) {
    for (const char* point : {"alloc.host", "alloc.device", "alloc.aligned"}) {
      if (!plan.with_accelerator && std::string_view(point) == "alloc.device") continue;
      fail_every_allocation(plan, point);
    }
  }
}

// Memory that cannot be pinned is copied through staging memory, or directly.
TEST_F(TierFaults, WhatCannotBePinnedIsNoError) {
  for (const NamedPlan& named : plans()) {
    if (!named.with_accelerator) continue;
    std::vector<float> expected;
    const auto run = [&] {
      Machine machine(true);
      const std::vector<float> logits = PlannedModel(machine, named.plan).run();
      machine.expect_nothing_left();
      return logits;
    };
    const uint64_t hits = hits_in("alloc.pin", [&] { expected = run(); });
    ASSERT_GT(hits, 2u);
    for (uint64_t n = 0; n <= hits; ++n) {
      SCOPED_TRACE(fmt::format("{}: {} of {}", named.name, n, hits));
      arm_fault("alloc.pin", std::max<uint64_t>(n, 1), FaultKind::kEnomem, n == 0 ? kNever : 1);
      EXPECT_EQ(run(), expected);
      disarm_faults();
    }
  }
}

// Each read of streamed weights fails once, with one layer loaded ahead, several, and none.
TEST_F(TierFaults, ReadsThatFailAreRepeatedOrReported) {
  for (const auto& [slots, overlap] : {std::pair(2, true), {4, true}, {2, false}}) {
    Placement p;
    p.name = fmt::format("{} slots, overlap {}", slots, overlap);
    p.weights = {0.2, 0.2, 0.6};
    p.slots = slots;
    p.overlap = overlap;
    SCOPED_TRACE(p.name);
    PlacedModel placed(false, p, "llama", DType::kF32, KvType::kF32, true);
    std::vector<float> expected = placed.run();
    const uint64_t hits = hits_in("io.read", [&] { EXPECT_EQ(placed.run(), expected); });
    ASSERT_GT(hits, 10u);
    for (const FaultKind kind :
         {FaultKind::kEio, FaultKind::kShort, FaultKind::kEintr, FaultKind::kEinval}) {
      for (uint64_t n = 1; n <= hits; n += 1 + n / 8) {
        SCOPED_TRACE(fmt::format("read {} of {}, kind {}", n, hits, static_cast<int>(kind)));
        arm_fault("io.read", n, kind);
        std::vector<float> logits;
        const auto code = code_of([&] { logits = placed.run(); });
        if (code) {
          // The first EINVAL means that direct reads do not work here; another is an error.
          EXPECT_TRUE(kind == FaultKind::kEio || kind == FaultKind::kEinval)
              << "no reason to give up";
          EXPECT_EQ(*code, ErrorCode::kIo);
        } else {
          EXPECT_EQ(logits, expected);
        }
        disarm_faults();
        EXPECT_EQ(placed.run(), expected);
        if (HasFailure()) return;
      }
    }
  }
}

// Without a GPU weights are read straight into place, and reads of the next layer begin before this
// layer's have ended.
TEST_F(TierFaults, SoAreThoseWithoutAGpu) {
  for (const bool overlap : {true, false}) {
    Plan plan = plans().back().plan;
    plan.overlap = overlap;
    Machine machine(false);
    PlannedModel model(machine, plan);
    const std::vector<float> expected = model.run();
    const uint64_t hits = hits_in("io.read", [&] { EXPECT_EQ(model.run(), expected); });
    ASSERT_GT(hits, 10u);
    for (const FaultKind kind : {FaultKind::kEio, FaultKind::kShort, FaultKind::kEintr}) {
      for (uint64_t n = 1; n <= hits; ++n) {
        SCOPED_TRACE(fmt::format("read {} of {}, kind {}", n, hits, static_cast<int>(kind)));
        arm_fault("io.read", n, kind);
        std::vector<float> logits;
        const auto code = code_of([&] { logits = model.run(); });
        disarm_faults();
        if (code) {
          EXPECT_EQ(kind, FaultKind::kEio);
          EXPECT_EQ(*code, ErrorCode::kIo);
        } else {
          EXPECT_EQ(logits, expected);
        }
        EXPECT_EQ(model.run(), expected);
        if (HasFailure()) return;
      }
    }
    for (const uint64_t from : {1u, 2u, 5u, 9u}) {
      arm_fault("io.read", from, FaultKind::kEio, kNever);
      for (int i = 0; i < 2; ++i) EXPECT_EQ(code_of([&] { model.run(); }), ErrorCode::kIo);
      disarm_faults();
      EXPECT_EQ(model.run(), expected);
    }
  }
}

// If hidden states are lost, the step ends with an error, and the next step is right.
TEST_F(TierFaults, ActivationsThatAreLostEndTheStep) {
  for (NamedPlan& named : plans()) {
    if (named.plan.activations.disk == 0) continue;
    for (const bool overlap : {true, false}) {
      named.plan.overlap = overlap;
      Machine machine(named.with_accelerator);
      PlannedModel model(machine, named.plan);
      const std::vector<float> expected = model.run();
      const ResidualStore::Stats moved = model.runner.decoder.take_stats().activations;
      EXPECT_GT(moved.disk_read_bytes, 0u);
      EXPECT_GT(moved.disk_written_bytes, 0u);
      for (const char* point : {"io.read", "io.write", "spill.flip"}) {
        const uint64_t hits = hits_in(point, [&] { EXPECT_EQ(model.run(), expected); });
        ASSERT_GT(hits, 3u) << point;
        for (uint64_t n = 1; n <= hits; n += 1 + n / 8) {
          SCOPED_TRACE(
              fmt::format("{}, overlap {}: {} {} of {}", named.name, overlap, point, n, hits));
          arm_fault(point, n, FaultKind::kEio);
          const auto code = code_of([&] { model.run(); });
          disarm_faults();
          if (std::string_view(point) == "io.write") {
            // The failure shows where the write is waited for, or where the rows are read again.
            EXPECT_TRUE(code == ErrorCode::kIo || code == ErrorCode::kCorrupt);
          } else {
            EXPECT_EQ(code, ErrorCode::kCorrupt);
          }
          EXPECT_EQ(model.run(), expected);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// While the disk is gone every step fails, and the first step after it is back is right.
TEST_F(TierFaults, ADiskThatComesBackIsUsedAgain) {
  for (const bool overlap : {true, false}) {
    Placement p;
    p.name = "lost disk";
    p.weights = {0, 0.3, 0.7};
    p.device_sequences = 0.4;
    p.host_share = 0.5;
    p.slots = 3;
    p.overlap = overlap;
    PlacedModel placed(false, p, "llama", DType::kF32, KvType::kF32, true);
    const std::vector<float> expected = placed.run();
    for (const uint64_t from : {1u, 2u, 5u, 14u}) {
      arm_fault("io.read", from, FaultKind::kEio, kNever);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(code_of([&] { placed.run(); }), ErrorCode::kIo);
      disarm_faults();
      EXPECT_EQ(placed.run(), expected);
    }
  }
}

// Writes of dummy weights to the disk fail.
TEST_F(TierFaults, WritesThatFailLeaveNoFile) {
  const Model model = testing_models::tiny_model("llama", DType::kF32);
  CpuDevice host(CpuDeviceOptions{.threads = 2});
  IoQueue queue;
  TempFolder folder;
  const auto make = [&] {
    return load_weights(
        host, model, {}, {},
        {.homes = weight_homes(/*host_visible=*/true, model, {.shares = {0, 0.2, 0.8}}),
         .host = &host,
         .queue = &queue,
         .disk_dir = folder.path(),
         .disk_budget = ~uint64_t{0}});
  };
  make();
  const size_t before = open_files();
  for (const char* point : {"io.open", "io.allocate", "io.write"}) {
    const uint64_t hits = hits_in(point, [&] { make(); });
    ASSERT_GT(hits, 0u) << point;
    for (uint64_t n = 1; n <= hits; ++n) {
      for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr}) {
        SCOPED_TRACE(fmt::format("{} {} of {}, kind {}", point, n, hits, static_cast<int>(kind)));
        arm_fault(point, n, kind);
        const auto code = code_of([&] { make(); });
        disarm_faults();
        if (kind == FaultKind::kEintr) {
          EXPECT_EQ(code, std::nullopt);
        } else {
          EXPECT_EQ(code, ErrorCode::kIo);
        }
        EXPECT_EQ(files_in(folder.path()), 0u);
        EXPECT_EQ(open_files(), before);
        EXPECT_EQ(host.usage().total(), 0u) << host.usage().describe();
      }
    }
  }
}

TEST_F(TierFaults, InterruptedWritesLoseNothing) {
  Placement p;
  p.name = "written";
  p.weights = {0, 0, 1};
  const auto run = [&] {
    return PlacedModel(false, p, "llama", DType::kF32, KvType::kF32, true).run();
  };
  const std::vector<float> expected = run();
  for (const FaultKind kind : {FaultKind::kShort, FaultKind::kEintr, FaultKind::kEinval}) {
    arm_fault("io.write", 1, kind);
    EXPECT_EQ(run(), expected) << static_cast<int>(kind);
    disarm_faults();
  }
}

}  // namespace
}  // namespace spillway::placement
