// SPDX-License-Identifier: Apache-2.0
// Tests that families treat missing and unknown keys of files as the reference implementation does.
#include "model/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/test_scoped_folder.h"
#include "model/model.h"
#include "model/test_tensors.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

// Makes a folder with the sizes in its config.json, and no tensors.
ModelFiles folder_of(const std::string& type) {
  ModelFiles files;
  files.format = ModelFiles::Format::kHuggingFace;
  files.name = "tiny";
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", type);
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"hidden_size", 64},
                                                              {"intermediate_size", 96},
                                                              {"num_hidden_layers", 2},
                                                              {"num_attention_heads", 4},
                                                              {"vocab_size", 100},
                                                              {"max_position_embeddings", 128}}) {
    files.metadata.add(key, value);
  }
  return files;
}

ModelFiles with_tensors(ModelFiles files) {
  const Family& family = family_of(files);
  add_tensors(family.names(files), make_spec(family.read_shape(files)), files);
  files.finish();
  return files;
}

// Makes a file with the keys and tensors that `spillway convert` writes; the tensors have no bytes.
ModelFiles gguf_of(const ModelFiles& folder) {
  const Family& family = family_of(folder);
  const TransformerShape shape = family.read_shape(folder);
  ModelFiles files;
  files.name = "tiny.gguf";
  files.metadata = Metadata("tiny.gguf");
  files.metadata.add("general.architecture", shape.family);
  family.write_gguf_keys(shape, files.metadata);
  add_tensors(family.names(files), make_spec(shape), files);
  files.finish();
  return files;
}

ModelFiles without_key(ModelFiles files, std::string_view left_out) {
  Metadata keys(files.name);
  for (const std::string_view key : files.metadata.keys()) {
    if (key != left_out) keys.add(std::string(key), *files.metadata.find(key));
  }
  files.metadata = std::move(keys);
  return files;
}

// A window of 0, or none, means that there is no window, as in transformers and llama.cpp.
TEST(FamilyTest, ReadsWindowsOfFilesAndRefusesAbsurdOnes) {
  const auto folder_with = [](int64_t window) {
    ModelFiles files = folder_of("mistral");
    files.metadata.add("sliding_window", window);
    return files;
  };
  const auto window_in = [](const ModelFiles& files) {
    const ModelSpec spec = make_spec(family_of(files).read_shape(files));
    return spec.states.groups.at(0).state.window;
  };
  EXPECT_EQ(window_in(folder_of("mistral")), 0);
  EXPECT_EQ(window_in(folder_with(0)), 0);
  EXPECT_EQ(window_in(folder_with(127)), 127);
  EXPECT_EQ(window_in(folder_with(128)), 0) << "as long as the context";
  EXPECT_EQ(window_in(folder_with(4096)), 0);
  EXPECT_EQ(window_in(with_tensors(gguf_of(with_tensors(folder_with(100))))), 100);
  for (const int64_t absurd : {int64_t{-1}, int64_t{1} << 40, INT64_MIN}) {
    const std::string refusal = error_of([&] { window_in(folder_with(absurd)); });
    EXPECT_THAT(refusal, HasSubstr("config.json"));
    EXPECT_THAT(refusal, HasSubstr("sliding_window"));
    EXPECT_EQ(refusal.find('\n'), std::string::npos);
  }
}

TEST(FamilyTest, SaysWhereAWindowIsNotInForce) {
  const auto folder_with = [](int64_t window) {
    ModelFiles files = folder_of("mistral");
    files.metadata.add("sliding_window", window);
    return files;
  };
  const auto said = [](const ModelFiles& files) {
    const LogLevel before = log_level();
    set_log_level(LogLevel::kInfo);
    testing::internal::CaptureStderr();
    family_of(files).read_shape(files);
    set_log_level(before);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(folder_of("mistral")), "");
  EXPECT_EQ(said(folder_with(127)), "");
  EXPECT_THAT(said(folder_with(0)), HasSubstr("sliding_window is 0: its layers attend to all"));
  for (const ModelFiles& files : {folder_with(128), gguf_of(with_tensors(folder_with(128)))}) {
    const std::string line = said(files);
    EXPECT_THAT(line, HasSubstr("sliding_window is 128, not shorter than the context of 128"));
    EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  }
  ModelFiles unused = folder_with(4096);
  unused.metadata.add("use_sliding_window", false);
  EXPECT_EQ(said(unused), "") << "the key means nothing then, as Qwen's files have it";
}

