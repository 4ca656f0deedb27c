// SPDX-License-Identifier: Apache-2.0
// An engine that keeps KV in host memory and on disk gives the same tokens, and computes KV once.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "kv/kv_store.h"
#include "storage/async_io.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

struct Machine {
  const char* name;
  bool has_accelerator;
};

class KvStoreEngineTest : public testing::TestWithParam<Machine> {
 protected:
  KvStoreEngineTest()
      : runtime_(make_device(), "llama", DType::kF32),
        folder_(std::filesystem::temp_directory_path()) {
    runtime_.device.ops().set_deterministic(true);
  }
  ~KvStoreEngineTest() override { disarm_faults(); }

  static std::unique_ptr<Device> make_device() {
    if (!GetParam().has_accelerator)
      return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 300;
    options.draws = true;
    return std::make_unique<EmulatedAccelerator>(options);
  }
  Device& host() { return GetParam().has_accelerator ? host_ : runtime_.device; }

  std::unique_ptr<KvStore> make_store(const KvCache& kv, int32_t slots, bool lasts,
                                      const KvCosts& costs = {}) {
    std::unique_ptr<BlockFolder> folder;
    if (lasts) {
      folder = BlockFolder::try_open(queue_,
                                     {.dir = folder_.path(),
                                      .block_bytes = static_cast<size_t>(kv.shape().block_bytes()),
                                      .salt = "tiny",
                                      .budget_bytes = 1 << 26});
    }
    return std::make_unique<KvStore>(kv, *runtime_.transfers, host(),
                                     KvStore::Options{.slots = slots, .costs = costs},
                                     std::move(folder));
  }

  struct Run {
    std::map<RequestId, Answer> answers;
    EngineStats stats;
  };
  // Runs the requests as one process does: with the pool of `kv`, and a store or none.
  Run run(const std::vector<GenerationRequest>& requests, KvStore* store, KvCache& kv,
          int max_sequences = 8, bool together = true) {
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(
        decoder, kv, nullptr,
        {.admission = {.max_sequences = max_sequences}, .reuse_prefixes = true, .store = store});
    Run run;
    for (const GenerationRequest& request : requests) {
      engine.submit(request);
      if (!together) run.answers.merge(run_all(engine));
    }
    if (together) run.answers = run_all(engine);
    run.stats = engine.stats();
    for (const EngineState::Pool& pool : engine.state().kv) EXPECT_EQ(pool.free, pool.total);
    return run;
  }

  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  TinyRuntime runtime_;
  ScopedFolder folder_;
  IoQueue queue_;
};

std::vector<GenerationRequest> different_requests(int count, int prompt, int answer) {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < count; ++n)
    requests.push_back(make_request(prompt + n, static_cast<uint32_t>(n + 1), answer, 0.8F));
  return requests;
}

// More prompts than the pool has room for run one after the other, twice. The second time their KV
// comes from the store.
TEST_P(KvStoreEngineTest, WhatThePoolHasNoRoomForComesBackFromTheStore) {
  std::vector<GenerationRequest> requests = different_requests(6, 100, 8);
  const size_t once = requests.size();
  for (size_t n = 0; n < once; ++n) requests.push_back(requests[n]);
  KvCache kv = runtime_.make_kv(12);
  const auto store = make_store(kv, 128, /*lasts=*/false);
  const Run found = run(requests, store.get(), kv, 1, /*together=*/false);
  KvCache plain = runtime_.make_kv(12);
  const Run computed = run(requests, nullptr, plain, 1, /*together=*/false);
  EXPECT_EQ(found.answers, computed.answers);
  for (const auto& [id, answer] : found.answers)
    EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
  EXPECT_GE(found.stats.reused_host_tokens, 6 * 90);
  EXPECT_EQ(found.stats.reused_disk_tokens, 0);
  EXPECT_LT(found.stats.prompt_tokens + 500, computed.stats.prompt_tokens);
  EXPECT_GT(store->stats().host.blocks, 30);
}

