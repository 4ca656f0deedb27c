// SPDX-License-Identifier: Apache-2.0
#include "bench/random_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/test_model.h"
#include "model/known_models.h"
#include "runtime/decoder.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

TransformerShape tiny_spec(int64_t hidden = 256) {
  TransformerShape spec;
  spec.family = "llama";
  spec.name = "tiny";
  spec.vocab_size = 301;
  spec.hidden = spec.embedding_dim = hidden;
  spec.layers = 8;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = static_cast<int>(hidden / 4);
  spec.ffn = 2 * hidden;
  spec.max_context = 64;
  spec.rope.dims = spec.head_dim;
  for (const double f : base_inverse_frequencies(spec.rope)) {
    spec.rope.inverse_frequencies.push_back(static_cast<float>(f));
  }
  return spec;
}

std::vector<std::string> all_types() {
  std::vector<std::string> names{"q4_k_m", "q5_k_m"};
  for (const DType type : kAllDTypes) {
    if (type != DType::kG4) names.emplace_back(dtype_name(type));  // G4 exists in memory only
  }
  return names;
}

class RandomModelTest : public testing::TestWithParam<std::string> {};

TEST_P(RandomModelTest, LoadsAndGivesFiniteLogitsThatFollowTheTokens) {
  const TempFolder folder;
  const auto path = folder / "model.gguf";
  random_model(tiny_spec(), try_random_mix(GetParam()).value()).write(path);

  CpuDevice device({.threads = 1});
  const auto loaded = load_model(device, path, {});
  EXPECT_EQ(loaded->no_tokenizer_reason, "");
  const ModelSpec& spec = loaded->model.spec;
  KvCache kv = make_kv_cache(device, spec, default_kv_type(loaded->model), 16);
  Decoder decoder(device, spec, loaded->weights, 8);
  const std::vector<BlockId> blocks = block_range(0, 1);
  const std::vector<int32_t> tokens{1, 17, 300, 260, 5};
  const StepSequence sequence{tokens, 0, blocks, 2};
  const Activations logits = decoder.step(kv, {&sequence, 1});
  ASSERT_EQ(logits.cols, 301);
  double squares = 0, differences = 0;
  for (int64_t i = 0; i < logits.cols; ++i) {
    ASSERT_TRUE(std::isfinite(logits.f32(0)[i]));
    squares += double{logits.f32(1)[i]} * logits.f32(1)[i];
    differences += std::abs(double{logits.f32(1)[i]} - logits.f32(0)[i]);
  }
  const double deviation = std::sqrt(squares / 301);
  EXPECT_GT(deviation, 0.2);  // weights of 0.7 / sqrt(fan in) on normalized rows give 0.7
  EXPECT_LT(deviation, 2);
  EXPECT_GT(differences / 301, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Types, RandomModelTest, testing::ValuesIn(all_types()),
                         [](const auto& test) { return test.param; });

TEST(RandomMixTest, GivesMoreBitsToTheHeadAndToHalfOfTheSensitiveMatrices) {
  TransformerShape spec = tiny_spec();
  spec.layers = 22;
  const RandomMix mix = try_random_mix("Q4_K_M").value();
  EXPECT_EQ(mix.of({.layer = -1, .kind = OpKind::kLinear, .name = "head", .rows = 301, .cols = 256},
                   spec),
            DType::kQ6_K);
  EXPECT_EQ(mix.of({.layer = -1,
                    .kind = OpKind::kEmbedding,
                    .name = "token_embedding",
                    .rows = 301,
                    .cols = 256},
                   spec),
            DType::kQ4_K);
  std::string rich;
  for (int layer = 0; layer < 22; ++layer) {
    const DType down = mix.of(
        {.layer = layer, .kind = OpKind::kLinear, .name = "mlp_down", .rows = 256, .cols = 512},
        spec);
    EXPECT_EQ(
        mix.of({.layer = layer, .kind = OpKind::kLinear, .name = "value", .rows = 128, .cols = 256},
               spec),
        down);
    EXPECT_EQ(
        mix.of(
            {.layer = layer, .kind = OpKind::kLinear, .name = "mlp_up", .rows = 512, .cols = 256},
            spec),
        DType::kQ4_K);
    rich += down == DType::kQ6_K ? '6' : '4';
  }
  EXPECT_EQ(rich, "6644644644644644644666");
  spec.tied_head = true;
  EXPECT_EQ(mix.of({.layer = -1,
                    .kind = OpKind::kEmbedding,
                    .name = "token_embedding",
                    .rows = 301,
                    .cols = 256},
                   spec),
            DType::kQ6_K);
}

TEST(RandomMixTest, FallsBackToSmallBlocksWhereRowsAreNotWholeLargeOnes) {
  const TransformerShape spec = tiny_spec();
  const auto type = [&](const char* mix, int64_t columns) {
    return try_random_mix(mix)->of(
        {.layer = 0, .kind = OpKind::kLinear, .name = "mlp_up", .rows = 16, .cols = columns}, spec);
  };
  EXPECT_EQ(type("q4_k", 576), DType::kQ5_0);
  EXPECT_EQ(type("q6_k", 576), DType::kQ8_0);
  EXPECT_EQ(type("q2_k", 576), DType::kQ4_0);
  EXPECT_EQ(type("q4_0", 576), DType::kQ4_0);
  EXPECT_EQ(type("q4_0", 48), DType::kF16);
  EXPECT_FALSE(try_random_mix("q6_k_m").has_value());
  EXPECT_FALSE(try_random_mix("q9").has_value());
}

TEST(RandomModelFileTest, WritesTheSameBytesInOneGoAndInParts) {
  const TempFolder folder;
  TransformerShape spec = tiny_spec();
  spec.layers = 1;
  spec.vocab_size = 40000;  // makes tensors larger than a part, whose ends fall inside blocks
  uint64_t seen = 0, total = 0;
  random_model(spec, {DType::kQ4_0}, [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, seen);
    seen = done;
    total = all;
  }).write(folder / "model.gguf");
  EXPECT_EQ(seen, total);
  const std::vector<std::byte> whole = random_model(spec, {DType::kQ4_0}).bytes();
  std::ifstream file(folder / "model.gguf", std::ios::binary);
  const std::string written((std::istreambuf_iterator<char>(file)), {});
  ASSERT_EQ(written.size(), whole.size());
  EXPECT_EQ(std::memcmp(written.data(), whole.data(), whole.size()), 0);
}

