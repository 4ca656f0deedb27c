// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

constexpr double kStep = 0.125;  // seconds

// An engine that runs at most two sequences together, with steps that all take the same time.
class EngineLoadTest : public testing::Test {
 protected:
  EngineLoad load(const std::string& requests, LoadOptions options, LoadHooks hooks = {}) {
    options.requests = testing::TempDir() + "engine_load_" +
                       testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ofstream(options.requests) << requests;
    const auto now_s = [this] {
      return kStep * static_cast<double>(engine_.stats().steps) + skipped_s_;
    };
    const auto skip = [this, now_s](double at_s) { skipped_s_ += std::max(0.0, at_s - now_s()); };
    return {engine_, kv_, runtime_.model.spec.vocab_size, options, {now_s, skip}, std::move(hooks)};
  }

  testing_models::TinyRuntime runtime_{"llama", DType::kF32, 1};
  KvCache kv_ = runtime_.make_kv(64);
  Decoder decoder_ = runtime_.make_decoder(64);
  Engine engine_{decoder_, kv_, nullptr, {.admission = {.max_sequences = 2}}};
  double skipped_s_ = 7;  // a clock need not begin at 0
};

TEST_F(EngineLoadTest, SomeAlwaysWaitWhereRequestsSaturate) {
  int events = 0;
  EngineLoad load = this->load("9 3 4\n", {.saturates = true, .warm_up_s = 1, .seconds = 2},
                               {.event = [&](const GenerationEvent&) { ++events; }});
  load.warm_up();
  events = 0;
  const LoadFigures figures = load.measure();
  EXPECT_EQ(figures.seconds, 2);
  EXPECT_THAT(figures.step_s, testing::AllOf(SizeIs(16), Each(kStep)));
  EXPECT_EQ(events, 32);
  // Two requests end every fourth step, and two of the 64 waiting ones are admitted.
  EXPECT_EQ(figures.running_s, 2 * 2);
  EXPECT_EQ(figures.waiting_s, 63.5 * 2);
  EXPECT_EQ(figures.prompt_steps_s, 4 * kStep);
  EXPECT_EQ(load.arrivals().came_again(), 64 + 2 * 6 - 1U);
  const nlohmann::json report = load.report(figures);
  EXPECT_EQ(report.at("tokens_per_s"), 16);
  EXPECT_EQ(report.at("step_ms"), kStep * 1e3);
  EXPECT_EQ(report.at("sequences"), 2);
  EXPECT_EQ(report.at("queueing_ms_per_token"), 63.5 * 2 / 32 * 1e3);
  EXPECT_EQ(report.at("compute_ms_per_token"), kStep * 1e3);
}

TEST_F(EngineLoadTest, RequestsComeWhenTheyAreDue) {
  std::vector<double> came_s;
  EngineLoad* of = nullptr;
  LoadHooks hooks;
  hooks.submit = [&](Arrivals::Arrival arrival) {
    came_s.push_back(of->passed_s());
    engine_.submit(std::move(arrival.request));
  };
  EngineLoad load =
      this->load("0 3 2\n1 3 2\n3 3 30\n", {.warm_up_s = 0, .seconds = 4}, std::move(hooks));
  of = &load;
  load.warm_up();
  const LoadFigures figures = load.measure();
  EXPECT_THAT(came_s, ElementsAre(0, 1, 3));
  EXPECT_EQ(figures.seconds, 4);
  EXPECT_EQ(figures.running_s, 2 * kStep + 2 * kStep + 1);
  EXPECT_EQ(figures.waiting_s, 0);
  // An entry has what was generated since the previous one; there are at most two per second.
  const auto told = [](double s, double tokens_per_s) -> nlohmann::json {
    return {{"s", s}, {"tokens_per_s", tokens_per_s}, {"turning", 0}};
  };
  EXPECT_THAT(figures.series, ElementsAre(told(1, 2), told(3, 1), told(3.5, 8), told(4, 8)));
}

TEST_F(EngineLoadTest, WhatWarmsUpDoesNotCount) {
  std::vector<double> counted_s;
  EngineLoad load =
      this->load("0 3 100\n", {.warm_up_s = 1, .steps = 3},
                 {.before_step = [&](double passed_s) { counted_s.push_back(passed_s); }});
  load.warm_up();
  EXPECT_THAT(counted_s, SizeIs(0));
  const LoadFigures figures = load.measure();
  EXPECT_THAT(counted_s, ElementsAre(0, kStep, 2 * kStep));
  EXPECT_EQ(figures.before.steps, 8);
  EXPECT_EQ(figures.after.steps, 11);
  EXPECT_EQ(figures.seconds, 3 * kStep);
  EXPECT_THAT(figures.step_s, SizeIs(3));
  EXPECT_EQ(figures.running_s, 3 * kStep);
  EXPECT_EQ(figures.prompt_steps_s, 0);
}

TEST_F(EngineLoadTest, RequestsThatEndTooEarlyAreNamed) {
  EngineLoad load = this->load("0 3 8\n", {.warm_up_s = 0, .seconds = 5});
  load.warm_up();
  try {
    load.measure();
    FAIL() << "nothing was left to do";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("the last request came at 1.0 s"));
  }
}

}  // namespace
}  // namespace spillway
