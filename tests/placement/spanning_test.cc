// SPDX-License-Identifier: Apache-2.0
// A sequence with KV in several memories gives the same logits as with all of it on the device: bit
// for bit if the same processor computes in the same order, close if the CPU computes a part.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine.h"
#include "tests/generation/engine_answers.h"
#include "tests/generation/sequence_tables.h"
#include "tests/logits_error.h"
#include "tests/placement/spanning_model.h"

namespace spillway::placement {
namespace {

using testing_models::make_request;
using testing_models::run_all;
using testing_models::SequenceTables;
using testing_models::tiny_prompt;

constexpr int32_t kAll = 160;  // blocks: more than the long sequence has

Pools at_home() { return {.name = "all on the device", .device = 2 * kAll}; }

// The long sequence has so many blocks on the device and in host memory; the rest is on disk.
struct Home {
  Pools pools;
  int32_t on_device = 0, on_host = 0;
};

// Runs a long sequence in prompt chunks, and a short one on the device beside it, then some tokens
// of both.
std::vector<float> run(SpanningModel& placed, const Pools& pools, int32_t on_device,
                       int32_t on_host, int chunk = 333) {
  constexpr int kPrompt = 1500, kShort = 40, kSteps = 5;
  std::vector<int32_t> tokens = tiny_prompt(kPrompt, 1), others = tiny_prompt(kShort, 2);
  std::vector<BlockId> table;
  const bool home = pools.host + pools.disk == 0;
  const int32_t first = 4;
  const std::vector<BlockId> other_table = block_range(0, first);
  for (int32_t i = 0; i < 100; ++i) {
    if (home || i < on_device) {
      table.push_back(DeviceBlock{first + i});
    } else if (i < on_device + on_host) {
      table.push_back(HostBlock{i - on_device});
    } else {
      table.push_back(DiskBlock{i - on_device - on_host});
    }
  }
  SequenceTables tables(*placed.kv, table), other_tables(*placed.kv, other_table);
  std::vector<float> all;
  const auto step = [&](const std::vector<StepSequence>& sequences) {
    const std::vector<float> logits = placed.step(sequences);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  bool short_begun = false;
  for (int start = 0; start < kPrompt; start += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, kPrompt - start));
    std::vector<StepSequence> sequences = {tables.sequence(
        std::span<const int32_t>(tokens).subspan(static_cast<size_t>(start), count), start, 2)};
    if (!std::exchange(short_begun, true)) {
      sequences.push_back(other_tables.sequence(others, 0, 1));
    } else {
      others.push_back(7 + start % 80);
      sequences.push_back(other_tables.sequence(std::span<const int32_t>(others).last(1),
                                                static_cast<int32_t>(others.size() - 1), 1,
                                                /*generates=*/true));
    }
    step(sequences);
  }
  for (int s = 0; s < kSteps; ++s) {
    tokens.push_back(5 + 11 * s);
    others.push_back(9 + 7 * s);
    step({other_tables.sequence(std::span<const int32_t>(others).last(1),
                                static_cast<int32_t>(others.size() - 1), 1, /*generates=*/true),
          tables.sequence(std::span<const int32_t>(tokens).last(1),
                          static_cast<int32_t>(tokens.size() - 1), 1, /*generates=*/true)});
  }
  return all;
}

class SpanningTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no NVIDIA GPU";
  }
};

std::vector<Home> homes(double host_share) {
  Pools all{.name = "all"};
  all.device = 100;
  all.host = all.disk = 200;
  all.staging = 60;
  all.host_share = host_share;
  std::vector<Home> homes;
  const auto add = [&](const char* name, int32_t on_device, int32_t on_host, const Pools& pools) {
    homes.push_back({pools, on_device, on_host});
    homes.back().pools.name = name;
  };
  add("device and host", 48, 100, all);
  add("device and disk", 32, 0, all);
  add("host and disk", 0, 48, all);
  add("device, host and disk", 16, 32, all);
  add("all in host memory, more than staging", 0, 100, all);
  add("all on disk, more than staging", 0, 0, all);
  Pools pools = all;
  pools.overlap = false;
  add("three, without overlap", 16, 48, pools);
  pools = all;
  pools.micro_tokens = 70;
  add("three, many micro-batches", 32, 16, pools);
  pools = all;
  pools.staging = 33;
  add("three, little staging", 16, 32, pools);
  pools = all;
  pools.pinnable_bytes = 0;
  add("three, nothing can be pinned", 16, 32, pools);
  pools = all;
  pools.on_cpu = true;
  pools.host = 0;
  add("without an accelerator, on disk", 32, 0, pools);
  return homes;
}

