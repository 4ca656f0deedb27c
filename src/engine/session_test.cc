// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
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
