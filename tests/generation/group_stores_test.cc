// SPDX-License-Identifier: Apache-2.0
// Models with several layer groups reuse prefixes, keep KV in stores and find it after a restart.
// Each answer is the one that the request has alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "cpu/emulated_accelerator.h"
#include "engine/engine.h"
#include "kv/kv_stores.h"
#include "storage/async_io.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/tiny_models.h"

namespace spillway::testing_models {
namespace {

using Stores = std::vector<std::unique_ptr<KvStore>>;

// A model's kind, and whether it runs on an accelerator with memory of its own.
class GroupStoresTest : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  GroupStoresTest()
      : runtime_(make_device(), std::get<0>(GetParam()), DType::kF32),
        folder_(std::filesystem::temp_directory_path()) {
    runtime_.device.ops().set_deterministic(true);
  }
  ~GroupStoresTest() override { disarm_faults(); }

  static bool has_accelerator() { return std::get<1>(GetParam()); }
  static std::unique_ptr<Device> make_device() {
    if (!has_accelerator()) return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 300;
    options.draws = true;
    return std::make_unique<EmulatedAccelerator>(options);
  }

  // Makes one store for each layer group, with folders below one directory if KV is to last.
  Stores make_stores(const KvCache& kv, int32_t slots, bool lasts) {
    Stores stores;
    for (int group = 0; group < kv.groups(); ++group) {
      std::unique_ptr<BlockFolder> folder;
      if (lasts)
        folder = BlockFolder::try_open(queue_,
                                       {.dir = folder_.path(),
                                        .block_bytes = static_cast<size_t>(kv.block_bytes(group)),
                                        .salt = "tiny group " + std::to_string(group),
                                        .budget_bytes = 1 << 26});
      stores.push_back(std::make_unique<KvStore>(
          kv, *runtime_.transfers, has_accelerator() ? host_ : runtime_.device,
          KvStore::Options{.slots = slots, .group = group, .rule = kv.shape(group).rule},
          std::move(folder)));
    }
    return stores;
  }

  EngineStats expect_answers(const std::vector<GenerationRequest>& requests, KvCache& kv,
                             const Stores& stores, EngineOptions options, bool together) {
    Decoder decoder = runtime_.make_decoder(64);
    options.reuse_prefixes = true;
    options.store = stores;
    Engine engine(decoder, kv, nullptr, options);
    std::map<RequestId, Answer> answers;
    for (const GenerationRequest& request : requests) {
      engine.submit(request);
      if (!together) answers.merge(run_all(engine));
    }
    if (together) answers = run_all(engine);
    EXPECT_EQ(answers.size(), requests.size());
    for (const auto& [id, answer] : answers)
      EXPECT_EQ(answer, alone(requests[static_cast<size_t>(id) - 1]));
    for (const EngineState::Pool& pool : engine.state().kv) EXPECT_EQ(pool.free, pool.total);
    return engine.stats();
  }

  const Answer& alone(const GenerationRequest& request) {
    Answer& known = alone_[{request.prompt, request.max_tokens}];
    if (known.ids.empty()) known = answer_alone(runtime_, request);
    return known;
  }

  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  TinyRuntime runtime_;
  ScopedFolder folder_;
  IoQueue queue_;
  std::map<std::tuple<std::vector<TokenId>, int>, Answer> alone_;
};

std::vector<GenerationRequest> long_requests(uint32_t count) {
  std::vector<GenerationRequest> requests;
  for (uint32_t n = 0; n < count; ++n)
    requests.push_back(make_request(100 + static_cast<int>(n), n + 1, 30));
  return requests;
}

TEST_P(GroupStoresTest, ConversationsGoOnFromWhatIsKept) {
  KvCache kv = runtime_.make_kv(60);
  Decoder decoder = runtime_.make_decoder(64);
  Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true});
  GenerationRequest request = make_request(30, 5, 25);
  for (int turn = 0; turn < 6; ++turn) {
    const int64_t before = engine.stats().reused_tokens;
    engine.submit(request);
    const Answer answer = run_all(engine).begin()->second;
    EXPECT_EQ(answer, alone(request)) << "turn " << turn;
    // The KV of all earlier turns is found, except for the last token's, which was never computed.
    EXPECT_EQ(engine.stats().reused_tokens - before,
              turn == 0 ? 0 : std::ssize(request.prompt) - 8);
    request.prompt.insert(request.prompt.end(), answer.ids.begin(), answer.ids.end());
    for (TokenId token = 20; token < 27; ++token) request.prompt.push_back(token);
  }
}

TEST_P(GroupStoresTest, BlocksThatThePoolsGaveOutComeBack) {
  std::vector<GenerationRequest> requests = long_requests(5);
  for (size_t n = 0; n < 5; ++n) requests.push_back(requests[n]);
  KvCache kv = runtime_.make_kv(13);
  const Stores stores = make_stores(kv, 128, /*lasts=*/false);
  const EngineStats stats =
      expect_answers(requests, kv, stores, {.admission = {.max_sequences = 1}}, false);
  EXPECT_GT(stats.reused_tokens, 300);
  EXPECT_GT(stats.reused_host_tokens, 0);
}