// Partitions are streamed to the device one after the other, and give what the device would have
// computed with all of them there.
TEST_P(SpanningTest, PartsOnTheDeviceChangeNoBitOnACpu) {
  for (const std::string& kind :
       {std::string("llama"), std::string("opt"), std::string("mixed"), std::string("shared")}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8}) {
      if ((kind == "mixed" || kind == "shared") && type != KvType::kF16)
        continue;  // layer groups and KV types are independent
      SpanningModel home(GetParam(), at_home(), kind, type, /*deterministic=*/true);
      const std::vector<float> expected = run(home, at_home(), kAll, 0);
      for (const Home& there : homes(/*host_share=*/0)) {
        SCOPED_TRACE(testing::Message()
                     << kind << ", " << kv_type_name(type) << ", " << there.pools.name);
        if (GetParam() && there.pools.on_cpu) continue;
        SpanningModel placed(GetParam(), there.pools, kind, type, /*deterministic=*/true);
        const std::vector<float> logits = run(placed, there.pools, there.on_device, there.on_host);
        ASSERT_EQ(logits.size(), expected.size());
        if (GetParam()) {
          EXPECT_LE(nmse(logits, expected), 1e-7);
        } else {
          EXPECT_EQ(logits, expected);
        }
      }
    }
  }
}

// The CPU attends to KV in host memory while the device attends to the rest.
TEST_P(SpanningTest, SharedWithTheCpuLogitsAreClose) {
  for (const std::string& kind : {std::string("llama"), std::string("opt"), std::string("window"),
                                  std::string("mixed"), std::string("shared")}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      // Kinds of models and types of KV are independent, so not all pairs are tested.
      if (kind != "llama" && type != KvType::kF16) continue;
      SpanningModel home(GetParam(), at_home(), kind, type, /*deterministic=*/false);
      const std::vector<float> expected = run(home, at_home(), kAll, 0);
      for (const Home& there : homes(/*host_share=*/1)) {
        SCOPED_TRACE(testing::Message()
                     << kind << ", " << kv_type_name(type) << ", " << there.pools.name);
        if (GetParam() && there.pools.on_cpu) continue;
        SpanningModel placed(GetParam(), there.pools, kind, type, /*deterministic=*/false);
        const std::vector<float> logits = run(placed, there.pools, there.on_device, there.on_host);
        ASSERT_EQ(logits.size(), expected.size());
        EXPECT_LE(nmse(logits, expected), type == KvType::kF32 ? 1e-8 : 1e-5);
        const DecoderStats stats = placed.decoder->take_stats();
        // For generated tokens a window limits what they see of the KV in host memory.
        const bool sees_host =
            there.on_host > 0 && (kind != "window" || there.on_device + there.on_host >= 100);
        EXPECT_EQ(stats.host_attention.kv_bytes > 0, sees_host && !there.pools.on_cpu);
      }
    }
  }
}

// With fixed partitions rows have the same bits wherever blocks are, on any device, and however the
// prompt was chunked.
TEST_P(SpanningTest, FixedPartsGiveTheSameBitsWhereverBlocksAreAndHoweverAPromptIsCut) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    std::vector<float> expected;
    struct Case {
      const char* name;
      int32_t on_device, on_host;
      int micro_tokens;
    };
    for (const Case& c : {Case{"at home", 100, 0, 200},
                          {"device and host", 32, 68, 200},
                          {"host and disk", 0, 64, 70},
                          {"three", 32, 32, 333},
                          {"disk", 0, 0, 1000}}) {
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", " << c.name);
      const Pools pools{.name = c.name,
                        .device = 200,
                        .host = 200,
                        .disk = 200,
                        .staging = 40,
                        .host_share = 0,
                        .fixed_blocks = 32,
                        .micro_tokens = c.micro_tokens};
      SpanningModel placed(GetParam(), pools, "llama", type, /*deterministic=*/true);
      const std::vector<float> logits = run(placed, pools, c.on_device, c.on_host, 750);
      if (expected.empty()) expected = logits;
      EXPECT_EQ(logits, expected);
    }
  }
}