// If blocks are short, the store copies blocks of running sequences ahead: the step after a
// sequence's end takes its blocks, and would otherwise wait for the copies.
TEST_P(KvStoreEngineTest, WhereBlocksAreShortThoseAtWorkHaveCopies) {
  const std::vector<GenerationRequest> requests = different_requests(1, 100, 8);
  constexpr int32_t kPool = 12;
  for (const int32_t slots : {2 * kPool - 1, 2 * kPool}) {
    KvCache kv = runtime_.make_kv(kPool);
    const auto store = make_store(kv, slots, /*lasts=*/false);
    run(requests, store.get(), kv);
    // A smaller store would have to evict blocks of other sequences, which the pool does not have.
    EXPECT_EQ(store->stats().host.blocks, slots < 2 * kPool ? 0 : 100 / kKvBlockTokens);
  }
}

TEST_P(KvStoreEngineTest, WhatIsOnDiskIsThereAfterARestart) {
  const std::vector<GenerationRequest> requests = different_requests(5, 100, 8);
  Run first, second;
  {
    KvCache kv = runtime_.make_kv(60);
    const auto store = make_store(kv, 64, /*lasts=*/true);
    first = run(requests, store.get(), kv);
  }
  EXPECT_EQ(first.stats.reused_disk_tokens, 0);
  {
    KvCache kv = runtime_.make_kv(60);
    const auto store = make_store(kv, 64, /*lasts=*/true);
    second = run(requests, store.get(), kv);
    EXPECT_EQ(store->stats().damaged, 0);
  }
  EXPECT_EQ(first.answers, second.answers);
  for (const auto& [id, answer] : first.answers)
    EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
  EXPECT_EQ(second.stats.reused_disk_tokens, 5 * 96);
  EXPECT_LT(second.stats.prompt_tokens, 5 * 16);
}

// The store has few slots in host memory. Some requests begin with KV that is there, while others
// wait for KV on disk: what is read for the latter must not displace the former's.
TEST_P(KvStoreEngineTest, WhatIsReadForSomeLeavesWhatOthersBeginWith) {
  const std::vector<GenerationRequest> different = different_requests(8, 60, 4);
  std::vector<Answer> alone;
  for (const GenerationRequest& request : different)
    alone.push_back(answer_alone(runtime_, request));
  for (const int32_t slots : {6, 9, 14}) {
    SCOPED_TRACE(slots);
    KvCache kv = runtime_.make_kv(20);
    const auto store = make_store(kv, slots, /*lasts=*/true);
    std::mt19937 random(static_cast<uint32_t>(slots));
    for (int group = 0; group < 40; ++group) {
      std::vector<size_t> asked;
      std::vector<GenerationRequest> requests;
      for (int n = 0; n < 3; ++n) {
        asked.push_back(random() % different.size());
        requests.push_back(different[asked.back()]);
      }
      for (const auto& [id, answer] : run(requests, store.get(), kv, 3).answers)
        EXPECT_EQ(answer, alone[asked[static_cast<uint64_t>(id) - 1]]);
    }
  }
}

// Stored blocks are verified: damaged KV is never used, but computed again.
TEST_P(KvStoreEngineTest, ADamagedBlockIsComputedAgain) {
  const std::vector<GenerationRequest> requests = different_requests(4, 100, 8);
  {
    KvCache kv = runtime_.make_kv(60);
    const auto store = make_store(kv, 64, /*lasts=*/true);
    run(requests, store.get(), kv);
  }
  for (const uint64_t nth : {1U, 3U, 7U, 20U}) {
    KvCache kv = runtime_.make_kv(60);
    const auto store = make_store(kv, 64, /*lasts=*/true);
    arm_fault("spill.flip", nth, FaultKind::kEio, 2);
    const Run again = run(requests, store.get(), kv);
    disarm_faults();
    EXPECT_GT(store->stats().damaged, 0);
    for (const auto& [id, answer] : again.answers)
      EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
  }
}

