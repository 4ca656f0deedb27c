// SPDX-License-Identifier: Apache-2.0
// The decoder with sparse attention: prompts attend to all positions, generated tokens to a share
// of their context.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/perplexity.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing_models::tiny_prompt;
using testing_models::TinyRuntime;

constexpr int kPrompt = 60, kGenerated = 12;

// Returns the logits of the prompt's last position, and of every fixed token after it. With
// `others`, another sequence is in each step.
std::vector<std::vector<float>> generate(TinyRuntime& runtime, float share, bool others,
                                         AttentionTraffic* traffic = nullptr) {
  KvCache kv = runtime.make_kv(16);
  Decoder decoder = runtime.make_decoder(64);
  decoder.set_attention_topk(share);
  const auto tokens = tiny_prompt(kPrompt + kGenerated, 3), other = tiny_prompt(200, 4);
  const std::vector<BlockId> table = block_range(0, 8), other_table = block_range(8, 8);
  std::vector<std::vector<float>> rows;
  const auto keep = [&](const Activations& logits) {
    rows.emplace_back(logits.f32(0), logits.f32(0) + logits.cols);
  };
  const StepSequence prompt{std::span(tokens).first(kPrompt), 0, table, 1};
  keep(decoder.step(kv, {&prompt, 1}));
  for (int32_t i = 0; i < kGenerated; ++i) {
    std::vector<StepSequence> step{{std::span(tokens).subspan(static_cast<size_t>(kPrompt + i), 1),
                                    kPrompt + i, table, 1,
                                    /*generates=*/true}};
    // The other prompt comes in chunks, every other of which has one token.
    if (others) {
      const int32_t count = i % 2 == 0 ? 5 : 1, start = i / 2 * 6 + (i % 2 == 0 ? 0 : 5);
      step.push_back(
          {std::span(other).subspan(static_cast<size_t>(start), static_cast<size_t>(count)), start,
           other_table, 0});
    }
    keep(decoder.step(kv, step));
  }
  if (traffic != nullptr) *traffic = decoder.take_stats().attention;
  return rows;
}

class SparseDecoderTest : public testing::TestWithParam<const char*> {};

TEST_P(SparseDecoderTest, PromptsAreDenseAndGeneratedTokensAreNot) {
  TinyRuntime runtime(GetParam());
  const auto dense = generate(runtime, 0, false), sparse = generate(runtime, 0.1F, false),
             all = generate(runtime, 1, false);
  EXPECT_EQ(sparse[0], dense[0]);
  for (size_t i = 1; i < dense.size(); ++i) {
    EXPECT_NE(sparse[i], dense[i]) << i;
    for (size_t c = 0; c < dense[i].size(); ++c) ASSERT_NEAR(all[i][c], dense[i][c], 1e-4) << i;
  }
}

TEST_P(SparseDecoderTest, GivesBitEqualLogitsWhateverIsInTheBatch) {
  TinyRuntime runtime(GetParam());
  runtime.device.ops().set_deterministic(true);
  EXPECT_EQ(generate(runtime, 0.1F, false), generate(runtime, 0.1F, true));
}

TEST_P(SparseDecoderTest, ReportsTheValuesItReads) {
  TinyRuntime runtime(GetParam());
  const ModelSpec& spec = runtime.model.spec;
  AttentionTraffic dense, sparse;
  generate(runtime, 0, false, &dense);
  generate(runtime, 0.1F, false, &sparse);
  EXPECT_EQ(dense.v_bytes, dense.dense_v_bytes);
  EXPECT_EQ(sparse.dense_v_bytes, dense.dense_v_bytes);
  uint64_t keys = 0, chosen = 0;
  for (int context = kPrompt + 1; context <= kPrompt + kGenerated; ++context) {
    const int window = spec.layer(0).find("attention")->attention.window;
    const int seen = window > 0 ? std::min(window, context) : context;
    keys += static_cast<uint64_t>(seen);
    chosen += static_cast<uint64_t>((seen + 9) / 10);
  }
  const auto entry = static_cast<uint64_t>(spec.head_dim * spec.layer_count()) * sizeof(float);
  EXPECT_EQ(dense.v_bytes, keys * entry * static_cast<uint64_t>(spec.kv_heads));
  EXPECT_EQ(sparse.v_bytes, chosen * entry * static_cast<uint64_t>(spec.heads));
}

// Scored tokens are computed as they would be in generation.
TEST_P(SparseDecoderTest, PerplexityIsThatOfGeneratedTokens) {
  TinyRuntime runtime(GetParam());
  KvCache kv = runtime.make_kv(8);
  Decoder decoder = runtime.make_decoder(20);
  PerplexityOptions options;
  options.context = 64;
  const auto tokens = tiny_prompt(64, 5);
  const double dense = perplexity(decoder, kv, tokens, options).perplexity;
  EXPECT_EQ(decoder.take_stats().attention.v_bytes, 0U) << "no token was computed by itself";
  decoder.set_attention_topk(1);
  EXPECT_NEAR(perplexity(decoder, kv, tokens, options).perplexity, dense, 1e-4 * dense);
  decoder.set_attention_topk(0.1F);
  EXPECT_NE(perplexity(decoder, kv, tokens, options).perplexity, dense);
  EXPECT_GT(decoder.take_stats().attention.v_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Families, SparseDecoderTest,
                         testing::Values("llama", "window", "opt", "opt-350m"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace spillway