// Layers are swapped for the KV on the device, while the rest of the KV comes through staging.
TEST_P(SpanningTest, SoDoPartitionsOfSwappedLayers) {
  const std::string kind = "llama-deep";
  for (const KvType type : {KvType::kF16, KvType::kInt8}) {
    SpanningModel home(GetParam(), at_home(), kind, type, /*deterministic=*/true);
    const std::vector<float> expected = run(home, at_home(), kAll, 0);
    for (Home there : homes(/*host_share=*/0)) {
      if (there.on_device == 0 || there.pools.on_cpu) continue;
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", " << there.pools.name);
      there.pools.most_swapped = 7;
      SpanningModel placed(GetParam(), there.pools, kind, type, /*deterministic=*/true);
      placed.decoder->change_swapped_layers(*placed.kv, 6);
      const std::vector<float> logits = run(placed, there.pools, there.on_device, there.on_host);
      ASSERT_EQ(logits.size(), expected.size());
      if (GetParam()) {
        EXPECT_LE(nmse(logits, expected), 1e-7);
      } else {
        EXPECT_EQ(logits, expected);
      }
      const DecoderStats stats = placed.decoder->take_stats();
      EXPECT_GT(stats.layer_swaps.to_device_bytes, 0u);
      EXPECT_GT(stats.swap.to_device_bytes + stats.swap.disk_read_bytes, 0u);
    }
  }
}

// `swapped` has numbers of swapped layers, which follow each other again and again.
std::vector<std::vector<TokenId>> answers(SpanningModel& placed,
                                          const std::vector<GenerationRequest>& requests,
                                          const EngineOptions& options, EngineStats* stats,
                                          const std::vector<int>& swapped = {}) {
  Engine engine(*placed.decoder, *placed.kv, nullptr, options);
  for (const GenerationRequest& request : requests) engine.submit(request);
  int steps = 0;
  const auto between = [&] {
    if (!swapped.empty() && steps++ % 7 == 0)
      engine.change_swapped_layers(swapped[static_cast<size_t>(steps / 7) % swapped.size()]);
  };
  std::vector<std::vector<TokenId>> all;
  for (const auto& [id, answer] : run_all(engine, between)) all.push_back(answer.ids);
  if (stats != nullptr) *stats = engine.stats();
  return all;
}

// The engine places the blocks, and the context is ten times what the device's KV memory holds.
TEST_P(SpanningTest, ARequestTenTimesTheDevicesKvRuns) {
  for (const KvType type : {KvType::kF16, KvType::kInt8}) {
    for (const double host_share : {0.0, 1.0}) {
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", CPU " << host_share);
      const std::vector<GenerationRequest> requests = {make_request(2600, 1, 12)};
      SpanningModel home(GetParam(), at_home(), "llama", type, /*deterministic=*/true);
      const auto expected = answers(home, requests, {}, nullptr);
      const Pools pools{.name = "a tenth",
                        .device = 16,
                        .host = 64,
                        .disk = 96,
                        .staging = 48,
                        .host_share = host_share};
      SpanningModel placed(GetParam(), pools, "llama", type, /*deterministic=*/true);
      EXPECT_EQ(answers(placed, requests, {}, nullptr), expected);
    }
  }
}

// Returns three requests whose prompts differ in their last token.
std::vector<GenerationRequest> begin_alike(int answer) {
  std::vector<GenerationRequest> requests(3, make_request(420, 5, answer));
  for (TokenId last = 20; GenerationRequest & request : requests) request.prompt.push_back(last++);
  return requests;
}