TEST(RandomModelFileTest, VocabularyTokenizesAndComesBack) {
  const TempFolder folder;
  TransformerShape spec = tiny_spec();
  spec.vocab_size = 5000;
  random_model(spec, {DType::kQ4_0}).write(folder / "model.gguf");
  CpuDevice device({.threads = 1});
  const auto loaded = load_model(device, folder / "model.gguf", {});
  const Tokenizer& tokenizer = loaded->require_tokenizer();
  const std::string text = "once upon a time: \u00e9t\u00e9";
  const auto ids = tokenizer.encode(text);
  EXPECT_LT(ids.size(), text.size());  // some pieces must have several letters
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(RandomModelFileTest, ScaledRopeFrequenciesSurvive) {
  const TempFolder folder;
  TransformerShape spec = try_known_model("llama-3.1-8b").value();
  spec.layers = 1;
  spec.hidden = spec.embedding_dim = 256;
  spec.heads = spec.kv_heads = 2;
  spec.ffn = 256;
  spec.vocab_size = 300;
  random_model(spec, {DType::kQ8_0}).write(folder / "model.gguf");
  const Model model = describe_model(open_model(folder / "model.gguf"));
  ASSERT_EQ(model.spec.ropes.front().inverse_frequencies.size(), 64);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(model.spec.ropes.front().inverse_frequencies[i] / spec.rope.inverse_frequencies[i],
                1, 1e-5);
  }
}

TEST(RandomModelFileTest, RefusesWhatItCannotWrite) {
  TransformerShape spec = tiny_spec();
  spec.vocab_size = 200;
  EXPECT_NE(error_of([&] { random_model(spec, {}); }).find("no room"), std::string::npos);
  EXPECT_NE(error_of([&] { random_model(try_known_model("opt-125m").value(), {}); }).find("family"),
            std::string::npos);
}

}  // namespace
}  // namespace spillway
