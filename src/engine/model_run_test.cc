// SPDX-License-Identifier: Apache-2.0
#include "engine/model_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "schedule/admission.h"
#include "tests/test_devices.h"

namespace spillway {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// Runs the RunOrders of the commands on an emulated accelerator beside the host.
class ModelRunTest : public testing::Test {
 protected:
  ModelRunTest() {
    options_.model = "dummy:smollm2-135m:q4_0";
    options_.device = "emulated";
    options_.tuning.off = true;
  }
  std::unique_ptr<Session> load(const ExpectedRun& run) {
    auto session = std::make_unique<Session>(options_, SessionServices{.devices = devices_});
    session->load(run);
    return session;
  }
  static int planned(const Session& session) { return session.plan().sequences.value_or(1); }

  TestDevices devices_;
  SessionOptions options_;
};

// 32 sequences of 1024 tokens are 720 MiB of KV, and there is room for some of them.
class SharedRunTest : public ModelRunTest {
 protected:
  SharedRunTest() { options_.gpu_memory = "700MiB"; }

  ExpectedRun run_ = {.tokens = 1024,
                      .sequences = 32,
                      .prompt = 40,
                      .requests = 100,
                      .answers = {20, 50, 60, 110},
                      .max_concurrent = 32,
                      .least_sequences = 1};
  RunOrder serve_ = {.admission = RunOrder::Admission::kContinuous,
                     .reuse = RunOrder::Reuse::kAlways,
                     .store = Session::KvStoreHost::kWhereDiscrete,
                     .fits_fewer = true,
                     .may_wait = true,
                     .usual = {{.prompt = 512, .generated = 256}}};
  RunOrder batch_ = {.admission = RunOrder::Admission::kByPlan,
                     .reuse = RunOrder::Reuse::kWithStore,
                     .fits_fewer = true,
                     .may_wait = true,
                     .keeps_preempted = true};
};

TEST_F(ModelRunTest, OneSequenceReusesKvIfAStoreIsAskedFor) {
  const RunOrder order{.reuse = RunOrder::Reuse::kWithStore,
                       .drafts = {.kind = DraftKind::kLookup}};
  {
    const auto session = load({.tokens = 64});
    const ModelRun run(*session, order, 64);
    EXPECT_FALSE(run.options.reuse_prefixes);
    EXPECT_TRUE(run.options.store.empty());
    EXPECT_EQ(run.options.kv_salt, "");
    EXPECT_EQ(run.options.max_sequence_tokens, 64);
    EXPECT_EQ(run.options.max_prompt_tokens, 0);
    EXPECT_EQ(run.options.admission.max_sequences, AdmissionPolicy().max_sequences);
    EXPECT_EQ(run.options.drafts.kind, DraftKind::kLookup);
    EXPECT_FALSE(run.options.adapts_swapped_layers);
    EXPECT_FALSE(run.estimate.has_value());
  }
  options_.kv_store.host_size = "64MiB";
  const auto session = load({.tokens = 64});
  const ModelRun run(*session, order, 64);
  EXPECT_TRUE(run.options.reuse_prefixes);
  EXPECT_FALSE(run.options.store.empty());
  EXPECT_EQ(run.options.kv_salt, session->kv_salt());
}

TEST_F(ModelRunTest, AChatReusesKvWithoutAStore) {
  const auto session = load({.tokens = 64});
  const ModelRun run(*session, {.reuse = RunOrder::Reuse::kAlways}, 64);
  EXPECT_TRUE(run.options.reuse_prefixes);
  EXPECT_TRUE(run.options.store.empty());
  EXPECT_EQ(run.options.kv_salt, session->kv_salt());
}

TEST_F(ModelRunTest, TheEngineIsMadeOnce) {
  const auto session = load({.tokens = 64});
  ModelRun run(*session, {.with_text = false}, 64);
  Engine& engine = run.engine();
  EXPECT_EQ(&run.engine(), &engine);
  EXPECT_EQ(engine.max_sequence_tokens(), 64);
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 2;
  request.ignore_end = true;
  engine.submit(std::move(request));
  std::vector<TokenId> answer;
  while (engine.step([&](const GenerationEvent& event) {
    if (event.token) answer.push_back(*event.token);
    EXPECT_EQ(event.text, "");
  })) {
  }
  EXPECT_EQ(answer.size(), 2u);
}

TEST_F(ModelRunTest, ABenchmarkHasWholeBlocksAndNoStore) {
  options_.kv_store.host_size = "64MiB";
  const auto session = load({.tokens = 64, .sequences = 4});
  ASSERT_EQ(session->plan().schedule, ScheduleKind::kContinuous);
  const ModelRun run(*session, {.admission = RunOrder::Admission::kWholeBlocks}, 64, 4);
  EXPECT_EQ(run.options.admission.max_sequences, 4);
  EXPECT_TRUE(run.options.admission.admit_in_blocks);
  EXPECT_TRUE(run.options.admission.prompts_first);
  EXPECT_FALSE(run.options.reuse_prefixes);
  EXPECT_TRUE(run.options.store.empty());
  EXPECT_GE(run.runner.kv.device_blocks(), 4 * 4);
}

TEST_F(ModelRunTest, AnswersThatAreKnownSayHowManyRequestsAStepAdmits) {
  options_.placement.schedule = "diagonal";
  const auto session = load({.tokens = 64, .sequences = 8});
  const RunOrder order{.admission = RunOrder::Admission::kByPlan, .mean_answer = 4};
  const ModelRun known(*session, order, 64, 8);
  EXPECT_EQ(known.options.admission.max_sequences, 8);
  EXPECT_EQ(known.options.admission.max_admissions, 2);
  EXPECT_FALSE(known.options.admission.stagger);
}

TEST_F(SharedRunTest, AServerAdmitsMoreThanHaveRoomAtFullLength) {
  const auto session = load(run_);
  ASSERT_LT(planned(*session), 32);
  const ModelRun run(*session, serve_, session->planned_tokens(), planned(*session));
  EXPECT_EQ(run.options.admission.max_sequences, 32);
  EXPECT_FALSE(run.options.admission.admit_in_blocks);
  EXPECT_TRUE(run.options.reuse_prefixes);
  EXPECT_FALSE(run.options.store.empty());
  EXPECT_EQ(run.options.kv_salt, session->kv_salt());
  ASSERT_TRUE(run.estimate.has_value());
  EXPECT_GT(run.options.max_prompt_tokens, 0);
  EXPECT_EQ(run.options.max_prompt_tokens, run.estimate->prompt_tokens);
  EXPECT_EQ(run.options.adapts_swapped_layers, session->resolved().expansion.adapts());

  serve_.may_wait = false;
  const ModelRun whole(*session, serve_, session->planned_tokens(), planned(*session));
  EXPECT_EQ(whole.options.admission.max_sequences, planned(*session));
}

TEST_F(SharedRunTest, AServerHasNoBlocksOfRequests) {
  options_.placement.schedule = "zigzag";
  const auto session = load(run_);
  const ModelRun run(*session, serve_, session->planned_tokens(), planned(*session));
  EXPECT_FALSE(run.options.admission.admit_in_blocks);
  batch_.keeps_preempted = false;
  const ModelRun job(*session, batch_, 1024, planned(*session));
  EXPECT_TRUE(job.options.admission.admit_in_blocks) << "a job's requests are there from the start";
  EXPECT_EQ(job.options.admission.max_sequences, planned(*session)) << "none waits for room";
}

TEST_F(SharedRunTest, AJobKeepsThePreemptedWhereItMay) {
  const auto session = load(run_);
  const int room = planned(*session);
  ASSERT_LT(room, 32);
  {
    const ModelRun job(*session, batch_, 1024, room);
    EXPECT_EQ(job.options.admission.max_sequences, 32);
    EXPECT_TRUE(job.options.reuse_prefixes);
    EXPECT_FALSE(job.options.store.empty());
    EXPECT_THAT(job.options.kv_salt, Not(IsEmpty()));
  }
  batch_.keeps_preempted = false;
  const ModelRun job(*session, batch_, 1024, room);
  EXPECT_EQ(job.options.admission.max_sequences, 32);
  EXPECT_FALSE(job.options.reuse_prefixes);
  EXPECT_TRUE(job.options.store.empty());
  EXPECT_EQ(job.options.kv_salt, "");
}

// With sparse attention, recomputing a sequence after a preemption gives other results.
TEST_F(SharedRunTest, SequencesThatMustNotBePreemptedHaveRoomAtFullLength) {
  options_.compute.attention_topk = 0.5;
  options_.deterministic = true;
  const auto session = load(run_);
  const ModelRun run(*session, serve_, session->planned_tokens(), planned(*session));
  EXPECT_FALSE(run.options.adapts_swapped_layers);
  EXPECT_EQ(run.options.admission.max_sequences,
            session->resolved().max_concurrent.full_reservation);
}

}  // namespace
}  // namespace spillway
