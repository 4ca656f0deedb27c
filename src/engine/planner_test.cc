// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "engine/session.h"
#include "plan/step_trace.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "tests/test_devices.h"

namespace spillway {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the message of the error that `fn` throws, or nothing.
template <class Fn>
std::string refusal_of(Fn&& fn) {
  try {
    fn();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

// Compares what `spillway plan` says of a machine with what a session does on it.
class PlannerTest : public testing::Test {
 protected:
  PlannerTest() {
    options_.model = "dummy:smollm2-135m:q4_0";
    options_.tuning.off = true;
  }

  struct Answer {
    std::string refused, plan;
    double tokens_per_s = 0;
  };
  static std::string text_of(Plan plan) {
    plan.made_for = {};
    return plan_to_json(plan);
  }
  Answer session_answer(Session& session) const {
    Answer answer;
    answer.refused = refusal_of([&] {
      session.choose_plan({.tokens = 96, .prompt = 64, .generated = 32});
      answer.plan = text_of(session.plan());
      answer.tokens_per_s = session.predict_run().generated_tokens_per_s;
    });
    return answer;
  }
  // Returns the machine of a session.
  static ChosenHardware machine_of(const Session& session) {
    return {.hardware = session.hardware(),
            .how = "",
            .traits = traits_of(*session.device, session.host())};
  }
  PlanQuestion question() const {
    PlanQuestion asked;
    asked.model = options_.model;
    asked.gpu_memory = options_.gpu_memory;
    asked.host_memory = options_.placement.host_memory;
    asked.disk_memory = options_.placement.disk_memory;
    asked.placement = options_.placement;
    asked.workload = {{{.count = 1, .prompt = 64, .generate = 32}}};
    return asked;
  }
  static Answer planner_answer(const Planner& planner) {
    Answer answer;
    answer.refused = refusal_of([&] {
      std::vector<std::string> warnings;
      const FoundPlan found = planner.answer(warnings);
      answer.plan = text_of(planner.complete(found));
      answer.tokens_per_s = found.predicted.generated_tokens_per_s;
    });
    return answer;
  }
  // Expects that both find a plan, the same one with the same estimate, or both refuse; returns
  // whether they found one.
  bool agree() {
    Session session(options_, {.devices = devices_});
    const ChosenHardware machine = machine_of(session);
    const PlanQuestion asked = question();
    const Planner planner(asked, machine);
    const Answer here = session_answer(session), there = planner_answer(planner);
    EXPECT_EQ(here.refused.empty(), there.refused.empty()) << here.refused << there.refused;
    EXPECT_EQ(here.plan, there.plan);
    EXPECT_DOUBLE_EQ(here.tokens_per_s, there.tokens_per_s);
    return here.refused.empty();
  }

  TestDevices devices_;
  SessionOptions options_;
};

TEST_F(PlannerTest, AndSessionsGiveOneAnswerOnACpu) {
  options_.device = "cpu";
  int refused = 0;
  for (const char* disk : {"0", "1GiB"}) {
    for (const int host : {20, 40, 50, 57, 58, 60, 64, 70, 80, 100, 120, 150, 200, 400, 1000}) {
      SCOPED_TRACE(fmt::format("host {} MiB, disk {}", host, disk));
      options_.placement.host_memory = fmt::format("{}MiB", host);
      options_.placement.disk_memory = disk;
      refused += agree() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 24);
}

TEST_F(PlannerTest, AndSessionsGiveOneAnswerOnADeviceWithMemoryOfItsOwn) {
  options_.device = "emulated";
  int refused = 0;
  for (const char* disk : {"0", "1GiB"}) {
    for (const char* host : {"30MiB", "100MiB", "400MiB"}) {
      for (const int device : {262, 265, 280, 310, 600}) {
        SCOPED_TRACE(fmt::format("device {} MiB, host {}, disk {}", device, host, disk));
        options_.gpu_memory = fmt::format("{}MiB", device);
        options_.placement.host_memory = host;
        options_.placement.disk_memory = disk;
        refused += agree() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 24);
}

// The file is all that the second session gets: neither budgets nor other options.
TEST_F(PlannerTest, APlanPassedBackGivesTheSameRun) {
  const ScopedFolder folder(std::filesystem::temp_directory_path());
  const auto file = folder / "plan.json";
  const SessionOptions plain = options_;
  struct Placing {
    const char *device, *gpu, *host, *disk, *expansion;
    bool deterministic;
  };
  for (const Placing& placing : {Placing{"cpu", "", "60MiB", "1GiB", "", false},
                                 {"cpu", "", "400MiB", "0", "", true},
                                 {"emulated", "310MiB", "400MiB", "0", "", false},
                                 {"emulated", "280MiB", "100MiB", "1GiB", "", true},
                                 {"emulated", "600MiB", "400MiB", "0", "12", false}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", placing.device, placing.gpu, placing.host));
    options_ = plain;
    options_.device = placing.device;
    options_.deterministic = placing.deterministic;
    options_.gpu_memory = placing.gpu;
    options_.placement.host_memory = placing.host;
    options_.placement.disk_memory = placing.disk;
    options_.placement.kv_expansion = placing.expansion;
    options_.drafts.kind = placing.deterministic ? DraftKind::kLookup : DraftKind::kOff;
    const ExpectedRun run{.tokens = 96, .sequences = 3, .prompt = 64, .generated = 32};
    Session first(options_, {.devices = devices_});
    first.choose_plan(run);
    std::ofstream(file) << plan_to_json(first.plan());
    options_ = plain;
    options_.device = placing.device;
    options_.placement.plans = {file.string()};
    Session second(options_, {.devices = devices_});
    second.choose_plan(run);
    EXPECT_EQ(plan_to_json(second.plan()), plan_to_json(first.plan()));
    const ResolvedPlan &one = first.resolved(), &other = second.resolved();
    EXPECT_EQ(one.homes, other.homes);
    EXPECT_EQ(one.needs.device.describe(), other.needs.device.describe());
    EXPECT_EQ(one.needs.host.describe(), other.needs.host.describe());
    EXPECT_EQ(one.needs.disk.describe(), other.needs.disk.describe());
    EXPECT_EQ(one.layout().staging_blocks, other.layout().staging_blocks);
    EXPECT_EQ(one.size.swapped_layers, other.size.swapped_layers);
    EXPECT_EQ(one.size.draft_tokens, other.size.draft_tokens);
    EXPECT_TRUE(first.settings == second.settings);
    EXPECT_DOUBLE_EQ(first.predict_run().total_s(), second.predict_run().total_s());
  }
}

// 12 of the model's 30 layers are swapped.
TEST_F(PlannerTest, AndSessionsPriceSwappedLayersAlike) {
  options_.device = "emulated";
  options_.gpu_memory = "600MiB";
  options_.placement.kv_expansion = "12";
  EXPECT_TRUE(agree());
  const Session session(options_, {.devices = devices_});
  const ChosenHardware machine = machine_of(session);
  const PlanQuestion asked = question();
  const Planner planner(asked, machine);
  std::vector<std::string> warnings;
  const FoundPlan found = planner.answer(warnings);
  EXPECT_EQ(found.size.swapped_layers, 12);
  EXPECT_EQ(found.needs.layout.swapped_layers, 12);
  const StepSize step{.sequences = found.size.sequences, .keys = 80};
  const std::string trace =
      trace_of_steps(planner.hardware, planner.model, planner.homes(found.plan), found.plan,
                     found.needs.layout, step);
  EXPECT_THAT(trace, HasSubstr("load KV of the layer"));
  EXPECT_THAT(trace, HasSubstr("store KV of the layer"));
  for (const char* refused : {"1", "30"}) {
    options_.placement.kv_expansion = refused;
    const PlanQuestion too_few_or_many = question();
    EXPECT_THAT(planner_answer(Planner(too_few_or_many, machine)).refused,
                HasSubstr("none or 2 to 29"));
  }
}

TEST_F(PlannerTest, AndSessionsPriceSharesByHandAlike) {
  options_.device = "emulated";
  options_.gpu_memory = "400MiB";
  options_.placement.host_memory = "400MiB";
  for (const char* weights : {"0,100,0", "40,60,0"}) {
    options_.placement.weights = weights;
    EXPECT_TRUE(agree()) << weights;
  }
  options_.placement.weights.clear();
  options_.placement.kv = "0,100,0";
  EXPECT_TRUE(agree());
}

// Only the placement of KV is given, and the GPU has no room for all weights beside it: the planner
// finds a placement for them.
TEST_F(PlannerTest, FindsTheRestAroundSharesThatAreGiven) {
  options_.model = "dummy:opt-1.3b";
  options_.device = "emulated";
  options_.gpu_memory = "1500MiB";
  options_.placement.host_memory = "6GiB";
  options_.placement.kv = "100,0,0";
  EXPECT_TRUE(agree());
  Session session(options_, {.devices = devices_});
  session.choose_plan({.tokens = 96, .prompt = 64, .generated = 32});
  EXPECT_EQ(session.plan().kv.device, 1);
  EXPECT_GT(session.plan().weights.host, 0);
  EXPECT_GT(session.plan().weights.device, 0);
}

// The budget that a refusal names is enough, and a MiB less is not.
TEST_F(PlannerTest, NamesTheSmallestMemoryThatWorks) {
  options_.device = "cpu";
  options_.placement.host_memory = "20MiB";
  options_.placement.disk_memory = "1GiB";
  Session session(options_, {.devices = devices_});
  const ChosenHardware machine = machine_of(session);
  PlanQuestion asked = question();
  const std::string refused = planner_answer(Planner(asked, machine)).refused;
  const size_t at = refused.find("--host-memory ");
  ASSERT_NE(at, std::string::npos) << refused;
  const int least = std::stoi(refused.substr(at + 14));
  asked.host_memory = fmt::format("{}MiB", least);
  EXPECT_EQ(planner_answer(Planner(asked, machine)).refused, "");
  asked.host_memory = fmt::format("{}MiB", least - 1);
  EXPECT_NE(planner_answer(Planner(asked, machine)).refused, "");
  options_.placement.host_memory = fmt::format("{}MiB", least);
  EXPECT_TRUE(agree());
  options_.placement.host_memory = fmt::format("{}MiB", least - 1);
  EXPECT_FALSE(agree());
}

class NamedMachineTest : public testing::Test {
 protected:
  static ChosenHardware machine(const std::string& name, const std::string& device = "auto") {
    return choose_hardware(name, device, TestDevices());
  }
  static std::string refusal(const PlanQuestion& asked, const ChosenHardware& on) {
    return refusal_of([&] {
      std::vector<std::string> warnings;
      Planner(asked, on).answer(warnings);
    });
  }
};

TEST_F(NamedMachineTest, RefusalsNameLargeDisksAndCompression) {
  const ChosenHardware t4 = machine("t4");
  PlanQuestion asked;
  asked.model = "dummy:opt-175b";
  asked.workload = {{{.count = 1, .prompt = 512, .generate = 32}}};
  const std::string refused = refusal(asked, t4);
  EXPECT_THAT(refused, HasSubstr("--compress-weights"));
  const size_t at = refused.find(", --disk-memory ");
  ASSERT_NE(at, std::string::npos) << refused;
  const double gib = std::stod(refused.substr(at + 16));
  EXPECT_GT(gib, 64);
  asked.disk_memory = fmt::format("{:.1f}GiB", gib);
  EXPECT_EQ(refusal(asked, t4), "");
}

TEST_F(NamedMachineTest, LengthsBeyondTheModelsPositionsAreAnError) {
  PlanQuestion asked;
  asked.model = "dummy:opt-30b";
  asked.workload = {{{.count = 1, .prompt = 10000, .generate = 32}}};
  EXPECT_THAT(refusal(asked, machine("t4")), HasSubstr("2048 positions"));
  asked.workload = {{{.count = 1, .prompt = 2016, .generate = 33}}};
  EXPECT_THAT(refusal(asked, machine("t4")), HasSubstr("2048 positions"));
}

TEST_F(NamedMachineTest, CanBePlannedWithoutItsGpu) {
  const ChosenHardware t4 = machine("t4", "cpu");
  EXPECT_FALSE(t4.hardware.gpu);
  PlanQuestion asked;
  asked.model = "dummy:opt-6.7b";
  asked.workload = {{{.count = 1, .prompt = 64, .generate = 8}}};
  asked.gpu_memory = "4GiB";
  asked.placement.weights = "50,50,0";
  asked.placement.attention = "gpu";
  const Planner planner(asked, t4);
  std::vector<std::string> warnings;
  const FoundPlan found = planner.answer(warnings);
  EXPECT_STREQ(found.predicted.bottleneck_name(), "CPU");
  EXPECT_THAT(warnings, IsEmpty());
  planner.warn(found, warnings);
  EXPECT_THAT(warnings, Contains(HasSubstr("--gpu-memory 4GiB, --attention gpu")));
  EXPECT_THAT(warnings, Contains(HasSubstr("--weights 50,50,0")));
  EXPECT_THROW(machine("ci", "cuda"), Error);
  EXPECT_THROW(machine("t4", "gpu"), Error);
  EXPECT_TRUE(machine("t4", "cuda").hardware.gpu);
}

// The report and the warning must state shares of the same bytes.
TEST_F(NamedMachineTest, SaysOneShareOfWhatIsOnDisk) {
  PlanQuestion asked;
  asked.model = "dummy:smollm2-135m";
  asked.host_memory = "200MiB";
  asked.disk_memory = "1GiB";
  asked.workload = {{{.count = 1, .prompt = 64, .generate = 8}}};
  const ChosenHardware ci = machine("ci");
  const Planner planner(asked, ci);
  std::vector<std::string> warnings;
  const FoundPlan found = planner.answer(warnings);
  planner.warn(found, warnings);
  const double on_disk =
      placed_shares(planner.model, planner.homes(found.plan), /*has_device=*/false).disk;
  EXPECT_NEAR(on_disk, found.plan.weights.disk, 0.01);
  EXPECT_THAT(warnings,
              Contains(HasSubstr(fmt::format("{:.1f}% of the layers' matrices", 100 * on_disk))));
}

}  // namespace
}  // namespace spillway