int rotated(const ModelFiles& files) { return family_of(files).read_shape(files).rope.dims; }

TEST(FamilyTest, RotatesTheUsualShareOfAHeadWhereTheFileDoesNotSayIt) {
  for (const char* whole : {"llama", "qwen2", "qwen3", "cohere"})
    EXPECT_EQ(rotated(folder_of(whole)), 16);
  for (const char* quarter : {"gpt_neox", "stablelm"}) {
    ModelFiles files = folder_of(quarter);
    EXPECT_EQ(rotated(files), 4) << quarter;
    files.metadata.add("partial_rotary_factor", 0.5);
    EXPECT_EQ(rotated(files), 8) << quarter;
  }
}

// transformers ignores the keys of biases that a family does not have.
TEST(FamilyTest, LeavesOutBiasesThatItDoesNotHave) {
  for (const char* type : {"qwen2", "qwen3", "stablelm"}) {
    ModelFiles files = with_tensors(folder_of(type));
    files.metadata.add("mlp_bias", true);
    if (std::string(type) != "qwen3") files.metadata.add("attention_bias", true);
    EXPECT_EQ(error_of([&] { describe_model(files); }), "no error") << type;
  }
}

TEST(StableLmTest, RefusesNormsOfItsOwnForEachHead) {
  ModelFiles files = folder_of("stablelm");
  ModelFiles gguf = gguf_of(files);
  files.metadata.add("qk_layernorm", true);
  EXPECT_THAT(error_of([&] { describe_model(files); }), HasSubstr("tiny: qk_layernorm"));
  TensorInfo norm;
  norm.name = "blk.1.attn_k_norm.weight";
  norm.shape = {4, 16};
  gguf.tensors.push_back(norm);
  EXPECT_THAT(error_of([&] { describe_model(gguf); }), HasSubstr("tiny.gguf: qk_layernorm"));
}

// llama.cpp's converter writes use_parallel_residual even if the folder lacks the key.
TEST(StableLmTest, HasParallelBranchesWhereAGgufHasNoNormOfTheMlp) {
  ModelFiles folder = folder_of("stablelm");
  ModelFiles gguf = gguf_of(folder);
  gguf.metadata = Metadata("tiny.gguf");
  const ModelFiles converted = gguf_of(folder);
  for (const std::string_view key : converted.metadata.keys()) {
    if (key.ends_with("use_parallel_residual")) continue;
    gguf.metadata.add(std::string(key), *converted.metadata.find(key));
  }
  EXPECT_EQ(kStableLmFamily.read_shape(gguf).wiring, ResidualWiring::kPreNorm);
  gguf.metadata.add("stablelm.use_parallel_residual", true);
  EXPECT_EQ(kStableLmFamily.read_shape(gguf).wiring, ResidualWiring::kPreNorm);

  folder.metadata.add("use_parallel_residual", true);
  EXPECT_EQ(kStableLmFamily.read_shape(gguf_of(folder)).wiring, ResidualWiring::kParallel);
  EXPECT_EQ(error_of([&] { describe_model(gguf_of(folder)); }), "no error");
}

TEST(CommandRTest, HasTheReferencesDefaults) {
  ModelFiles files = folder_of("cohere");
  TransformerShape shape = kCommandRFamily.read_shape(files);
  EXPECT_EQ(shape.logit_scale, 0.0625F);
  EXPECT_EQ(shape.norm_eps, 1e-5F);
  EXPECT_EQ(shape.rope.theta, 500000);
  EXPECT_EQ(shape.rope.style, RopeStyle::kInterleaved);
  EXPECT_TRUE(shape.tied_head);
  EXPECT_FALSE(shape.norm_bias || shape.qkv_bias || shape.attention_out_bias);
  EXPECT_EQ(shape.max_context, 128);

  files.metadata.add("model_max_length", int64_t{1024});
  files.metadata.add("attention_bias", true);
  shape = kCommandRFamily.read_shape(files);
  EXPECT_EQ(shape.max_context, 1024);
  EXPECT_TRUE(shape.qkv_bias && shape.attention_out_bias);
}