// Long sequences span several memories and short ones do not, some prompts share a prefix, and
// there is too little memory for all sequences together.
TEST_P(SpanningTest, SpansBesidePreemptionAndSharedPrompts) {
  if (GetParam()) GTEST_SKIP() << "prefill of a GPU rounds by chunk: tokens may differ";
  std::vector<GenerationRequest> requests = begin_alike(480);
  requests.push_back(make_request(100, 7, 40));
  requests.push_back(make_request(1300, 8, 20));
  SpanningModel home(false, at_home(), "llama", KvType::kF16, /*deterministic=*/true);
  const auto expected = answers(home, requests, {}, nullptr);
  const Pools pools{.name = "too little", .device = 48, .host = 56, .staging = 48, .host_share = 0};
  SpanningModel placed(false, pools, "llama", KvType::kF16, /*deterministic=*/true);
  for (const bool reuse : {false, true}) {
    EngineStats stats;
    EXPECT_EQ(answers(placed, requests, {.reuse_prefixes = reuse}, &stats), expected) << reuse;
    EXPECT_GT(stats.preemptions, 0) << reuse;
  }
}

// A request reuses the KV of another one in all memories where that is.
TEST_P(SpanningTest, SharedPromptsAreFoundBehindTheFirstMemory) {
  if (GetParam()) GTEST_SKIP() << "prefill of a GPU rounds by chunk: tokens may differ";
  constexpr int kPrompt = 900;
  std::vector<GenerationRequest> requests(2, make_request(kPrompt, 3, 200));
  requests[1].prompt.push_back(9);
  SpanningModel home(false, at_home(), "llama", KvType::kF16, /*deterministic=*/true);
  const auto expected = answers(home, requests, {}, nullptr);
  const Pools pools{.name = "shared", .device = 16, .host = 64, .staging = 48, .host_share = 0};
  SpanningModel placed(false, pools, "llama", KvType::kF16, /*deterministic=*/true);
  EngineStats stats;
  const EngineOptions one_by_one{.admission = {.max_sequences = 1}, .reuse_prefixes = true};
  EXPECT_EQ(answers(placed, requests, one_by_one, &stats), expected);
  EXPECT_EQ(stats.reused_tokens, kPrompt / kKvBlockTokens * kKvBlockTokens);
}

// The same kinds of requests run while the device's KV memory grows and shrinks.
TEST_P(SpanningTest, SpansWhileLayersAreSwapped) {
  if (GetParam()) GTEST_SKIP() << "prefill of a GPU rounds by chunk: tokens may differ";
  std::vector<GenerationRequest> requests = begin_alike(160);
  requests.push_back(make_request(100, 7, 90));
  requests.push_back(make_request(1400, 8, 20));
  SpanningModel home(false, at_home(), "llama-deep", KvType::kF16, /*deterministic=*/true);
  const auto expected = answers(home, requests, {}, nullptr);
  const Pools pools{.name = "too little",
                    .device = 32,
                    .host = 64,
                    .disk = 32,
                    .staging = 48,
                    .most_swapped = 7,
                    .host_share = 0};
  for (const std::vector<int>& swapped : {std::vector{6}, std::vector{6, 3, 0, 7, 5}}) {
    for (const bool reuse : {false, true}) {
      SCOPED_TRACE(testing::Message() << swapped.size() << " numbers, reuse " << reuse);
      SpanningModel placed(false, pools, "llama-deep", KvType::kF16, /*deterministic=*/true);
      EngineStats stats;
      EXPECT_EQ(answers(placed, requests, {.reuse_prefixes = reuse}, &stats, swapped), expected);
      EXPECT_EQ(stats.layer_swap_changes > 4, swapped.size() > 1);
      EXPECT_GT(placed.decoder->take_stats().layer_swaps.to_device_bytes, 0u);
    }
  }
}

// Rows that attend to a share of their context cannot use partitions, so a sequence stays in one
// memory.
TEST_P(SpanningTest, SparseAttentionKeepsToOneMemory) {
  const Pools pools{.name = "sparse", .device = 16, .host = 64, .staging = 48};
  SpanningModel placed(GetParam(), pools, "llama", KvType::kF16, /*deterministic=*/true);
  placed.decoder->set_attention_topk(0.1F);
  const Engine sparse(*placed.decoder, *placed.kv, nullptr, {});
  EXPECT_EQ(sparse.max_sequence_tokens(), 64 * kKvBlockTokens);
  placed.decoder->set_attention_topk(0);
  const Engine dense(*placed.decoder, *placed.kv, nullptr, {});
  EXPECT_EQ(dense.max_sequence_tokens(), (16 + 64) * kKvBlockTokens);
}

INSTANTIATE_TEST_SUITE_P(Devices, SpanningTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