TEST_P(GroupStoresTest, PreemptedSequencesGoOn) {
  int64_t preemptions = 0, reused = 0;
  for (const bool lasts : {false, true}) {
    // If all layers have windows, sequences need few blocks, so the pool must be small.
    for (const int32_t blocks : {10, 12, 14, 16}) {
      KvCache kv = runtime_.make_kv(blocks);
      const Stores stores = make_stores(kv, 256, lasts);
      const EngineStats stats =
          expect_answers(long_requests(6), kv, stores, {.admission = {.max_sequences = 6}}, true);
      preemptions += stats.preemptions;
      reused += stats.reused_tokens;
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(reused, 0);
}

TEST_P(GroupStoresTest, BlocksOnDiskAreThereAfterARestart) {
  const std::vector<GenerationRequest> requests = long_requests(5);
  for (const bool again : {false, true}) {
    KvCache kv = runtime_.make_kv(60);
    const Stores stores = make_stores(kv, 64, /*lasts=*/true);
    const EngineStats stats = expect_answers(requests, kv, stores, {}, true);
    EXPECT_EQ(stats.reused_disk_tokens > 0, again);
    if (again) {
      EXPECT_LT(stats.prompt_tokens, 5 * 20);
    }
    EXPECT_EQ(KvStores(stores).stats().damaged, 0);
  }
}

TEST_P(GroupStoresTest, DamagedBlocksAreComputedAgain) {
  const std::vector<GenerationRequest> requests = long_requests(4);
  {
    KvCache kv = runtime_.make_kv(60);
    expect_answers(requests, kv, make_stores(kv, 64, /*lasts=*/true), {}, true);
  }
  for (const uint64_t nth : {1U, 4U, 9U}) {
    KvCache kv = runtime_.make_kv(60);
    const Stores stores = make_stores(kv, 64, /*lasts=*/true);
    arm_fault("spill.flip", nth, FaultKind::kEio, 2);
    expect_answers(requests, kv, stores, {}, true);
    disarm_faults();
    EXPECT_GT(KvStores(stores).stats().damaged, 0);
  }
}

// KV of rejected drafts reaches neither other requests nor the folder, which the second run reads.
TEST_P(GroupStoresTest, DraftsLeaveNothingWrongInStores) {
  std::vector<GenerationRequest> requests = long_requests(6);
  for (GenerationRequest& request : requests) {
    for (TokenId& token : request.prompt) token = 10 + token % 5;
    for (TokenId token = 10; token < 15; ++token)
      request.sampling.logit_bias.emplace_back(token, 7.0F);
    request.sampling.temperature = 0.7F;
  }
  std::vector<GenerationRequest> longer = requests;
  for (GenerationRequest& request : longer) {
    const std::vector<TokenId>& ids = alone(request).ids;
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    request.max_tokens = 31;
  }
  for (const auto* const asked : {&requests, &longer}) {
    KvCache kv = runtime_.make_kv(24);
    const Stores stores = make_stores(kv, 128, /*lasts=*/true);
    const EngineStats stats = expect_answers(
        *asked, kv, stores,
        {.admission = {.max_sequences = 4}, .drafts = {.kind = DraftKind::kLookup}}, true);
    EXPECT_GT(stats.draft_accepted, 0);
    EXPECT_GT(stats.draft_proposed, stats.draft_accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GroupStoresTest,
                         testing::Combine(testing::Values("llama", "window", "mixed", "mixed-deep",
                                                          "chunks"),
                                          testing::Bool()),
                         [](const auto& of) {
                           std::string name = std::get<0>(of.param);
                           std::erase(name, '-');
                           return name + (std::get<1>(of.param) ? "OnAnAccelerator" : "OnTheCpu");
                         });

// A model with other layer groups has folders of its own, and leaves those of other models alone.
TEST(GroupFoldersTest, ModelsOfOtherGroupingsShareADirectory) {
  ScopedFolder folder(std::filesystem::temp_directory_path());
  IoQueue queue;
  const std::vector<GenerationRequest> requests = long_requests(3);
  for (const bool again : {false, true}) {
    for (const char* const kind : {"llama", "mixed", "chunks"}) {
      SCOPED_TRACE(kind);
      TinyRuntime runtime(kind);
      KvCache kv = runtime.make_kv(60);
      Stores stores;
      for (int group = 0; group < kv.groups(); ++group)
        stores.push_back(std::make_unique<KvStore>(
            kv, *runtime.transfers, runtime.device,
            KvStore::Options{.slots = 64, .group = group, .rule = kv.shape(group).rule},
            BlockFolder::try_open(queue,
                                  {.dir = folder.path(),
                                   .block_bytes = static_cast<size_t>(kv.block_bytes(group)),
                                   .salt = std::string(kind) + (group == 0 ? "" : " group 1"),
                                   .budget_bytes = 1 << 26})));
      Decoder decoder = runtime.make_decoder(64);
      Engine engine(decoder, kv, nullptr, {.reuse_prefixes = true, .store = stores});
      for (const GenerationRequest& request : requests) engine.submit(request);
      run_all(engine);
      EXPECT_EQ(engine.stats().reused_disk_tokens > 0, again);
      EXPECT_EQ(KvStores(stores).stats().damaged, 0);
    }
  }
}

}  // namespace
}  // namespace spillway::testing_models
