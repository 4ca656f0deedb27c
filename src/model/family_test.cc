// SPDX-License-Identifier: Apache-2.0
// Tests that families treat missing and unknown keys of files as the reference implementation does.
#include "model/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
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
  for (const char* whole : {"llama", "qwen2", "qwen3", "phi3", "smollm3", "falcon", "cohere"})
    EXPECT_EQ(rotated(folder_of(whole)), 16) << whole;
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
  for (const char* type : {"qwen2", "qwen3", "stablelm", "phi3", "falcon"}) {
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

template <class T>
NumberArray numbers(NumberType type, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {type, {bytes.begin(), bytes.end()}};
}
NumberArray floats(const std::vector<double>& values) { return numbers(NumberType::kF64, values); }
NumberArray ints(const std::vector<int64_t>& values) { return numbers(NumberType::kI64, values); }

// Makes a Phi-3 folder with a context of 1,024 positions, of which 128 are the original ones.
ModelFiles longrope_folder(const char* type, const std::vector<double>& shorter,
                           const std::vector<double>& longer = std::vector<double>(8, 2.0)) {
  ModelFiles files = folder_of("phi3");
  ModelFiles made = files;
  made.metadata = Metadata("config.json");
  for (const std::string_view key : files.metadata.keys()) {
    if (key != "max_position_embeddings")
      made.metadata.add(std::string(key), *files.metadata.find(key));
  }
  made.metadata.add("max_position_embeddings", int64_t{1024});
  made.metadata.add("original_max_position_embeddings", int64_t{128});
  made.metadata.add("rope_scaling.type", std::string(type));
  made.metadata.add("rope_scaling.short_factor", floats(shorter));
  made.metadata.add("rope_scaling.long_factor", floats(longer));
  return made;
}

TransformerShape quietly_read(const ModelFiles& files, std::string* said = nullptr) {
  testing::internal::CaptureStderr();
  TransformerShape shape = family_of(files).read_shape(files);
  const std::string line = testing::internal::GetCapturedStderr();
  if (said != nullptr) *said = line;
  return shape;
}

TEST(LongRopeTest, HasTheShortFactorsAndTheirContext) {
  const std::vector<double> factors = {1, 1.125, 1.25, 1.5, 2, 2.5, 3, 4};
  for (const char* type : {"longrope", "su"}) {
    std::string said;
    const TransformerShape shape = quietly_read(longrope_folder(type, factors), &said);
    const auto plain = base_inverse_frequencies(shape.rope);
    ASSERT_EQ(shape.rope.inverse_frequencies.size(), 8U);
    for (size_t i = 0; i < 8; ++i)
      EXPECT_FLOAT_EQ(shape.rope.inverse_frequencies[i], static_cast<float>(plain[i] / factors[i]));
    EXPECT_FLOAT_EQ(shape.rope.scale,
                    static_cast<float>(std::sqrt(1 + std::log(8.0) / std::log(128.0))));
    EXPECT_EQ(shape.max_context, 128);
    EXPECT_THAT(said, HasSubstr("tiny: the context is 128 positions, not 1024: positions beyond "
                                "it need the long factors"));
  }
}

TEST(LongRopeTest, TakesTheAttentionFactorOfTheFile) {
  ModelFiles files = longrope_folder("longrope", std::vector<double>(8, 1.0));
  files.metadata.add("rope_scaling.factor", 1.0);
  EXPECT_EQ(quietly_read(files).rope.scale, 1) << "a factor goes before the two contexts";
  files.metadata.add("rope_scaling.attention_factor", 1.5);
  EXPECT_EQ(quietly_read(files).rope.scale, 1.5F);
}

TEST(LongRopeTest, KeepsAContextThatIsNoLongerThanTheOriginalOne) {
  ModelFiles files = folder_of("phi3");  // 128 positions of 4,096
  files.metadata.add("rope_scaling.type", std::string("longrope"));
  files.metadata.add("rope_scaling.short_factor", floats(std::vector<double>(8, 1.0)));
  files.metadata.add("rope_scaling.long_factor", floats(std::vector<double>(8, 2.0)));
  std::string said;
  const TransformerShape shape = quietly_read(files, &said);
  EXPECT_EQ(shape.max_context, 128);
  EXPECT_EQ(shape.rope.scale, 1);
  EXPECT_EQ(said, "");
}

TEST(LongRopeTest, RefusesFactorsThatMakeNoSense) {
  const auto refusal = [](const std::vector<double>& shorter, const std::vector<double>& longer) {
    const ModelFiles files = longrope_folder("longrope", shorter, longer);
    return error_of([&] { family_of(files).read_shape(files); });
  };
  const std::vector<double> ones(8, 1.0), seven(7, 1.0);
  EXPECT_EQ(refusal(seven, ones), "tiny: rope_scaling.short_factor has 7 elements, 8 expected");
  EXPECT_EQ(refusal(ones, seven), "tiny: rope_scaling.long_factor has 7 elements, 8 expected");
  EXPECT_EQ(refusal(ones, {}), "tiny: rope_scaling.long_factor has 0 elements, 8 expected");
  for (const double bad : {0.0, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<double> factors = ones;
    factors[5] = bad;
    EXPECT_THAT(refusal(factors, ones), HasSubstr("tiny: rope_scaling.short_factor has a divisor"));
    EXPECT_THAT(refusal(ones, factors), HasSubstr("tiny: rope_scaling.long_factor has a divisor"));
  }
  ModelFiles part = longrope_folder("longrope", ones, ones);
  part.metadata.add("partial_rotary_factor", 0.75);
  EXPECT_THAT(error_of([&] { family_of(part).read_shape(part); }),
              HasSubstr("has 8 elements, 6 expected"));
  ModelFiles lacks = folder_of("phi3");
  lacks.metadata.add("rope_scaling.type", std::string("longrope"));
  EXPECT_THAT(error_of([&] { family_of(lacks).read_shape(lacks); }),
              HasSubstr("rope_scaling.long_factor"));
}

TEST(Phi3Test, HasTheUsualEpsilonAndHeadWhereTheFileDoesNotSayThem) {
  ModelFiles files = folder_of("phi3");
  EXPECT_EQ(kPhi3Family.read_shape(files).norm_eps, 1e-5F);
  EXPECT_FALSE(kPhi3Family.read_shape(files).tied_head);
  files.metadata.add("rms_norm_eps", 1e-6);
  EXPECT_EQ(kPhi3Family.read_shape(files).norm_eps, 1e-6F);
}

// Makes a SmolLM3 folder of eight layers.
ModelFiles smollm3_folder() {
  const ModelFiles two = folder_of("smollm3");
  ModelFiles files = two;
  files.metadata = Metadata("config.json");
  for (const std::string_view key : two.metadata.keys()) {
    if (key != "num_hidden_layers") files.metadata.add(std::string(key), *two.metadata.find(key));
  }
  files.metadata.add("num_hidden_layers", int64_t{8});
  return files;
}
int no_rope_every(const ModelFiles& files) {
  return family_of(files).read_shape(files).no_rope_every;
}

TEST(SmolLm3Test, HasTheUsualSettingsWhereTheFileDoesNotSayThem) {
  ModelFiles files = smollm3_folder();
  files.metadata.add("sliding_window", int64_t{16});  // which is not used
  const TransformerShape shape = kSmolLm3Family.read_shape(files);
  EXPECT_TRUE(shape.tied_head);
  EXPECT_EQ(shape.rope.theta, 2e6);
  EXPECT_EQ(shape.no_rope_every, 4);
  EXPECT_EQ(shape.sliding_window, 0);
  EXPECT_FALSE(shape.qkv_bias || shape.attention_out_bias || shape.mlp_bias);
  files.metadata.add("tie_word_embeddings", false);
  files.metadata.add("rope_theta", 5e6);
  EXPECT_FALSE(kSmolLm3Family.read_shape(files).tied_head);
  EXPECT_EQ(kSmolLm3Family.read_shape(files).rope.theta, 5e6);
}

TEST(SmolLm3Test, ReadsWhichLayersDoNotRotate) {
  const auto with_list = [](const std::vector<int64_t>& rotates) {
    ModelFiles files = smollm3_folder();
    files.metadata.add("no_rope_layers", ints(rotates));
    return files;
  };
  EXPECT_EQ(no_rope_every(with_list({1, 1, 1, 0, 1, 1, 1, 0})), 4);
  EXPECT_EQ(no_rope_every(with_list({1, 1, 0, 1, 1, 0, 1, 1})), 3);
  EXPECT_EQ(no_rope_every(with_list({1, 1, 1, 1, 1, 1, 1, 0})), 8);
  EXPECT_EQ(no_rope_every(with_list({0, 0, 0, 0, 0, 0, 0, 0})), 1);
  EXPECT_EQ(no_rope_every(with_list({1, 1, 1, 1, 1, 1, 1, 1})), 0);
  EXPECT_EQ(no_rope_every(with_list({1, 0, 1, 0, 1, 0, 1, 0, 0, 0})), 2) << "more than the layers";
  for (const std::vector<int64_t>& other : {std::vector<int64_t>{1, 1, 1, 0, 1, 1, 1, 1},
                                            {0, 1, 1, 1, 0, 1, 1, 1},
                                            {1, 1, 1, 0, 1, 1, 0, 0},
                                            {1, 1, 1, 0}}) {
    EXPECT_THAT(error_of([&] { no_rope_every(with_list(other)); }),
                HasSubstr("tiny: no_rope_layers"));
  }

  for (const auto& [interval, every] : {std::pair{2, 2}, {8, 8}, {9, 0}}) {
    ModelFiles files = smollm3_folder();
    files.metadata.add("no_rope_layer_interval", int64_t{interval});
    EXPECT_EQ(no_rope_every(files), every);
  }
  ModelFiles none = smollm3_folder();
  none.metadata.add("no_rope_layer_interval", int64_t{0});
  EXPECT_THAT(error_of([&] { no_rope_every(none); }), HasSubstr("no_rope_layer_interval"));
}

TEST(SmolLm3Test, RefusesWindows) {
  ModelFiles files = smollm3_folder();
  files.metadata.add("use_sliding_window", true);
  EXPECT_THAT(error_of([&] { describe_model(files); }), HasSubstr("tiny: use_sliding_window"));
}

// GGUF has no key for the interval, and llama.cpp always takes the usual one.
TEST(SmolLm3Test, HasTheUsualIntervalInGgufFiles) {
  const ModelFiles gguf = gguf_of(smollm3_folder());
  EXPECT_EQ(no_rope_every(gguf), 4);
  EXPECT_EQ(no_rope_every(gguf_of(folder_of("smollm3"))), 0) << "two layers";
  ModelFiles other = smollm3_folder();
  other.metadata.add("no_rope_layer_interval", int64_t{2});
  EXPECT_THAT(error_of([&] { gguf_of(other); }), HasSubstr("tiny: no_rope_layers cannot be"));
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

TEST(Gpt2Test, RefusesAttentionOfAnotherKind) {
  ModelFiles files = folder_of("gpt2");
  EXPECT_EQ(family_of(files).read_shape(files).ffn, 96);
  EXPECT_TRUE(family_of(files).read_shape(files).tied_head);
  files.metadata.add("scale_attn_by_inverse_layer_idx", true);
  EXPECT_EQ(error_of([&] { family_of(files).read_shape(files); }),
            "tiny: scale_attn_by_inverse_layer_idx is true, which is not supported in a model of "
            "the family gpt2");
}

// The factor of branches goes into the embeddings and the epsilon of norms.
TEST(GraniteTest, FoldsTheFactorOfBranches) {
  ModelFiles files = folder_of("granite");
  files.metadata.add("rms_norm_eps", 1e-5);
  files.metadata.add("embedding_multiplier", 12.0);
  files.metadata.add("residual_multiplier", 0.25);
  files.metadata.add("attention_multiplier", 0.5);
  files.metadata.add("logits_scaling", 8.0);
  for (const ModelFiles& tried : {files, gguf_of(files)}) {
    const TransformerShape shape = family_of(tried).read_shape(tried);
    EXPECT_FLOAT_EQ(shape.embedding_scale, 48);
    EXPECT_FLOAT_EQ(shape.norm_eps, 16e-5F);
    EXPECT_FLOAT_EQ(shape.attention_scale, 0.5F);
    EXPECT_FLOAT_EQ(shape.logit_scale, 0.125F);
  }
  ModelFiles bad = folder_of("granite");
  bad.metadata.add("residual_multiplier", 0.0);
  EXPECT_EQ(error_of([&] { family_of(bad).read_shape(bad); }),
            "tiny: the factor of branches is 0, which makes no sense");
  ModelFiles tiny = folder_of("granite");
  tiny.metadata.add("residual_multiplier", 1e-30);
  EXPECT_THAT(error_of([&] { family_of(tiny).read_shape(tiny); }), HasSubstr("makes no sense"));
}

TEST(Gemma3Test, HasAWindowAndARopeOfItsOwnInMostLayers) {
  ModelFiles files = folder_of("gemma3_text");
  files.metadata.add("sliding_window", int64_t{32});
  files.metadata.add("sliding_window_pattern", int64_t{2});
  for (const ModelFiles& tried : {files, gguf_of(files)}) {
    const ModelSpec spec = make_spec(family_of(tried).read_shape(tried));
    ASSERT_EQ(spec.layer_count(), 2);
    ASSERT_EQ(spec.ropes.size(), 2U);
    EXPECT_EQ(spec.ropes[1].theta, 10000);
    EXPECT_EQ(spec.layer(0).find("attention")->attention.window, 32);
    EXPECT_EQ(spec.layer(0).find("rope")->rope, 1);
    EXPECT_EQ(spec.layer(1).find("attention")->attention.window, 0);
    EXPECT_EQ(spec.layer(1).find("rope")->rope, 0);
  }
}

TEST(Gemma3Test, RefusesWhatItDoesNotHave) {
  const auto refusal = [](const char* key, const Value& value) {
    ModelFiles files = folder_of("gemma3_text");
    files.metadata.add(key, value);
    return error_of([&] { family_of(files).read_shape(files); });
  };
  EXPECT_EQ(refusal("attn_logit_softcapping", 50.0),
            "tiny: attn_logit_softcapping is not supported yet");
  EXPECT_EQ(refusal("layer_types", StringArray(std::vector<std::string>{"full_attention"})),
            "tiny: layer_types has 1 elements for 2 layers");
  EXPECT_EQ(refusal("rope_local_base_freq", 0.0), "tiny: rope base frequency 0 makes no sense");
  EXPECT_EQ(refusal("query_pre_attn_scalar", -1.0),
            "tiny: query_pre_attn_scalar is -1, which makes no sense");
}

}  // namespace
}  // namespace spillway
