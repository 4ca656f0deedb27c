// SPDX-License-Identifier: Apache-2.0
// The decoder computes the same logits for a sequence however its tokens are divided into steps,
// and whatever else is in the batch.
#include "runtime/decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/perplexity.h"
#include "engine/sampler.h"
#include "tests/generation/sequence_tables.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing_models::SequenceTables;
using testing_models::tiny_prompt;
using testing_models::TinyRuntime;

using Rows = std::vector<std::vector<float>>;

void append_rows(const Activations& logits, int64_t first, int64_t count, Rows& out) {
  for (int64_t i = first; i < first + count; ++i)
    out.emplace_back(logits.f32(i), logits.f32(i) + logits.cols);
}

// Returns the logits of every position, computed `chunk` tokens at a time.
Rows logits_in_chunks(TinyRuntime& runtime, const std::vector<int32_t>& ids, int chunk,
                      KvType kv_type) {
  KvCache kv = runtime.make_kv(64, kv_type);
  Decoder decoder = runtime.make_decoder(chunk);
  Rows rows;
  forward_all(decoder, kv, ids, 0, [&](int64_t, const Activations& logits) {
    append_rows(logits, 0, logits.rows, rows);
  });
  return rows;
}

class DecoderTest : public testing::TestWithParam<std::string> {};

TEST_P(DecoderTest, GivesBitEqualLogitsWhateverTheChunking) {
  for (const KvType kv_type : kAllKvTypes) {
    TinyRuntime runtime(GetParam());
    runtime.device.ops().set_deterministic(true);
    const auto ids = tiny_prompt(300, 1);
    const Rows whole = logits_in_chunks(runtime, ids, 300, kv_type);
    for (const int chunk : {1, 7, 16, 64}) {
      const Rows cut = logits_in_chunks(runtime, ids, chunk, kv_type);
      ASSERT_EQ(cut.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i)
        ASSERT_EQ(whole[i], cut[i]) << "chunk " << chunk << ", position " << i;
    }
  }
}

TEST_P(DecoderTest, QuantizedKvStaysNearHalfFloats) {
  TinyRuntime runtime(GetParam());
  const auto ids = tiny_prompt(200, 3);
  const Rows half = logits_in_chunks(runtime, ids, 64, KvType::kF16);
  // A norm of its result makes attention's part of the residual stream larger.
  const double larger = std::string(GetParam()) == "olmo2" ? 2 : 1;
  for (const auto& [type, bar] : {std::pair{KvType::kInt8, 1e-4}, {KvType::kInt4, 2e-2}}) {
    const Rows rows = logits_in_chunks(runtime, ids, 64, type);
    double error = 0, power = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t j = 0; j < rows[i].size(); ++j) {
        ASSERT_TRUE(std::isfinite(rows[i][j]));
        error += std::pow(double{rows[i][j]} - half[i][j], 2);
        power += std::pow(double{half[i][j]}, 2);
      }
    }
    EXPECT_LE(error / power, bar * larger) << kv_type_name(type);
    EXPECT_GT(error, 0) << kv_type_name(type);
  }
}

TEST_P(DecoderTest, GivesBitEqualLogitsWhateverIsInTheBatch) {
  TinyRuntime runtime(GetParam(), DType::kQ8_0);
  runtime.device.ops().set_deterministic(true);
  // Lengths end in the middle of blocks. The first two sequences decode, the others are in their
  // prompts.
  const std::vector<int> lengths{40, 17, 5, 100};
  KvCache kv = runtime.make_kv(64);
  Decoder decoder = runtime.make_decoder(256);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<BlockId>> tables;
  Rows alone;
  int32_t next_block = 63;  // blocks from the end, so that no table is an identity
  for (size_t s = 0; s < lengths.size(); ++s) {
    prompts.push_back(tiny_prompt(lengths[s], static_cast<uint32_t>(s)));
    alone.push_back(logits_in_chunks(runtime, prompts[s], 256, KvType::kF32).back());
    tables.emplace_back();
    for (int i = 0; i < lengths[s]; i += kKvBlockTokens)
      tables[s].push_back(DeviceBlock{next_block--});
  }
  std::vector<SequenceTables> of_groups;
  for (const std::vector<BlockId>& table : tables) of_groups.emplace_back(kv, table);
  std::vector<StepSequence> sequences;
  for (size_t s = 0; s < 2; ++s) {
    sequences.push_back(
        of_groups[s].sequence({prompts[s].data(), prompts[s].size() - 1}, 0, /*logit_rows=*/0));
  }
  EXPECT_TRUE(decoder.step(kv, sequences).empty());
  sequences.clear();
  for (size_t s = 0; s < lengths.size(); ++s) {
    const size_t done = s < 2 ? prompts[s].size() - 1 : 0;
    sequences.push_back(
        of_groups[s].sequence(std::span(prompts[s]).subspan(done), static_cast<int64_t>(done), 1));
  }
  Rows together;
  const Activations logits = decoder.step(kv, sequences);
  ASSERT_EQ(logits.rows, 4);
  append_rows(logits, 0, 4, together);
  for (size_t s = 0; s < lengths.size(); ++s) EXPECT_EQ(alone[s], together[s]) << "sequence " << s;
}

