// SPDX-License-Identifier: Apache-2.0
// The thread that owns a model: each request is answered as by the engine alone, once and in order,
// whichever threads submit, cancel, wait or leave.
#include "engine/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "engine/engine_client.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong(120);  // takes a moment if nothing is wrong

// Collects the reports that a listener gets.
class ReportRecorder {
 public:
  void on_step(const StepReport& report) {
    std::unique_lock lock(mutex_);
    EXPECT_GE(report.stats.steps, stats_.steps);
    EXPECT_GE(report.seconds, 0);
    for (const GenerationEvent& event : report.events) {
      Answer& answer = answers_[event.id];
      EXPECT_FALSE(answer.finish.has_value()) << "an event after the end";
      if (event.token) answer.ids.push_back(*event.token);
      tokens_ += event.token ? 1 : 0;
      if (!event.finish) continue;
      answer.finish = event.finish;
      if (event.finish == FinishReason::kError) errors_.push_back(event);
      ++ended_;
    }
    stats_ = report.stats;
    state_ = report.state;
    EXPECT_EQ(tokens_, stats_.generated_tokens);
    if (report.traffic) traffic_.push_back(*report.traffic);
    failed_ = report.failed;
    ++reports_;
    has_come_.notify_all();
    is_open_.wait(lock, [&] { return !is_held_; });
  }

  // Makes the loop's thread stay in its next report until let_go().
  void hold() {
    const std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void let_go() {
    {
      const std::lock_guard lock(mutex_);
      is_held_ = false;
    }
    is_open_.notify_all();
  }
  // Waits until `reports` steps have been reported.
  bool wait_for_reports(int reports) {
    std::unique_lock lock(mutex_);
    return has_come_.wait_for(lock, kLong, [&] { return reports_ >= reports; });
  }

  std::map<RequestId, Answer> answers() const { return locked(answers_); }
  std::vector<GenerationEvent> errors() const { return locked(errors_); }
  std::vector<EngineTraffic> traffic() const { return locked(traffic_); }
  EngineStats stats() const { return locked(stats_); }
  EngineState state() const { return locked(state_); }
  bool failed() const { return locked(failed_); }  // whether the last step failed
  int ended() const { return locked(ended_); }
  int reports() const { return locked(reports_); }

 private:
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  mutable std::mutex mutex_;
  std::condition_variable has_come_, is_open_;
  bool is_held_ = false;
  std::map<RequestId, Answer> answers_;
  std::vector<GenerationEvent> errors_;
  std::vector<EngineTraffic> traffic_;
  EngineStats stats_;
  EngineState state_;
  int64_t tokens_ = 0;
  bool failed_ = false;
  int ended_ = 0, reports_ = 0;
};

class EngineLoopTest : public testing::Test {
 protected:
  EngineLoopTest() { runtime_.device.ops().set_deterministic(true); }
  ~EngineLoopTest() override { disarm_faults(); }

  EngineLoop::Listener listener() {
    return [this](const StepReport& report) { recorder_.on_step(report); };
  }
  static GenerationRequest endless() { return make_request(8, 5, 600); }

  static std::unique_ptr<Device> make_device() {
    EmulatedAcceleratorOptions options;
    options.draws = true;
    return std::make_unique<EmulatedAccelerator>(options);
  }

