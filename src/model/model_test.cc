// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/family.h"

namespace spillway {
namespace {

// A Hugging Face Llama of two layers, described but without bytes.
ModelFiles tiny_llama() {
  ModelFiles files;
  files.format = ModelFiles::Format::kHuggingFace;
  files.name = "tiny";
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", std::string("llama"));
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"hidden_size", 64},
                                                              {"intermediate_size", 96},
                                                              {"num_hidden_layers", 2},
                                                              {"num_attention_heads", 4},
                                                              {"num_key_value_heads", 2},
                                                              {"vocab_size", 100},
                                                              {"max_position_embeddings", 128}}) {
    files.metadata.add(key, value);
  }
  const ModelSpec spec = kLlamaFamily.read_spec(files);
  uint64_t offset = 0;
  for (const WeightSlot& slot : weight_slots(spec)) {
    TensorInfo tensor;
    tensor.name = weight_name(kLlamaFamily.names(files), slot);
    tensor.shape = slot.is_vector() ? std::vector<int64_t>{slot.cols}
                                    : std::vector<int64_t>{slot.rows, slot.cols};
    tensor.extent = {0, offset, static_cast<uint64_t>(slot.rows * slot.cols * 4)};
    offset += tensor.extent.bytes;
    files.tensors.push_back(tensor);
  }
  files.finish();
  return files;
}

std::string error_of(const ModelFiles& files) {
  try {
    describe_model(files);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelTest, BindsEveryWeightOfALlama) {
  const Model model = describe_model(tiny_llama());
  EXPECT_EQ(model.spec.head_dim, 16);
  EXPECT_EQ(model.spec.kv_dim(), 32);
  EXPECT_EQ(model.spec.rope.inverse_frequencies.size(), 8U);
  EXPECT_EQ(model.weights.size(), 3U + 2 * 9);
  EXPECT_EQ(model.weight_bytes(), parameter_count(model.spec) * 4);
}

TEST(ModelTest, TiesAHeadThatTheFilesLeaveOut) {
  ModelFiles files = tiny_llama();
  std::erase_if(files.tensors, [](const TensorInfo& t) { return t.name == "lm_head.weight"; });
  files.finish();
  EXPECT_TRUE(describe_model(files).spec.tied_head);
}

TEST(ModelTest, NamesAMissingTensorAndAWrongShape) {
  ModelFiles files = tiny_llama();
  std::erase_if(files.tensors,
                [](const TensorInfo& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  files.finish();
  EXPECT_NE(error_of(files).find("model.layers.1.mlp.up_proj.weight"), std::string::npos)
      << error_of(files);

  files = tiny_llama();
  for (TensorInfo& t : files.tensors) {
    if (t.name == "model.layers.0.self_attn.k_proj.weight") std::swap(t.shape[0], t.shape[1]);
  }
  EXPECT_NE(error_of(files).find("[64, 32]"), std::string::npos) << error_of(files);
}

TEST(ModelTest, RefusesAnUnknownArchitectureByName) {
  ModelFiles files = tiny_llama();
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", std::string("perceiver"));
  EXPECT_NE(error_of(files).find("perceiver"), std::string::npos);
}

TEST(ModelSpecTest, RefusesSizesThatMakeNoSense) {
  ModelSpec good = describe_model(tiny_llama()).spec;
  EXPECT_NO_THROW(validate(good, "here"));
  const auto refuses = [&](auto&& change) {
    ModelSpec bad = good;
    change(bad);
    EXPECT_THROW(validate(bad, "here"), Error);
  };
  refuses([](ModelSpec& s) { s.layers = 0; });
  refuses([](ModelSpec& s) { s.heads = -1; });
  refuses([](ModelSpec& s) { s.kv_heads = 3; });
  refuses([](ModelSpec& s) { s.vocab_size = int64_t{1} << 40; });
  refuses([](ModelSpec& s) { s.rope.dims = 7; });
  refuses([](ModelSpec& s) { s.norm_eps = NAN; });
}

TEST(RopeScalingTest, KeepsShortAndStretchesLongWavelengths) {
  RopeSpec rope{RopeStyle::kHalves, 128, 500000, {}};
  const auto base = base_inverse_frequencies(rope);
  auto scaled = base;
  apply_llama3_scaling({}, scaled);
  EXPECT_EQ(scaled.front(), base.front());
  EXPECT_DOUBLE_EQ(scaled.back(), base.back() / 8);
  EXPECT_TRUE(std::is_sorted(scaled.rbegin(), scaled.rend()));
}

}  // namespace
}  // namespace spillway