// The pool holds two of six sequences, so they are preempted again and again. Each continues bit
// for bit where it was, even where other chunks would give other bits.
TEST_P(KvStoreEngineTest, PreemptedSequencesGoOnWhereTheyWere) {
  for (const bool deterministic : {true, false}) {
    for (const bool lasts : {false, true}) {
      SCOPED_TRACE(fmt::format("deterministic {}, on disk {}", deterministic, lasts));
      runtime_.device.ops().set_deterministic(deterministic);
      std::vector<GenerationRequest> requests = different_requests(6, 20, 100);
      for (GenerationRequest& request : requests) request.sampling.temperature = 1;
      KvCache kv = runtime_.make_kv(16);
      const auto store = make_store(kv, 256, lasts);
      Decoder decoder = runtime_.make_decoder(64);
      Engine engine(
          decoder, kv, nullptr,
          {.admission = {.max_sequences = 6}, .reuse_prefixes = true, .store = store.get()});
      for (GenerationRequest& request : requests) engine.submit(request);
      const auto answers = run_all(engine);
      EXPECT_GT(engine.stats().preemptions, 4);
      EXPECT_GT(engine.stats().reused_tokens, 0);
      // Nothing is computed twice, except the last token when a sequence is resumed.
      EXPECT_LE(engine.stats().prompt_tokens, 6 * 23);
      for (const auto& [id, answer] : answers)
        EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
      std::filesystem::remove_all(folder_.path());
      std::filesystem::create_directory(folder_.path());
    }
  }
}

TEST_P(KvStoreEngineTest, NothingIsLoadedThatIsComputedFaster) {
  std::vector<GenerationRequest> requests = different_requests(4, 100, 4);
  for (size_t n = 0; n < 4; ++n) requests.push_back(requests[n]);
  KvCache kv = runtime_.make_kv(12);
  const auto store = make_store(kv, 128, false, {.token_s = 1e-9, .to_device = 1, .from_disk = 1});
  const Run found = run(requests, store.get(), kv, 1, /*together=*/false);
  EXPECT_EQ(found.stats.reused_host_tokens, 0);
}

// A step that fails for memory or the GPU ends no request: its sequences are computed again, and
// the store's contents are right afterwards.
TEST_P(KvStoreEngineTest, WhatTheStoreHasIsRightAfterAStepThatFailed) {
  if (!GetParam().has_accelerator) GTEST_SKIP() << "the CPU's steps do not fail";
  const std::vector<GenerationRequest> requests = different_requests(5, 60, 40);
  for (uint64_t nth = 3; nth < 60; nth += 4) {
    // The step fails while it computes, or when its results are read; by then its blocks are being
    // copied.
    const char* const point = nth % 8 == 3 ? "step.device" : "draw.device";
    SCOPED_TRACE(testing::Message() << point << " " << nth);
    KvCache kv = runtime_.make_kv(16);
    const auto store = make_store(kv, 64, false);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .store = store.get()});
    std::map<RequestId, Answer> answers;
    for (const GenerationRequest& request : requests) engine.submit(request);
    const auto sink = [&](const GenerationEvent& event) {
      if (event.token) answers[event.id].ids.push_back(*event.token);
      if (event.finish) answers[event.id].finish = event.finish;
    };
    arm_fault(point, nth, FaultKind::kEio);
    int failures = 0;
    for (bool more = true; more;) {
      const int64_t before = store->stats().host.blocks;
      try {
        more = engine.step(sink);
      } catch (const Error&) {
        ++failures;
        EXPECT_LE(store->stats().host.blocks, before) << "what the step filled is not there";
      }
    }
    disarm_faults();
    EXPECT_EQ(failures, 1);
    for (const auto& [id, answer] : answers)
      EXPECT_EQ(answer, answer_alone(runtime_, requests[static_cast<uint64_t>(id) - 1]));
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, KvStoreEngineTest,
                         testing::Values(Machine{"Cpu", false}, Machine{"Accelerator", true}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace spillway::testing_models
