// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "engine/engine.h"
#include "tests/test_devices.h"

namespace spillway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Records what a program shows of a session.
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
  session.report_plan();
  EXPECT_THAT(notices_, IsEmpty()) << "everything fits";
  session.load();
  EXPECT_THAT(titles_, ElementsAre("loading dummy:smollm2-135m:q4_0"));
  EXPECT_GT(loaded_bytes_, 0U);
  Runner runner = session.make_runner(32);
  EXPECT_EQ(runner.decoder.spec().layer_count(), 30);
}

TEST_F(SessionTest, TellsWhatIsNotOnTheDevice) {
  options_.device = "emulated";
  options_.placement.weights = "0,100,0";
  Session session(options_, services_);
  EXPECT_THAT(devices_.asked, ElementsAre("emulated", "cpu"));
  session.choose_plan({.tokens = 32});
  EXPECT_FALSE(session.plan().all_on_device());
  session.report_plan();
  EXPECT_THAT(notices_, ElementsAre(StartsWith("plan: weights 0/100/0%")));
}

TEST_F(SessionTest, NeedsNoProgressDisplay) {
  options_.device = "emulated";
  options_.placement.weights = "0,100,0";
  Session session(options_, {.devices = devices_});
  session.load({.tokens = 32});
  session.report_plan();
  EXPECT_THAT(session.describe_plan(), HasSubstr("tokens/s"));
  EXPECT_GT(session.load_seconds, 0);
}

// Host memory taken by others, such as a predictor's encoder, counts within --host-memory.
TEST_F(SessionTest, WhatOthersHaveOfHostMemoryIsNotPlannedWith) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  options_.device = "cpu";
  options_.placement.host_memory = "200MiB";
  Session session(options_, services_);
  ExpectedRun run{.tokens = 1024, .sequences = 32, .least_sequences = 1};
  session.choose_plan(run);
  const auto planned = [&] { return session.plan().sequences.value_or(1); };
  const auto needed = [&] {
    const Footprint needs = session.resolved_for(1024, planned()).needs;
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
  EXPECT_THAT(refused,
              HasSubstr("there are only 10.0 MiB beside 190 MiB for requests and predicting"));
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
  const auto stores = session.make_kv_stores(runner.kv, 64);
  ASSERT_FALSE(stores.empty());
  EXPECT_LE(session.host().usage().total(), 100 * kMiB);
}

// 32 sequences of 1024 tokens are 720 MiB of KV, and there is room for some of them.
class SharedKvTest : public SessionTest {
 protected:
  SharedKvTest() {
    options_.device = "emulated";
    options_.gpu_memory = "700MiB";
  }
  ExpectedRun run_ = {.tokens = 1024,
                      .sequences = 32,
                      .prompt = 40,
                      .requests = 100,
                      .answers = {20, 50, 60, 110},
                      .max_concurrent = 32,
                      .least_sequences = 1};
};

TEST_F(SharedKvTest, SequencesThatStayShortShareWhatIsOnTheDevice) {
  Session session(options_, services_);
  session.load(run_);
  EXPECT_TRUE(session.plan().all_on_device());
  const int planned = session.plan().sequences.value_or(1);
  EXPECT_GE(planned, 4) << "100 tokens of each of 32";
  EXPECT_LT(planned, 32);
  EXPECT_EQ(session.resolved().max_concurrent.over_commit, 32);
  EXPECT_EQ(session.resolved().max_concurrent.full_reservation, planned);
  const Runner runner = session.make_runner(1024, planned);
  EXPECT_GE(runner.kv.device_blocks(), 4 * 64) << "also one that is as long as it may be has room";
  EXPECT_EQ(runner.kv.host_blocks() + runner.kv.disk_blocks(), 0);
}

TEST_F(SharedKvTest, OtherwiseThereIsRoomForAllOfEach) {
  const auto is_shared = [&] {
    Session session(options_, services_);
    session.choose_plan(run_);
    return session.plan().all_on_device() && session.plan().sequences < 32;
  };
  ASSERT_TRUE(is_shared());
  const ExpectedRun usual = run_;
  run_.max_concurrent = 0;
  EXPECT_FALSE(is_shared()) << "they may not wait for each other";
  run_ = usual;
  run_.answers = {900, 900, 900, 984};
  EXPECT_FALSE(is_shared()) << "no sequence stays short";
  run_ = usual;
  options_.placement.kv = "0,100,0";
  EXPECT_FALSE(is_shared()) << "the placement was requested";
}