TEST(CommandRTest, ScalesLogitsInBothFormats) {
  const auto scale_in = [](const ModelFiles& files) {
    return kCommandRFamily.read_shape(files).logit_scale;
  };
  ModelFiles files = folder_of("cohere");
  files.metadata.add("logit_scale", 0.25);
  EXPECT_EQ(scale_in(files), 0.25F);
  const ModelFiles gguf = gguf_of(files);
  EXPECT_EQ(scale_in(gguf), 0.25F);
  ModelFiles without = without_key(gguf, "command-r.logit_scale");
  EXPECT_EQ(scale_in(without), 1);
  without.metadata.add("command-r.logit_scale", 0.0);
  EXPECT_EQ(scale_in(without), 1);

  ModelFiles absurd = folder_of("cohere");
  absurd.metadata.add("logit_scale", -1.0);
  EXPECT_THAT(error_of([&] { scale_in(absurd); }), HasSubstr("the factor of logits is -1"));
}

TEST(CommandRTest, RefusesNormsOfItsOwnForEachHead) {
  ModelFiles files = folder_of("cohere");
  ModelFiles gguf = gguf_of(files);
  files.metadata.add("use_qk_norm", true);
  EXPECT_THAT(error_of([&] { describe_model(files); }), HasSubstr("tiny: use_qk_norm"));
  TensorInfo norm;
  norm.name = "blk.1.attn_q_norm.weight";
  norm.shape = {4, 16};
  gguf.tensors.push_back(norm);
  EXPECT_THAT(error_of([&] { describe_model(gguf); }), HasSubstr("tiny.gguf: use_qk_norm"));
}

TEST(GlmTest, HasTheReferencesDefaults) {
  ModelFiles files = folder_of("glm");
  const TransformerShape shape = kGlmFamily.read_shape(files);
  EXPECT_EQ(shape.head_dim, 128);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.norm_eps, 1.5625e-7F);
  EXPECT_EQ(shape.rope.dims, 64);
  EXPECT_EQ(shape.rope.theta, 10000);
  EXPECT_EQ(shape.rope.style, RopeStyle::kInterleaved);
  EXPECT_TRUE(shape.qkv_bias);
  EXPECT_FALSE(shape.attention_out_bias || shape.tied_head);
  files.metadata.add("attention_bias", false);
  EXPECT_FALSE(kGlmFamily.read_shape(files).qkv_bias);
}

// llama.cpp's converter stacks q, k and v only if the folder has them stacked.
TEST(GlmTest, ReadsGgufFilesWithATensorForEachOfQkv) {
  const ModelFiles folder = folder_of("glm");
  const TransformerShape expected = kGlmFamily.read_shape(folder);
  const ModelFiles stacked = gguf_of(folder);
  ModelFiles with_query;
  with_query.tensors.emplace_back().name = "blk.0.attn_q.weight";
  ModelFiles separate = stacked;
  separate.tensors.clear();
  add_tensors(kGlmFamily.names(with_query), make_spec(expected), separate);
  separate.finish();
  EXPECT_EQ(std::ssize(separate.tensors), std::ssize(stacked.tensors) + 2 * 4);
  for (const ModelFiles& files : {stacked, separate}) {
    EXPECT_EQ(error_of([&] { describe_model(files); }), "no error");
    const TransformerShape read = family_of(files).read_shape(files);
    EXPECT_TRUE(read.qkv_bias);
    EXPECT_EQ(read.rope, expected.rope);
    EXPECT_EQ(read.kv_heads, expected.kv_heads);
    EXPECT_EQ(read.head_dim, expected.head_dim);
    EXPECT_EQ(read.norm_eps, expected.norm_eps);
  }
  for (const char* name : {"blk.1.attn_k.weight", "blk.1.attn_v.bias"}) {
    ModelFiles files = separate;
    std::erase_if(files.tensors, [&](const TensorInfo& tensor) { return tensor.name == name; });
    files.finish();
    EXPECT_THAT(error_of([&] { describe_model(files); }),
                HasSubstr(std::string(name) + "' is missing"));
  }
}

