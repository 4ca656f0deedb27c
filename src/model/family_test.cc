// SPDX-License-Identifier: Apache-2.0
// Tests that families treat missing and unknown keys of files as the reference implementation does.
#include "model/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/test_scoped_folder.h"
#include "model/gguf_input.h"
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
  for (const char* whole : {"llama", "qwen2", "qwen3", "falcon"})
    EXPECT_EQ(rotated(folder_of(whole)), 16);
  EXPECT_EQ(rotated(folder_of("phi")), 8);
  for (const char* quarter : {"gpt_neox", "stablelm"}) {
    ModelFiles files = folder_of(quarter);
    EXPECT_EQ(rotated(files), 4) << quarter;
    files.metadata.add("partial_rotary_factor", 0.5);
    EXPECT_EQ(rotated(files), 8) << quarter;
  }
}

// transformers ignores the keys of biases that a family does not have.
TEST(FamilyTest, LeavesOutBiasesThatItDoesNotHave) {
  for (const char* type : {"qwen2", "qwen3", "stablelm", "falcon"}) {
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

// Makes a folder with Falcon's first names for its keys, or with the present ones.
ModelFiles falcon_of(const std::string& type,
                     std::initializer_list<std::pair<const char*, Value>> entries) {
  ModelFiles files;
  files.format = ModelFiles::Format::kHuggingFace;
  files.name = "tiny";
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", type);
  const bool old = type != "falcon";
  files.metadata.add("hidden_size", int64_t{64});
  files.metadata.add(old ? "n_layer" : "num_hidden_layers", int64_t{2});
  files.metadata.add(old ? "n_head" : "num_attention_heads", int64_t{4});
  files.metadata.add("vocab_size", int64_t{100});
  for (const auto& [key, value] : entries) files.metadata.add(key, value);
  return files;
}

TEST(FalconTest, HasTheSizesThatItsConfigurationLeavesOut) {
  for (const char* type : {"falcon", "RefinedWebModel"}) {
    const TransformerShape shape = kFalconFamily.read_shape(falcon_of(type, {}));
    EXPECT_EQ(shape.kv_heads, 1);
    EXPECT_EQ(shape.ffn, 256);
    EXPECT_EQ(shape.max_context, 2048);
    EXPECT_EQ(shape.activation, ActivationKind::kGelu);
    EXPECT_EQ(shape.wiring, ResidualWiring::kParallel);
    EXPECT_TRUE(shape.tied_head);
    EXPECT_EQ(error_of([&] { describe_model(with_tensors(falcon_of(type, {}))); }), "no error");
  }
}

// transformers writes a count of KV heads also where it has no effect.
TEST(FalconTest, ReadsKvHeadsAndNormsOfTheNewDecoder) {
  const auto read = [](const ModelFiles& files) { return kFalconFamily.read_shape(files); };
  EXPECT_EQ(read(falcon_of("falcon", {{"num_kv_heads", int64_t{4}}})).kv_heads, 1);
  const TransformerShape first = read(falcon_of("RefinedWeb", {{"n_head_kv", int64_t{2}}}));
  EXPECT_EQ(first.kv_heads, 2);
  EXPECT_EQ(first.wiring, ResidualWiring::kParallelTwoNorms);
  const auto with_norms = [&](int64_t norms) {
    return falcon_of("falcon", {{"new_decoder_architecture", true},
                                {"multi_query", false},
                                {"num_ln_in_parallel_attn", norms}});
  };
  EXPECT_EQ(read(with_norms(1)).kv_heads, 4);
  EXPECT_EQ(read(with_norms(1)).wiring, ResidualWiring::kParallel);
  EXPECT_EQ(read(with_norms(2)).wiring, ResidualWiring::kParallelTwoNorms);
  EXPECT_THAT(error_of([&] { read(with_norms(3)); }), HasSubstr("num_ln_in_parallel_attn"));
}

TEST(FalconTest, RefusesOtherAttentionAndWiring) {
  const auto refusal = [](const char* key, bool value) {
    return error_of([&] { kFalconFamily.read_shape(falcon_of("falcon", {{key, value}})); });
  };
  EXPECT_THAT(refusal("alibi", true), HasSubstr("tiny: alibi is true"));
  EXPECT_THAT(refusal("bias", true), HasSubstr("tiny: bias is true"));
  EXPECT_THAT(refusal("parallel_attn", false), HasSubstr("tiny: parallel_attn is false"));
  EXPECT_THAT(refusal("multi_query", false), HasSubstr("tiny: multi_query is false"));
  EXPECT_EQ(refusal("multi_query", true), "no error");
}

// llama.cpp calls the norm of the MLP attn_norm, and has no key that says how many norms there are.
TEST(FalconTest, TellsTheNormsOfAGgufByItsTensors) {
  const ModelFiles folder = falcon_of("RefinedWeb", {{"n_head_kv", int64_t{2}}});
  const ModelFiles converted = gguf_of(folder);
  ModelFiles gguf = converted;
  gguf.metadata = Metadata("tiny.gguf");
  for (const std::string_view key : converted.metadata.keys()) {
    if (key.ends_with("use_two_norms")) continue;
    gguf.metadata.add(std::string(key), *converted.metadata.find(key));
  }
  EXPECT_EQ(kFalconFamily.read_shape(gguf).wiring, ResidualWiring::kParallelTwoNorms);
  const auto tensor_of = [](const ModelFiles& files, std::string_view weight) {
    const ModelSpec spec = make_spec(kFalconFamily.read_shape(files));
    for (const WeightSlot& slot : weight_slots(spec)) {
      if (slot.name == weight) return place_of(kFalconFamily.names(files), spec, slot).name;
    }
    return std::string();
  };
  EXPECT_EQ(tensor_of(gguf, "attention_norm"), "blk.0.attn_norm_2.weight");
  EXPECT_EQ(tensor_of(gguf, "mlp_norm"), "blk.0.attn_norm.weight");
  EXPECT_EQ(tensor_of(gguf_of(falcon_of("falcon", {})), "attention_norm"),
            "blk.0.attn_norm.weight");
}

TEST(FalconTest, IsConvertedWithTheNormOfEachBranch) {
  const ModelFiles folder = with_tensors(falcon_of("RefinedWeb", {{"n_head_kv", int64_t{2}}}));
  const ConvertInput made = gguf_input(folder);
  for (const auto& [from, to] :
       {std::pair{"transformer.h.1.ln_attn.bias", "blk.1.attn_norm_2.bias"},
        {"transformer.h.1.ln_mlp.bias", "blk.1.attn_norm.bias"}}) {
    const auto found = std::ranges::find(made.tensors, to, &ConvertTensor::name);
    ASSERT_NE(found, made.tensors.end()) << to;
    EXPECT_EQ(found->parts.front().extent.offset, folder.get(from).extent.offset) << to;
  }
}

TEST(PhiTest, HasAllBiasesWhateverTheConfigurationSays) {
  ModelFiles files = folder_of("phi");
  files.metadata.add("attention_bias", false);
  const TransformerShape shape = kPhi2Family.read_shape(files);
  EXPECT_TRUE(shape.qkv_bias && shape.attention_out_bias && shape.mlp_bias && shape.head_bias);
  EXPECT_EQ(shape.activation, ActivationKind::kGeluTanh);
  EXPECT_FALSE(shape.tied_head);
}

TEST(PhiTest, RefusesNormsOfHeadsAndATiedHead) {
  for (const char* key : {"qk_layernorm", "tie_word_embeddings"}) {
    ModelFiles files = folder_of("phi");
    files.metadata.add(key, true);
    const char* const why = key[0] == 'q' ? "tiny: qk_layernorm" : "tiny: a head that shares";
    EXPECT_THAT(error_of([&] { describe_model(files); }), HasSubstr(why));
  }
}

TEST(PhiTest, ReadsGgufFilesThatHaveQueriesKeysAndValuesInOneTensor) {
  ModelFiles gguf = gguf_of(folder_of("phi")), of_qkv;
  const ModelSpec spec = make_spec(kPhi2Family.read_shape(gguf));
  of_qkv.tensors.resize(1);
  of_qkv.tensors.front().name = "blk.0.attn_qkv.weight";
  gguf.tensors.clear();
  add_tensors(kPhi2Family.names(of_qkv), spec, gguf);
  gguf.finish();
  const Model model = describe_model(gguf);
  const TensorInfo& stacked = gguf.get("blk.0.attn_qkv.weight");
  EXPECT_EQ(stacked.shape, (std::vector<int64_t>{3 * 64, 64}));
  uint64_t next = stacked.extent.offset;
  for (const BoundWeight& weight : model.weights) {
    const WeightSlot& slot = weight.slot;
    if (slot.layer != 0 || slot.op_name != "qkv" || slot.is_bias) continue;
    EXPECT_EQ(weight.extent->offset, next) << slot.name;
    next += weight.extent->bytes;
  }
  EXPECT_EQ(next, stacked.extent.offset + stacked.extent.bytes);
}

}  // namespace
}  // namespace spillway