TEST_P(DecoderTest, DoesNotDependOnTheNumberOfThreads) {
  const auto ids = tiny_prompt(70, 5);
  TinyRuntime one(GetParam(), DType::kQ4_0, 1), three(GetParam(), DType::kQ4_0, 3);
  EXPECT_EQ(logits_in_chunks(one, ids, 32, KvType::kF32),
            logits_in_chunks(three, ids, 32, KvType::kF32));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DecoderTest,
                         testing::Values("llama", "window", "mixed", "chunks", "shared", "opt",
                                         "opt-350m", "qwen2", "qwen3", "neox", "stablelm", "gemma3",
                                         "olmo2", "gptj", "smollm3"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(DecoderInputTest, RefusesWhatWouldReadForeignMemory) {
  TinyRuntime runtime("llama");
  KvCache kv = runtime.make_kv(64);
  Decoder decoder = runtime.make_decoder(32);
  const std::vector<BlockId> table = block_range(0, 64);
  const auto refuses = [&](std::vector<int32_t> ids, int32_t start,
                           std::span<const BlockId> blocks) {
    const StepSequence sequence{ids, start, blocks, 1};
    EXPECT_THROW(decoder.step(kv, {&sequence, 1}), Error);
  };
  refuses({97}, 0, table);                      // outside the vocabulary
  refuses({-1}, 0, table);                      //
  refuses({5}, 640, table);                     // outside the context
  refuses({5}, -1, table);                      //
  refuses({}, 0, table);                        // no tokens
  refuses(tiny_prompt(33, 1), 0, table);        // more than a step takes
  refuses({5}, 16, std::span(table).first(1));  // no block for its position
  const std::vector<BlockId> bad_blocks[] = {{DeviceBlock{64}}, {DeviceBlock{-1}}, {HostBlock{0}}};
  for (const auto& blocks : bad_blocks) refuses({5}, 0, blocks);  // blocks that do not exist
  const std::vector<int32_t> good{5};
  const StepSequence sequence{good, 0, table, 1};
  EXPECT_EQ(decoder.step(kv, {&sequence, 1}).rows, 1);  // and it still works
}

TEST(PerplexityTest, ScoresTheSecondHalfOfEachWindow) {
  TinyRuntime runtime("llama");
  KvCache kv = runtime.make_kv(8);
  Decoder decoder = runtime.make_decoder(10);
  const auto tokens = tiny_prompt(70, 9);
  PerplexityOptions options;
  options.context = 32;
  options.bos = 1;
  const PerplexityResult result = perplexity(decoder, kv, tokens, options);
  EXPECT_EQ(result.windows, 2);
  EXPECT_EQ(result.tokens, 2 * 15);

  double loss = 0;
  for (size_t window = 0; window < 2; ++window) {
    std::vector<int32_t> ids(tokens.begin() + static_cast<std::ptrdiff_t>(32 * window),
                             tokens.begin() + static_cast<std::ptrdiff_t>(32 * (window + 1)));
    ids[0] = 1;
    const Rows rows = logits_in_chunks(runtime, ids, 32, KvType::kF32);
    for (size_t i = 16; i + 1 < 32; ++i)
      loss += log_sum_exp(rows[i]) - rows[i][static_cast<size_t>(ids[i + 1])];
  }
  EXPECT_NEAR(result.perplexity, std::exp(loss / 30), 1e-4 * result.perplexity);
  EXPECT_THROW(perplexity(decoder, kv, std::span(tokens).first(20), options), Error);
  options.context = 2;
  EXPECT_THROW(perplexity(decoder, kv, tokens, options), Error);
}

TEST(PerplexityTest, ScoresAWordByItsGreedyTokens) {
  TinyRuntime runtime("opt");
  KvCache kv = runtime.make_kv(8);
  Decoder decoder = runtime.make_decoder(64);
  const auto context = tiny_prompt(20, 4);
  const Rows rows = logits_in_chunks(runtime, context, 64, KvType::kF32);
  const auto& last = rows.back();
  const auto best = static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
  const std::vector<int32_t> right{best}, wrong{best == 5 ? 6 : 5};
  EXPECT_TRUE(score_target(decoder, kv, context, right).greedy_matches);
  EXPECT_FALSE(score_target(decoder, kv, context, wrong).greedy_matches);
  EXPECT_NEAR(score_target(decoder, kv, context, right).logprob,
              last[static_cast<size_t>(best)] - log_sum_exp(last), 1e-4);
}

}  // namespace
}  // namespace spillway