  // A device whose steps can fail.
  TinyRuntime runtime_{make_device(), "llama", DType::kF32};
  KvCache kv_ = runtime_.make_kv(60);
  Decoder decoder_ = runtime_.make_decoder(64);
  Engine engine_{decoder_, kv_, nullptr, {.admission = {.max_sequences = 4}}};
  ReportRecorder recorder_;
};

TEST_F(EngineLoopTest, AnswersAreTheEngines) {
  std::map<RequestId, GenerationRequest> requests;
  {
    EngineLoop loop(engine_, listener());
    for (uint32_t n = 0; n < 9; ++n) {
      const GenerationRequest request =
          make_request(1 + static_cast<int>(n) * 7, n, 24, n % 2 == 0 ? 0.0F : 0.8F);
      const auto id = loop.try_submit(request);
      ASSERT_TRUE(id.has_value());
      requests[*id] = request;
    }
    ASSERT_TRUE(loop.wait_for(kLong));
    EXPECT_EQ(loop.outstanding(), 0);
    EXPECT_EQ(recorder_.ended(), 9) << "who waits has been told before";
  }
  const auto answers = recorder_.answers();
  ASSERT_EQ(answers.size(), requests.size());
  for (const auto& [id, request] : requests)
    EXPECT_EQ(answers.at(id), answer_alone(runtime_, request));
  const EngineState state = recorder_.state();
  EXPECT_EQ(state.running + state.waiting, 0);
  EXPECT_EQ(state.kv.at(0).free, state.kv.at(0).total);
}

TEST_F(EngineLoopTest, ManyThreadsSubmitAndCancelAtOnce) {
  constexpr uint32_t kThreads = 6, kEach = 15, kKinds = 5;
  std::vector<Answer> expected;
  const auto request = [](uint32_t kind) {
    return make_request(5 + static_cast<int>(kind) * 9, kind, 12, 0.8F);
  };
  for (uint32_t kind = 0; kind < kKinds; ++kind)
    expected.push_back(answer_alone(runtime_, request(kind)));
  std::mutex mutex;
  std::map<RequestId, uint32_t> kinds;
  std::map<RequestId, bool> cancelled;
  {
    EngineLoop loop(engine_, listener());
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint32_t n = 0; n < kEach; ++n) {
          const uint32_t kind = (thread + n) % kKinds;
          std::vector<GenerationRequest> some(1 + n % 2, request(kind));
          const auto ids = loop.try_submit(std::move(some));
          ASSERT_TRUE(ids.has_value());
          {
            const std::lock_guard lock(mutex);
            for (const RequestId id : *ids) kinds[id] = kind;
            if (n % 3 == 0) cancelled[ids->front()] = true;
          }
          if (n % 3 == 0) loop.cancel(ids->front());
          loop.cancel(RequestId{1'000'000 + n});  // an unknown id
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(loop.wait_for(kLong));
  }
  const auto answers = recorder_.answers();
  EXPECT_EQ(answers.size(), kinds.size());
  EXPECT_EQ(recorder_.ended(), static_cast<int>(kinds.size()));
  for (const auto& [id, kind] : kinds) {
    const Answer& answer = answers.at(id);
    if (answer.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(cancelled.contains(id));
      EXPECT_LT(answer.ids.size(), 12U);
    } else {
      EXPECT_EQ(answer, expected[kind]);
    }
  }
  EXPECT_EQ(recorder_.state().kv.at(0).free, recorder_.state().kv.at(0).total);
}

TEST_F(EngineLoopTest, TakesAsManyAsMayBeOutstandingAndNoMore) {
  EngineLoop loop(engine_, listener(), {.max_outstanding = 4});
  recorder_.hold();
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    const auto id = loop.try_submit(endless());
    ASSERT_TRUE(id.has_value());
    ids.push_back(*id);
  }
  EXPECT_EQ(loop.outstanding(), 3);
  std::vector<GenerationRequest> one_is_bad = {make_request(4, 1)};
  one_is_bad[0].prompt.clear();
  EXPECT_THROW((void)loop.try_submit(one_is_bad), Error);
  EXPECT_EQ(loop.outstanding(), 3);
  const auto fourth = loop.try_submit(endless());
  ASSERT_TRUE(fourth.has_value());
  EXPECT_FALSE(loop.try_submit(endless()).has_value());
  EXPECT_FALSE(loop.try_submit(std::vector(2, endless())).has_value()) << "all or none";
  recorder_.let_go();
  loop.cancel(ids[1]);
  while (loop.outstanding() == 4) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_EQ(loop.outstanding(), 3);
  EXPECT_TRUE(loop.try_submit(make_request(4, 1, 2)).has_value()) << "there is room again";
  loop.cancel(ids);
  loop.cancel(*fourth);
  EXPECT_TRUE(loop.wait_for(kLong));
}

// The members get places as these become free, and each is answered as if it were alone.
TEST_F(EngineLoopTest, ARequestMayHaveMoreMembersThanThereArePlaces) {
  std::vector<GenerationRequest> requests;
  for (uint32_t n = 0; n < 15; ++n)
    requests.push_back(make_request(3 + static_cast<int>(n), n, 6, 0.8F));
  std::optional<std::vector<RequestId>> ids;
  {
    EngineLoop loop(engine_, listener(), {.max_outstanding = 6});
    recorder_.hold();
    ids = loop.try_submit(requests);
    ASSERT_TRUE(ids.has_value());
    EXPECT_EQ(loop.outstanding(), 15);
    ASSERT_TRUE(recorder_.wait_for_reports(1));
    EXPECT_LE(recorder_.state().running + recorder_.state().waiting, 3) << "half of the places";
    EXPECT_TRUE(loop.try_submit(make_request(4, 1, 2)).has_value()) << "others get in beside it";
    loop.drain();
    recorder_.let_go();
    ASSERT_TRUE(loop.wait_for(kLong));
  }
  const auto answers = recorder_.answers();
  EXPECT_EQ(answers.size(), 16U);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(answers.at(ids->at(i)), answer_alone(runtime_, requests[i]));
}

