// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "tests/test_devices.h"

namespace spillway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// What a program shows of a session.
class SessionTest : public testing::Test {
 protected:
  class Recorded final : public Progress {
   public:
    explicit Recorded(uint64_t& done) : done_(done) {}
    void update(uint64_t done, uint64_t, std::string_view) override { done_ = done; }

   private:
    uint64_t& done_;
  };

  SessionTest() {
    options_.model = "dummy:smollm2-135m:q4_0";
    options_.tuning.off = true;
    services_.progress = [this](std::string_view title) {
      titles_.emplace_back(title);
      return std::make_unique<Recorded>(loaded_bytes_);
    };
    services_.notice = [this](std::string_view text) { notices_.emplace_back(text); };
    services_.cancel = &cancel_;
  }

  TestDevices devices_;
  SessionOptions options_;
  SessionServices services_{.devices = devices_};
  std::vector<std::string> titles_, notices_;
  uint64_t loaded_bytes_ = 0;
  std::atomic<bool> cancel_{false};
};

TEST_F(SessionTest, LoadsOnTheDeviceThatItIsGiven) {
  options_.device = "cpu";
  Session session(options_, services_);
  EXPECT_THAT(devices_.asked, ElementsAre("cpu"));
  session.choose_plan({.tokens = 32});
  session.say_plan();
  EXPECT_THAT(notices_, IsEmpty()) << "everything fits";
  session.load();
  EXPECT_THAT(titles_, ElementsAre("loading dummy:smollm2-135m:q4_0"));
  EXPECT_GT(loaded_bytes_, 0U);
  Runner runner = session.make_runner(32);
  EXPECT_EQ(runner.decoder.spec().layers, 30);
}

TEST_F(SessionTest, TellsWhatIsNotOnTheDevice) {
  options_.device = "emulated";
  options_.placement.weights = "0,100,0";
  Session session(options_, services_);
  EXPECT_THAT(devices_.asked, ElementsAre("emulated", "cpu"));
  session.choose_plan({.tokens = 32});
  EXPECT_FALSE(session.plan.all_on_device());
  session.say_plan();
  EXPECT_THAT(notices_, ElementsAre(StartsWith("plan: weights 0/100/0%")));
}

TEST_F(SessionTest, NeedsNobodyWhoWatches) {
  options_.device = "emulated";
  options_.placement.weights = "0,100,0";
  Session session(options_, {.devices = devices_});
  session.load({.tokens = 32});
  session.say_plan();
  EXPECT_THAT(session.describe_plan(), HasSubstr("tokens/s"));
  EXPECT_GT(session.load_seconds, 0);
}

// A predictor's encoder, say: what it has counts within --host-memory.
TEST_F(SessionTest, WhatOthersHaveOfHostMemoryIsNotPlannedWith) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  options_.device = "cpu";
  options_.placement.host_memory = "200MiB";
  Session session(options_, services_);
  ExpectedRun run{.tokens = 1024, .sequences = 32, .least_sequences = 1};
  session.choose_plan(run);
  const auto planned = [&] { return session.plan.sequences.value_or(1); };
  const auto needed = [&] {
    const Footprint needs = session.needs_of(session.runner_size(1024, planned()));
    return needs.device.peak_bytes + needs.mapped;
  };
  const int alone = planned();
  EXPECT_GT(needed(), 160 * kMiB) << "as many as there is memory for";
  run.host_bytes_taken = 40 * kMiB;
  session.choose_plan(run);
  EXPECT_LT(planned(), alone);
  EXPECT_LE(needed(), 160 * kMiB);
  run.host_bytes_taken = 190 * kMiB;
  const std::string refused = error_of([&] { session.choose_plan(run); });
  EXPECT_THAT(refused, HasSubstr("there are only 10.0 MiB beside 190 MiB for predicting lengths"));
  const size_t advice = refused.find("--host-memory ");
  ASSERT_NE(advice, std::string::npos) << refused;
  options_.placement.host_memory =
      refused.substr(advice + 14, refused.find("MiB", advice) + 3 - advice - 14);
  Session(options_, services_).choose_plan(run);
}

TEST_F(SessionTest, TheKvStoreLeavesWhatOthersHaveOfHostMemory) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  options_.device = "emulated";
  options_.placement.host_memory = "200MiB";
  options_.kv_store.host_size = "150MiB";
  Session session(options_, services_);
  session.load({.tokens = 64, .host_bytes_taken = 100 * kMiB});
  Runner runner = session.make_runner(64);
  const auto store = session.make_kv_store(runner.kv, 64);
  ASSERT_NE(store, nullptr);
  EXPECT_LE(session.host().usage().total(), 100 * kMiB);
}

TEST_F(SessionTest, StopsLoadingWhenItIsTold) {
  options_.device = "cpu";
  Session session(options_, services_);
  session.choose_plan({.tokens = 32});
  cancel_ = true;
  try {
    session.load();
    FAIL() << "was not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

}  // namespace
}  // namespace spillway