// Before the first answer no lengths are known: the plan has room for full contexts, partly in host
// memory, and sequences that stay short all run concurrently.
TEST_F(SharedKvTest, WhatAPlanHasElsewhereIsSharedAsWell) {
  options_.gpu_memory = "400MiB";
  options_.placement.host_memory = "400MiB";
  run_.answers.clear();
  const auto planned_of = [](const Session& session) {
    return session.plan().sequences.value_or(1);
  };
  {
    Session session(options_, services_);
    session.load(run_);
    EXPECT_LT(planned_of(session), 32);
    EXPECT_EQ(session.resolved().max_concurrent.over_commit, 32);
    EXPECT_EQ(session.resolved().max_concurrent.full_reservation, planned_of(session));
    const Runner runner = session.make_runner(1024, planned_of(session));
    EXPECT_GT(runner.kv.host_blocks(), 0);
    EXPECT_GE(runner.decoder.max_tokens(), 32);
    EXPECT_LE(session.host().usage().total(), uint64_t{400} << 20);
  }
  // A resumed job runs as many requests concurrently as it began with, even if more are requested.
  {
    Session begun(options_, services_);
    begun.choose_plan(run_);
    EXPECT_EQ(begun.plan().max_concurrent, 32);
    SessionOptions again = options_;
    again.placement.kept = begun.plan();
    ExpectedRun run = run_;
    run.sequences = planned_of(begun);
    run.max_concurrent = 256;
    Session session(again, services_);
    session.choose_plan(run);
    EXPECT_EQ(session.resolved().max_concurrent.over_commit, 32);
    EXPECT_EQ(session.settings, begun.settings);
    run.max_concurrent = (planned_of(begun) + 32) / 2;
    session.choose_plan(run);
    EXPECT_EQ(session.resolved().max_concurrent.over_commit, run.max_concurrent)
        << "fewer were requested";
    EXPECT_EQ(session.settings, begun.settings);
  }
  options_.placement.schedule = "zigzag";
  {
    Session blocks(options_, services_);
    blocks.choose_plan(run_);
    EXPECT_FALSE(blocks.plan().max_concurrent) << "they do not wait for room";
  }
  options_.placement.schedule.clear();
  run_.max_concurrent = 0;
  Session whole(options_, services_);
  whole.choose_plan(run_);
  EXPECT_EQ(whole.resolved().max_concurrent.over_commit, planned_of(whole));
}

// With --kv-expansion auto, layers are also swapped if some KV is in host memory by plan: the GPU's
// part grows, and the CPU computes attention over the rest.
TEST_F(SharedKvTest, LayersAreSwappedBesideKvInHostMemory) {
  options_.placement.kv_expansion = "auto";
  options_.placement.kv = "60,40,0";
  Session session(options_, services_);
  session.load(run_);
  const int planned = session.plan().sequences.value_or(1);
  EXPECT_GT(session.resolved_for(1024, planned).size.most_swapped, 0);
  const Runner runner = session.make_runner(1024, planned);
  EXPECT_GT(runner.kv.host_blocks(), 0);
  EXPECT_GT(runner.kv.layers().sizes().most_blocks(), runner.kv.device_blocks());
}

// Runs requests whose answers have 28 tokens although 2 were predicted.
class ExceededPredictionTest : public SharedKvTest {
 protected:
  static constexpr int kRequests = 6;
  using Answers = std::vector<std::vector<TokenId>>;

