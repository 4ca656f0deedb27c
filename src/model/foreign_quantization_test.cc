// SPDX-License-Identifier: Apache-2.0
#include "model/foreign_quantization.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

using Settings = std::initializer_list<std::pair<const char*, Value>>;

ModelFiles folder(Settings settings) {
  ModelFiles files;
  files.format = ModelFiles::Format::kHuggingFace;
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", std::string("llama"));
  for (const auto& [key, value] : settings) files.metadata.add(key, value);
  return files;
}

std::string found(const ModelFiles& files) {
  return try_foreign_quantization(files).value_or("none");
}

TEST(ForeignQuantizationTest, IsCalledAsTheConfigurationCallsIt) {
  for (const char* method :
       {"gptq", "awq", "fp8", "compressed-tensors", "bitsandbytes", "hqq", "torchao", "mxfp4"}) {
    EXPECT_EQ(found(folder({{"quantization_config.quant_method", std::string(method)}})), method);
  }
  EXPECT_EQ(found(folder({{"compression_config.quant_method", std::string("sparseml")}})),
            "sparseml");
  EXPECT_EQ(found(folder({})), "none");
}

TEST(ForeignQuantizationTest, KnowsBitsAndBytesByItsSwitches) {
  EXPECT_EQ(found(folder({{"quantization_config.load_in_4bit", true},
                          {"quantization_config.load_in_8bit", false}})),
            "bitsandbytes");
  EXPECT_EQ(found(folder({{"quantization_config.load_in_4bit", false},
                          {"quantization_config.load_in_8bit", false},
                          {"quantization_config.quant_method", std::string("bitsandbytes")}})),
            "none");
}

TEST(ForeignQuantizationTest, KnowsFoldersThatDoNotNameTheMethod) {
  EXPECT_EQ(found(folder({{"quantization.bits", int64_t{4}}})), "the quantization of MLX");
  EXPECT_EQ(found(folder({{"quantization_config.bits", int64_t{4}}})),
            "the quantization that config.json names");
  ModelFiles files = folder({});
  files.unsupported.push_back({"model.layers.0.self_attn.q_proj.qweight", "I32"});
  EXPECT_EQ(found(files), "gptq or awq");
  files = folder({});
  TensorInfo scale;
  scale.name = "model.layers.0.mlp.up_proj.weight_scale_inv";
  scale.shape = {1};
  files.tensors.push_back(scale);
  EXPECT_EQ(found(files), "fp8");
  files.format = ModelFiles::Format::kGguf;
  EXPECT_EQ(found(files), "none");
}

}  // namespace
}  // namespace spillway