TEST_F(EngineLoopTest, MembersWithoutAPlaceAreCancelledLikeOthers) {
  for (const bool loop_ends : {false, true}) {
    KvCache kv = runtime_.make_kv(60);
    Engine engine(decoder_, kv, nullptr, {.admission = {.max_sequences = 2}});
    ReportRecorder recorder;
    std::optional<std::vector<RequestId>> ids;
    {
      EngineLoop loop(engine, [&](const StepReport& report) { recorder.on_step(report); },
                      {.max_outstanding = 4});
      ids = loop.try_submit(std::vector(9, endless()));
      ASSERT_TRUE(ids.has_value());
      ASSERT_TRUE(recorder.wait_for_reports(2));
      if (!loop_ends) {
        loop.cancel(*ids);
        ASSERT_TRUE(loop.wait_for(kLong));
      }
    }
    EXPECT_EQ(recorder.ended(), 9);
    for (const RequestId id : *ids)
      EXPECT_EQ(recorder.answers().at(id).finish, FinishReason::kCancelled);
    EXPECT_FALSE(engine.has_requests());
  }
}

TEST_F(EngineLoopTest, TheFullestClientsNewestRequestMakesRoomForAnotherClient) {
  const auto of_client = [](uint64_t client, GenerationRequest request) {
    request.client = client;
    return request;
  };
  std::map<RequestId, GenerationRequest> kept;
  std::vector<RequestId> displaced;
  std::mutex mutex;
  {
    EngineLoop loop(engine_,
                    [&](const StepReport& report) {
                      {
                        const std::lock_guard lock(mutex);
                        for (const GenerationEvent& event : report.events)
                          if (event.displaced) displaced.push_back(event.id);
                      }
                      recorder_.on_step(report);
                    },
                    {.max_outstanding = 8});
    recorder_.hold();
    std::vector<RequestId> ids;
    for (uint32_t n = 0; n < 8; ++n) {
      const GenerationRequest request = of_client(1, make_request(5 + static_cast<int>(n), n, 20));
      const auto id = loop.try_submit(request);
      ASSERT_TRUE(id.has_value());
      ids.push_back(*id);
      kept[*id] = request;
    }
    ASSERT_TRUE(recorder_.wait_for_reports(1));
    EXPECT_FALSE(loop.try_submit(of_client(1, endless())).has_value());
    for (uint32_t n = 0; n < 4; ++n) {
      const GenerationRequest request = of_client(2, make_request(9, 20 + n, 20, 0.8F));
      const auto id = loop.try_submit(request);
      ASSERT_TRUE(id.has_value()) << n;
      kept[*id] = request;
    }
    EXPECT_FALSE(loop.try_submit(of_client(2, endless())).has_value()) << "four and four";
    recorder_.let_go();
    ASSERT_TRUE(loop.wait_for(kLong));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(displaced, (std::vector<RequestId>{ids[7], ids[6], ids[5], ids[4]}));
    for (const RequestId id : displaced) kept.erase(id);
  }
  const auto answers = recorder_.answers();
  for (const auto& [id, request] : kept) EXPECT_EQ(answers.at(id), answer_alone(runtime_, request));
  for (const RequestId id : displaced) {
    EXPECT_EQ(answers.at(id).finish, FinishReason::kCancelled);
    EXPECT_TRUE(answers.at(id).ids.empty());
  }
  EXPECT_EQ(recorder_.state().kv.at(0).free, recorder_.state().kv.at(0).total);
}

TEST_F(EngineLoopTest, WhatWasTakenBeforeADrainGoesOnToItsEnd) {
  EngineLoop loop(engine_, listener());
  for (uint32_t n = 0; n < 6; ++n)
    ASSERT_TRUE(loop.try_submit(make_request(20, n, 30)).has_value());
  EXPECT_FALSE(loop.is_draining());
  loop.drain();
  EXPECT_TRUE(loop.is_draining());
  EXPECT_FALSE(loop.try_submit(make_request(4, 1)).has_value());
  ASSERT_TRUE(loop.wait_for(kLong));
  for (const auto& [id, answer] : recorder_.answers()) {
    EXPECT_EQ(answer.finish, FinishReason::kLength);
    EXPECT_EQ(answer.ids.size(), 30U);
  }
  EXPECT_EQ(recorder_.ended(), 6);
}