  ExceededPredictionTest() {
    options_.deterministic = true;
    options_.compute.chunk = 64;
    run_ = {.tokens = 32,
            .sequences = kRequests,
            .prompt = 4,
            .requests = kRequests,
            .answers = {2, 2, 2, 2},
            .max_concurrent = kRequests,
            .least_sequences = 1};
  }
  struct Result {
    Answers answers = Answers(kRequests);
    int64_t preemptions = 0;
  };
  // Runs all requests concurrently, in KV memory for `whole` full contexts.
  static Result run_all(Session& session, int64_t whole) {
    Runner runner = session.make_runner(32, whole);
    const auto concurrent =
        with_rows(runner.decoder, whole, session.resolved().max_concurrent.over_commit);
    EXPECT_EQ(concurrent, kRequests);
    Engine engine(runner.decoder, runner.kv, /*tokenizer=*/nullptr,
                  {.admission = {.max_sequences = concurrent},
                   .scheduling = {.order = OrderKind::kFirstCome, .packs_predicted = true},
                   .max_sequence_tokens = 32});
    std::map<RequestId, size_t> numbers;
    for (int i = 0; i < kRequests; ++i) {
      GenerationRequest request;
      request.prompt = {1, 2 + i, 3, 4};
      request.max_tokens = 28;
      request.ignore_end = true;
      request.prediction = {.tokens = 2};
      numbers[engine.submit(std::move(request))] = static_cast<size_t>(i);
    }
    Result result;
    int most_running = 0;
    while (engine.step([&](const GenerationEvent& event) {
      EXPECT_EQ(event.error, "");
      if (event.token) result.answers[numbers.at(event.id)].push_back(*event.token);
    })) {
      most_running = std::max(most_running, engine.state().running);
    }
    EXPECT_GT(most_running, std::min<int64_t>(whole, kRequests - 1));
    result.preemptions = engine.stats().preemptions;
    return result;
  }
};

// All six together need three times the room that there is.
TEST_F(ExceededPredictionTest, LongerAnswersThanPredictedEndAsTheyWould) {
  uint64_t least = 0;  // bytes, of two whole contexts
  Answers alone;
  {
    options_.gpu_memory = "1GiB";
    Session session(options_, services_);
    session.load(run_);
    const Result result = run_all(session, session.plan().sequences.value_or(1));
    EXPECT_EQ(result.preemptions, 0);
    alone = result.answers;
    const Footprint needs = session.resolved_for(32, 2).needs;
    least = needs.device.total() - needs.device.of(MemoryTag::kWorkspace) + needs.workspace;
  }
  ASSERT_EQ(alone[0].size(), 28U);
  options_.gpu_memory = std::to_string(least);
  Session session(options_, services_);
  session.load(run_);
  EXPECT_TRUE(session.plan().all_on_device());
  EXPECT_EQ(session.plan().sequences, 2);
  const Result result = run_all(session, 2);
  EXPECT_GT(result.preemptions, 0);
  EXPECT_EQ(result.answers, alone);
}

// The same holds for KV in host memory, whether the CPU computes attention or the GPU does with
// staging.
TEST_F(ExceededPredictionTest, SoDoThoseInHostMemory) {
  options_.gpu_memory = "1GiB";
  options_.placement.kv = "0,100,0";
  for (const char* const attention : {"cpu", "gpu"}) {
    SCOPED_TRACE(attention);
    options_.placement.attention = attention;
    Session session(options_, services_);
    session.load(run_);
    const Result whole = run_all(session, kRequests);
    EXPECT_EQ(whole.preemptions, 0);
    const Result shared = run_all(session, 2);
    EXPECT_GT(shared.preemptions, 0);
    EXPECT_EQ(shared.answers, whole.answers);
  }
  // A resumed job with the same options plans the same.
  Session begun(options_, services_);
  begun.choose_plan(run_);
  ASSERT_EQ(begun.plan().max_concurrent, kRequests);
  options_.placement.kept = begun.plan();
  Session again(options_, services_);
  again.choose_plan(run_);
  EXPECT_EQ(again.plan().max_concurrent, kRequests);
}

// Some sequences have KV on the device, others in host memory: one that exceeds one memory is
// computed again in the other.
TEST_F(ExceededPredictionTest, SoDoThoseInBothMemories) {
  options_.gpu_memory = "1GiB";
  options_.placement.kv = "50,50,0";
  options_.placement.attention = "cpu";
  Session session(options_, services_);
  session.load(run_);
  const Result whole = run_all(session, kRequests), shared = run_all(session, 2);
  EXPECT_GT(shared.preemptions, 0);
  EXPECT_EQ(shared.answers, whole.answers);
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