ModelFiles chatglm_folder() {
  ModelFiles files = folder_of("chatglm");
  files.metadata.add("multi_query_attention", true);
  files.metadata.add("kv_channels", int64_t{16});
  return files;
}

TEST(ChatGlmTest, HasTheReferencesDefaults) {
  ModelFiles files = chatglm_folder();
  TransformerShape shape = kChatGlmFamily.read_shape(files);
  EXPECT_EQ(shape.kv_heads, 1);
  EXPECT_EQ(shape.norm_eps, 1e-5F);
  EXPECT_EQ(shape.rope.dims, 8);
  EXPECT_EQ(shape.rope.theta, 10000);
  EXPECT_EQ(shape.rope.style, RopeStyle::kInterleaved);
  EXPECT_FALSE(shape.qkv_bias);

  files.metadata.add("multi_query_group_num", int64_t{2});
  files.metadata.add("add_qkv_bias", true);
  files.metadata.add("rope_ratio", int64_t{500});
  files.metadata.add("layernorm_epsilon", 1.5625e-7);
  files.metadata.add("tie_word_embeddings", true);  // the model's code shares no weights
  shape = kChatGlmFamily.read_shape(files);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_TRUE(shape.qkv_bias);
  EXPECT_EQ(shape.rope.theta, 5e6);
  EXPECT_EQ(shape.norm_eps, 1.5625e-7F);
  EXPECT_FALSE(shape.tied_head);

  const ModelFiles gguf = gguf_of(files);
  const TransformerShape read = family_of(gguf).read_shape(gguf);
  EXPECT_EQ(read.rope, shape.rope);
  EXPECT_EQ(read.kv_heads, 2);
  EXPECT_TRUE(read.qkv_bias);
}

TEST(ChatGlmTest, RefusesWhatNoPublishedModelHas) {
  const auto refusal = [](const ModelFiles& files) {
    return error_of([&] { describe_model(files); });
  };
  const auto with = [](const char* key, const Value& value) {
    ModelFiles files = without_key(chatglm_folder(), key);
    files.metadata.add(key, value);
    return files;
  };
  for (const char* key :
       {"position_encoding_2d", "apply_residual_connection_post_layernorm", "add_bias_linear"}) {
    EXPECT_THAT(refusal(with(key, true)), HasSubstr(key + std::string(" is true"))) << key;
  }
  for (const char* key : {"multi_query_attention", "rmsnorm", "post_layer_norm", "original_rope"})
    EXPECT_THAT(refusal(with(key, false)), HasSubstr(key + std::string(" is false"))) << key;
  EXPECT_THAT(refusal(without_key(chatglm_folder(), "multi_query_attention")),
              HasSubstr("tiny: multi_query_attention is false"));
  EXPECT_THAT(refusal(with("pre_seq_len", int64_t{128})), HasSubstr("tiny: pre_seq_len"));
  EXPECT_THAT(refusal(with("quantization_bit", int64_t{4})), HasSubstr("tiny: quantization_bit"));
  EXPECT_THAT(refusal(with("rope_ratio", -1.0)), HasSubstr("rope base frequency"));

  ModelFiles of_2023 = with("transformers_version", std::string("4.27.1"));
  EXPECT_EQ(refusal(with_tensors(of_2023)), "no error");
  of_2023.metadata.add("rope_ratio", int64_t{16});
  EXPECT_THAT(refusal(of_2023), HasSubstr("tiny: rope_ratio 16"));
}

}  // namespace
}  // namespace spillway