TEST_F(EngineLoopTest, WaitsNoLongerThanItIsTold) {
  EngineLoop loop(engine_, listener());
  EXPECT_TRUE(loop.wait_for(milliseconds(0))) << "there is nothing to wait for";
  recorder_.hold();
  ASSERT_TRUE(loop.try_submit(make_request(4, 1, 1)).has_value());
  ASSERT_TRUE(recorder_.wait_for_reports(1));
  EXPECT_FALSE(loop.wait_for(milliseconds(5))) << "it has ended, but the listener is not done";
  EXPECT_EQ(loop.outstanding(), 1);
  recorder_.let_go();
  EXPECT_TRUE(loop.wait_for(kLong));
}

TEST_F(EngineLoopTest, WhatIsNotFinishedWhenTheLoopEndsIsCancelled) {
  for (const int reports : {0, 1, 7}) {
    KvCache kv = runtime_.make_kv(60);
    Engine engine(decoder_, kv, nullptr, {.admission = {.max_sequences = 2}});
    ReportRecorder recorder;
    std::atomic<bool> is_gone = false;
    std::optional<std::vector<RequestId>> ids;
    {
      EngineLoop loop(engine, [&](const StepReport& report) {
        EXPECT_FALSE(is_gone);
        recorder.on_step(report);
      });
      ids = loop.try_submit(std::vector(3, endless()));
      ASSERT_TRUE(ids.has_value());
      ASSERT_TRUE(recorder.wait_for_reports(reports));
    }
    is_gone = true;
    EXPECT_EQ(recorder.ended(), 3);
    for (const RequestId id : *ids)
      EXPECT_EQ(recorder.answers().at(id).finish, FinishReason::kCancelled);
    EXPECT_FALSE(engine.has_requests());
    EXPECT_EQ(recorder.state().kv.at(0).free, recorder.state().kv.at(0).total);
    // Nothing of the first loop is left: another loop continues with the engine.
    const GenerationRequest request = make_request(10, 3, 8);
    Answer answer;
    {
      EngineLoop next(engine, [&](const StepReport& report) {
        for (const GenerationEvent& event : report.events) {
          if (event.token) answer.ids.push_back(*event.token);
          if (event.finish) answer.finish = event.finish;
        }
      });
      ASSERT_TRUE(next.try_submit(request).has_value());
      ASSERT_TRUE(next.wait_for(kLong));
    }
    EXPECT_EQ(answer, answer_alone(runtime_, request));
  }
}

TEST_F(EngineLoopTest, WhereTheDeviceCannotBeUsedRequestsAreToldWhy) {
  arm_fault("thread.device", 1, FaultKind::kEio);
  EngineLoop loop(engine_, listener());
  for (int round = 1; round <= 2; ++round) {
    ASSERT_TRUE(loop.try_submit(std::vector(3, endless())).has_value());
    ASSERT_TRUE(loop.wait_for(kLong));
    const std::vector<GenerationEvent> errors = recorder_.errors();
    ASSERT_EQ(errors.size(), 3U * static_cast<size_t>(round));
    EXPECT_EQ(errors.back().error_code, ErrorCode::kDevice);
    EXPECT_TRUE(errors.back().step_failed);
  }
  EXPECT_TRUE(recorder_.failed());
}

TEST_F(EngineLoopTest, AListenerMaySubmitAndCancel) {
  std::atomic<EngineLoop*> itself = nullptr;
  std::atomic<int> sent = 0;
  EngineLoop loop(engine_, [&](const StepReport& report) {
    recorder_.on_step(report);
    for (const GenerationEvent& event : report.events) {
      EngineLoop& of = *itself;
      if (event.token && !event.finish) of.cancel(event.id);
      if (!event.finish || ++sent > 5) continue;
      EXPECT_TRUE(of.try_submit(endless()).has_value());
    }
  });
  itself = &loop;
  ASSERT_TRUE(loop.try_submit(endless()).has_value());
  while (sent < 6) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_TRUE(loop.wait_for(kLong));
  for (const auto& [id, answer] : recorder_.answers()) {
    EXPECT_EQ(answer.finish, FinishReason::kCancelled);
    EXPECT_EQ(answer.ids.size(), 1U) << "before the next step";
  }
}

