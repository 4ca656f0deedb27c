// SPDX-License-Identifier: Apache-2.0
#include "model/known_models.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/model.h"

namespace spillway {
namespace {

TEST(KnownModelsTest, CountsThePublishedParameters) {
  const auto billions = [](const char* name) {
    return static_cast<double>(parameter_count(make_spec(try_known_model(name).value()))) / 1e9;
  };
  EXPECT_NEAR(billions("opt-125m"), 0.125, 0.001);
  EXPECT_NEAR(billions("opt-350m"), 0.331, 0.001);
  EXPECT_NEAR(billions("opt-30b"), 29.97, 0.03);
  EXPECT_NEAR(billions("opt-175b"), 174.6, 0.2);
  EXPECT_NEAR(billions("llama-2-7b"), 6.738, 0.001);
  EXPECT_NEAR(billions("llama-2-70b"), 68.98, 0.01);
  EXPECT_NEAR(billions("llama-3-8b"), 8.030, 0.001);
  EXPECT_NEAR(billions("llama-3.1-405b"), 405.85, 0.05);
  EXPECT_NEAR(billions("llama-3.2-1b"), 1.236, 0.001);
  EXPECT_NEAR(billions("smollm2-135m"), 0.1345, 0.0001);
  EXPECT_NEAR(billions("mistral-7b"), 7.242, 0.001);
  EXPECT_NEAR(billions("mistral-7b-v0.1"), 7.242, 0.001);
  EXPECT_NEAR(billions("qwen2-0.5b"), 0.494, 0.001);
  EXPECT_NEAR(billions("qwen2.5-7b"), 7.616, 0.001);
  EXPECT_NEAR(billions("qwen2.5-32b"), 32.76, 0.01);
  EXPECT_NEAR(billions("qwen3-0.6b"), 0.596, 0.001);
  EXPECT_NEAR(billions("qwen3-8b"), 8.191, 0.001);
  EXPECT_NEAR(billions("pythia-70m"), 0.0704, 0.0001);
  EXPECT_NEAR(billions("pythia-1b"), 1.0118, 0.0001);
  EXPECT_NEAR(billions("pythia-2.8b"), 2.7752, 0.0001);
  EXPECT_NEAR(billions("pythia-6.9b"), 6.8573, 0.0001);
  EXPECT_NEAR(billions("pythia-12b"), 11.8461, 0.0001);
  EXPECT_NEAR(billions("stablelm-3b-4e1t"), 2.795, 0.001);
  EXPECT_NEAR(billions("stablelm-zephyr-3b"), 2.795, 0.001);
  EXPECT_NEAR(billions("stablelm-2-1.6b"), 1.6445, 0.0001);
  EXPECT_NEAR(billions("gpt-j-6b"), 6.0509, 0.0001);
  EXPECT_NEAR(billions("gpt2"), 0.1244, 0.0001);
  EXPECT_NEAR(billions("gpt2-xl"), 1.5576, 0.0001);
  EXPECT_NEAR(billions("gpt-3"), 174.6, 0.1);
  EXPECT_NEAR(billions("phi-3-mini"), 3.8211, 0.0001);
  EXPECT_NEAR(billions("phi-3-medium"), 13.9602, 0.0001);
  EXPECT_NEAR(billions("phi-4"), 14.6595, 0.0001);
  EXPECT_NEAR(billions("phi-4-mini"), 3.8360, 0.0001);
  EXPECT_NEAR(billions("smollm3-3b"), 3.0751, 0.0001);
  EXPECT_NEAR(billions("gpt-neox-20b"), 20.55, 0.02);
  EXPECT_NEAR(billions("falcon-7b"), 6.9217, 0.0001);
  EXPECT_NEAR(billions("falcon-40b"), 41.3033, 0.0001);
  EXPECT_NEAR(billions("falcon-180b"), 178.5571, 0.0001);
  EXPECT_NEAR(billions("falcon2-11b"), 11.1028, 0.0001);
  EXPECT_NEAR(billions("phi-1"), 1.4183, 0.0001);
  EXPECT_NEAR(billions("phi-1.5"), 1.4183, 0.0001);
  EXPECT_NEAR(billions("phi-2"), 2.7797, 0.0001);
  EXPECT_NEAR(billions("chatglm2-6b"), 6.2436, 0.0001);
  EXPECT_NEAR(billions("chatglm3-6b"), 6.2436, 0.0001);
  EXPECT_NEAR(billions("glm-4-9b"), 9.400, 0.001);
  EXPECT_NEAR(billions("command-r"), 34.98, 0.01);
  EXPECT_NEAR(billions("glm-4-9b-0414"), 9.400, 0.001);
  EXPECT_NEAR(billions("olmo-2-7b"), 7.2986, 0.0001);
  EXPECT_NEAR(billions("olmo-2-13b"), 13.7162, 0.0001);
  EXPECT_NEAR(billions("granite-3.3-2b"), 2.5335, 0.0001);
  EXPECT_NEAR(billions("granite-3.3-8b"), 8.1708, 0.0001);
  EXPECT_NEAR(billions("gemma-2b"), 2.5062, 0.0001);
  EXPECT_NEAR(billions("gemma-7b"), 8.5377, 0.0001);
  EXPECT_NEAR(billions("gemma-3-270m"), 0.2681, 0.0001);
  EXPECT_NEAR(billions("gemma-3-1b"), 0.9999, 0.0001);
  EXPECT_NEAR(billions("bloom-176b"), 176.2, 0.1);
}

TEST(KnownModelsTest, MarksShapesThatOnlyThePlannerKnows) {
  EXPECT_TRUE(try_known_model("gpt-3")->executable);
  EXPECT_TRUE(try_known_model("chatglm2-6b")->executable);
  EXPECT_FALSE(try_known_model("bloom-176b")->executable);
  EXPECT_FALSE(try_known_model("gpt-5").has_value());
}

// These were published with a window; all others attend to all tokens.
TEST(KnownModelsTest, OnlyMistralsFirstModelPhi3AndGemma3HaveAWindow) {
  const auto window_of = [](const std::string& name) {
    if (name == "mistral-7b-v0.1") return 4096;
    if (name == "gemma-3-270m" || name == "gemma-3-1b") return 512;
    if (name.starts_with("gemma-3")) return 1024;
    return name.starts_with("phi-3") ? 2047 : 0;
  };
  for (const std::string& name : known_model_names()) {
    const TransformerShape shape = try_known_model(name).value();
    EXPECT_EQ(shape.sliding_window, window_of(name)) << name;
    EXPECT_FALSE(shape.chunked_window) << name;
  }
}

TEST(DummyModelTest, TakesItsWeightTypeFromTheName) {
  EXPECT_EQ(describe_dummy_model("llama-2-7b").main_dtype(), DType::kF16);
  const Model model = describe_dummy_model("llama-2-7b:q4_0");
  EXPECT_EQ(model.main_dtype(), DType::kQ4_0);
  EXPECT_NEAR(static_cast<double>(model.weight_bytes()), 6.738e9 * 18 / 32, 5e6);
  EXPECT_THROW(describe_dummy_model("llama-2-7b:q9"), Error);
  EXPECT_THROW(describe_dummy_model("unknown-7b"), Error);
}

DType type_of(const Model& model, std::string_view name, bool is_bias = false) {
  for (const BoundWeight& weight : model.weights) {
    if (weight.slot.name == name && weight.slot.is_bias == is_bias) return weight.dtype;
  }
  return DType::kF32;
}

TEST(CompressMatricesTest, TakesPlainMatricesThatAreMultiplied) {
  Model llama = describe_dummy_model("llama-2-7b");
  const Compression done = compress_matrices(llama);
  EXPECT_EQ(done.compressed, 32 * 7 + 1);
  EXPECT_EQ(done.kept, 0);
  EXPECT_EQ(type_of(llama, "head"), DType::kG4);
  EXPECT_EQ(type_of(llama, "token_embedding"), DType::kF16);  // only looked up in
  EXPECT_EQ(type_of(llama, "mlp_norm"), DType::kF32);
  EXPECT_EQ(llama.weights.back().file_dtype(), DType::kF16);
  EXPECT_EQ(compress_matrices(llama).compressed, 0);  // it is already compressed

  Model opt = describe_dummy_model("opt-125m");
  EXPECT_EQ(compress_matrices(opt).compressed, 12 * 6 + 1);
  EXPECT_EQ(type_of(opt, "token_embedding"), DType::kG4);  // tied, so it is multiplied
  EXPECT_EQ(type_of(opt, "position_embedding"), DType::kF16);
  EXPECT_EQ(type_of(opt, "mlp_up", /*is_bias=*/true), DType::kF32);

  Model quantized = describe_dummy_model("llama-2-7b:q4_k");
  EXPECT_EQ(compress_matrices(quantized).compressed, 0);
  EXPECT_EQ(compress_matrices(quantized).kept, 32 * 7 + 1);
}

}  // namespace
}  // namespace spillway