// Requests that were being computed end with the reason; waiting requests are computed later.
TEST_F(EngineLoopTest, AStepThatFailsEndsThoseThatHadBegun) {
  for (const char* const point : {"step.device", "draw.device"}) {
    SCOPED_TRACE(point);
    KvCache kv = runtime_.make_kv(60);
    Engine engine(decoder_, kv, nullptr, {.admission = {.max_sequences = 2}});
    ReportRecorder recorder;
    std::vector<GenerationRequest> requests;
    for (uint32_t n = 0; n < 5; ++n) requests.push_back(make_request(10, n, 8, 0.8F));
    std::optional<std::vector<RequestId>> ids;
    arm_fault(point, 3, FaultKind::kEio);
    {
      EngineLoop loop(engine, [&](const StepReport& report) { recorder.on_step(report); });
      ids = loop.try_submit(requests);
      ASSERT_TRUE(loop.wait_for(kLong));
    }
    disarm_faults();
    ASSERT_TRUE(ids.has_value());
    const auto answers = recorder.answers();
    const std::vector<GenerationEvent> errors = recorder.errors();
    ASSERT_EQ(errors.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(errors[i].id, ids->at(i));
      EXPECT_EQ(errors[i].error_code, ErrorCode::kDevice);
      EXPECT_TRUE(errors[i].step_failed);
      EXPECT_FALSE(errors[i].error.empty());
      EXPECT_EQ(answers.at(ids->at(i)).ids.size(), 2U) << "what was told before stays";
    }
    for (size_t i = 2; i < 5; ++i)
      EXPECT_EQ(answers.at(ids->at(i)), answer_alone(runtime_, requests[i]));
    EXPECT_EQ(recorder.state().kv.at(0).free, recorder.state().kv.at(0).total);
  }
}

TEST_F(EngineLoopTest, ReportsTrafficAboutOnceASecondWhereItIsAsked) {
  for (const bool reports : {false, true}) {
    KvCache kv = runtime_.make_kv(60);
    Engine engine(decoder_, kv, nullptr, {});
    ReportRecorder recorder;
    EngineLoop loop(engine, [&](const StepReport& report) { recorder.on_step(report); },
                    {.reports_traffic = reports});
    const auto end = std::chrono::steady_clock::now() + (reports ? kLong : milliseconds(1500));
    while (recorder.traffic().empty() && std::chrono::steady_clock::now() < end) {
      ASSERT_TRUE(loop.try_submit(endless()).has_value());
      ASSERT_TRUE(loop.wait_for(kLong));
    }
    ASSERT_EQ(recorder.traffic().size(), reports ? 1U : 0U);
    if (reports) {
      EXPECT_GE(recorder.traffic()[0].seconds, 1);
      EXPECT_GE(recorder.traffic()[0].stalled_s, 0);
    }
  }
}

TEST_F(EngineLoopTest, AClientTakesEventsInOrder) {
  std::vector<GenerationRequest> requests;
  for (uint32_t n = 0; n < 3; ++n) requests.push_back(make_request(10 + static_cast<int>(n), n));
  std::map<RequestId, Answer> answers;
  std::vector<RequestId> ids;
  RequestId cancelled{};
  {
    EngineClient client(engine_);
    EXPECT_TRUE(client.take(milliseconds(1)).empty());
    EXPECT_THROW(client.submit(GenerationRequest{}), Error);
    EXPECT_EQ(client.outstanding(), 0);
    ids = client.submit(requests);
    cancelled = client.submit(endless());
    int64_t tokens = 0;
    bool asked = false;
    for (size_t ended = 0; ended < 4;) {
      for (const GenerationEvent& event : client.take()) {
        if (event.token) answers[event.id].ids.push_back(*event.token);
        tokens += event.token ? 1 : 0;
        if (event.finish) answers[event.id].finish = event.finish;
        ended += event.finish ? 1 : 0;
        if (event.id == cancelled && !std::exchange(asked, true)) client.cancel(cancelled);
      }
      EXPECT_EQ(client.stats().generated_tokens, tokens) << "as of what was taken";
    }
    while (client.outstanding() > 0) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(client.max_sequence_tokens(), engine_.max_sequence_tokens());
  }
  EXPECT_EQ(answers.at(cancelled).finish, FinishReason::kCancelled);
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(answers.at(ids[i]), answer_alone(runtime_, requests[i]));
}

}  // namespace
}  // namespace spillway::testing_models
