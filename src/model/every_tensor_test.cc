// SPDX-License-Identifier: Apache-2.0
// Tests that no tensor of a family's table is left out silently: each one in turn is missing, has
// an unusable type, or another shape. The tensors come from the tables, so new ones are covered
// automatically, and a tensor that no case switches on fails here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "model/family.h"
#include "model/model.h"
#include "model/test_tensors.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Files of a family with everything that it can have, described but without bytes.
struct Case {
  std::string name;
  const Family* family;
  ModelFiles files;
  ModelSpec spec;
  std::vector<WeightSlot> slots;  // the first weight of each of files.tensors

  bool is_gguf() const { return files.format == ModelFiles::Format::kGguf; }
};

Metadata metadata(std::initializer_list<std::pair<const char*, Value>> entries) {
  Metadata result("config.json");
  for (const auto& [key, value] : entries) result.add(key, value);
  return result;
}

Case make_case(std::string name, const Family& family, ModelFiles::Format format, Metadata settings,
               const TransformerShape* shape = nullptr) {
  Case made{std::move(name), &family, {}, {}, {}};
  made.files.format = format;
  made.files.name = made.name;
  made.files.metadata = std::move(settings);
  made.spec = make_spec(shape != nullptr ? *shape : family.read_shape(made.files));
  made.slots = add_tensors(family.names(made.files), made.spec, made.files);
  made.files.finish();
  return made;
}

std::vector<Case> cases() {
  using Format = ModelFiles::Format;
  std::vector<Case> all;
  all.push_back(make_case("llama", kLlamaFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("llama")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"attention_bias", true},
                                    {"mlp_bias", true},
                                    {"tie_word_embeddings", false}})));
  all.push_back(make_case("opt", kOptFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("opt")},
                                    {"hidden_size", int64_t{64}},
                                    {"word_embed_proj_dim", int64_t{32}},
                                    {"ffn_dim", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"tie_word_embeddings", false}})));
  for (const char* type : {"qwen2", "qwen3"}) {
    all.push_back(make_case(type, kQwenFamily, Format::kHuggingFace,
                            metadata({{"model_type", std::string(type)},
                                      {"hidden_size", int64_t{64}},
                                      {"intermediate_size", int64_t{96}},
                                      {"num_hidden_layers", int64_t{2}},
                                      {"num_attention_heads", int64_t{4}},
                                      {"num_key_value_heads", int64_t{2}},
                                      {"vocab_size", int64_t{100}},
                                      {"max_position_embeddings", int64_t{128}},
                                      {"attention_bias", std::string(type) == "qwen3"},
                                      {"tie_word_embeddings", false}})));
  }
  all.push_back(make_case("gpt_neox", kNeoXFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("gpt_neox")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"rotary_pct", 0.25}})));
  all.push_back(make_case("stablelm", kStableLmFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("stablelm")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"use_qkv_bias", true}})));
  all.push_back(make_case("cohere", kCommandRFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("cohere")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"attention_bias", true},
                                    {"tie_word_embeddings", false}})));
  all.push_back(make_case("glm", kGlmFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("glm")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"head_dim", int64_t{16}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}}})));
  all.push_back(make_case("chatglm", kChatGlmFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("chatglm")},
                                    {"hidden_size", int64_t{64}},
                                    {"ffn_hidden_size", int64_t{96}},
                                    {"num_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"multi_query_attention", true},
                                    {"multi_query_group_num", int64_t{2}},
                                    {"kv_channels", int64_t{16}},
                                    {"padded_vocab_size", int64_t{100}},
                                    {"seq_length", int64_t{128}},
                                    {"add_qkv_bias", true}})));
  all.push_back(make_case("gpt2", kGpt2Family, Format::kHuggingFace,
                          metadata({{"model_type", std::string("gpt2")},
                                    {"n_embd", int64_t{64}},
                                    {"n_layer", int64_t{2}},
                                    {"n_head", int64_t{4}},
                                    {"vocab_size", int64_t{100}},
                                    {"n_positions", int64_t{128}},
                                    {"tie_word_embeddings", false}})));
  all.push_back(make_case("gptj", kGptJFamily, Format::kHuggingFace,
                          metadata({{"model_type", std::string("gptj")},
                                    {"n_embd", int64_t{64}},
                                    {"n_layer", int64_t{2}},
                                    {"n_head", int64_t{4}},
                                    {"rotary_dim", int64_t{8}},
                                    {"vocab_size", int64_t{100}},
                                    {"n_positions", int64_t{128}}})));
  // One with a KV head and a norm in each layer, and one with several KV heads and two norms.
  for (const bool is_new : {false, true}) {
    all.push_back(make_case(is_new ? "falcon-40b" : "falcon-7b", kFalconFamily,
                            Format::kHuggingFace,
                            metadata({{"model_type", std::string("falcon")},
                                      {"hidden_size", int64_t{64}},
                                      {"ffn_hidden_size", int64_t{96}},
                                      {"num_hidden_layers", int64_t{2}},
                                      {"num_attention_heads", int64_t{4}},
                                      {"num_kv_heads", int64_t{2}},
                                      {"vocab_size", int64_t{100}},
                                      {"new_decoder_architecture", is_new},
                                      {"tie_word_embeddings", false}})));
  }
  all.push_back(make_case("phi", kPhi2Family, Format::kHuggingFace,
                          metadata({{"model_type", std::string("phi")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}}})));
  all.push_back(make_case("phi3", kPhi3Family, Format::kHuggingFace,
                          metadata({{"model_type", std::string("phi3")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{2}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"sliding_window", int64_t{32}},
                                    {"partial_rotary_factor", 0.75},
                                    {"tie_word_embeddings", false}})));
  all.push_back(make_case("smollm3", kSmolLm3Family, Format::kHuggingFace,
                          metadata({{"model_type", std::string("smollm3")},
                                    {"hidden_size", int64_t{64}},
                                    {"intermediate_size", int64_t{96}},
                                    {"num_hidden_layers", int64_t{4}},
                                    {"num_attention_heads", int64_t{4}},
                                    {"num_key_value_heads", int64_t{2}},
                                    {"vocab_size", int64_t{100}},
                                    {"max_position_embeddings", int64_t{128}},
                                    {"attention_bias", true},
                                    {"mlp_bias", true},
                                    {"tie_word_embeddings", false}})));
  for (const auto& [type, family] : {std::pair("olmo2", &kOlmo2Family),
                                     {"granite", &kGraniteFamily},
                                     {"gemma", &kGemmaFamily},
                                     {"gemma3_text", &kGemma3Family},
                                     {"glm4", &kGlm4Family}}) {
    all.push_back(make_case(type, *family, Format::kHuggingFace,
                            metadata({{"model_type", std::string(type)},
                                      {"hidden_size", int64_t{64}},
                                      {"intermediate_size", int64_t{96}},
                                      {"num_hidden_layers", int64_t{7}},
                                      {"num_attention_heads", int64_t{4}},
                                      {"num_key_value_heads", int64_t{2}},
                                      {"head_dim", int64_t{16}},
                                      {"vocab_size", int64_t{100}},
                                      {"max_position_embeddings", int64_t{128}},
                                      {"sliding_window", int64_t{32}},
                                      {"attention_bias", true},
                                      {"mlp_bias", true},
                                      {"tie_word_embeddings", false}})));
  }
  // Adds each of them as a GGUF file.
  for (size_t i = 0, folders = all.size(); i < folders; ++i) {
    const Family& family = *all[i].family;
    const TransformerShape shape = family.read_shape(all[i].files);
    Metadata keys = metadata({{"general.architecture", shape.family}});
    family.write_gguf_keys(shape, keys);
    all.push_back(make_case(all[i].name + ".gguf", family, Format::kGguf, std::move(keys), &shape));
  }
  return all;
}

std::string complaint(const ModelFiles& files) {
  return error_of([&] { describe_model(files); });
}

ModelFiles without(ModelFiles files, size_t tensor) {
  files.tensors.erase(files.tensors.begin() + static_cast<std::ptrdiff_t>(tensor));
  files.finish();
  return files;
}

TEST(EveryTensorTest, IsOnInACaseOfEveryFamily) {
  for (const Family* family : families()) {
    const auto all = cases();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                            [&](const Case& tried) { return tried.family == family; }));
  }
  for (const Case& tried : cases()) {
    SCOPED_TRACE(tried.name);
    EXPECT_EQ(complaint(tried.files), "no error");
    const std::vector<WeightSlot> slots = weight_slots(tried.spec);
    for (const WeightName& name : tried.family->names(tried.files)) {
      EXPECT_TRUE(std::ranges::any_of(
          slots, [&](const WeightSlot& slot) { return is_name_for(name, slot); }))
          << name.pattern << ": switch it on in cases()";
    }
  }
}

TEST(EveryTensorTest, IsMissedByName) {
  for (const Case& tried : cases()) {
    for (size_t i = 0; i < tried.slots.size(); ++i) {
      const ModelFiles files = without(tried.files, i);
      const std::string& name = tried.files.tensors[i].name;
      if (tried.is_gguf() && name == "output.bias" && tried.family != &kPhi2Family) {
        EXPECT_EQ(complaint(files), "no error");  // a GGUF without it has a head without a bias
        continue;
      }
      const bool has_head_bias = tried.files.find("output.bias") != nullptr;
      if (tried.is_gguf() && name == "output.weight" && !has_head_bias) {
        EXPECT_TRUE(describe_model(files).spec.has_tied_head());  // a GGUF without a head is tied
        continue;
      }
      EXPECT_THAT(complaint(files),
                  AllOf(HasSubstr("'" + name + "'"), HasSubstr(tried.name + ": ")));
    }
  }
}

TEST(EveryTensorTest, IsRefusedInATypeThatCannotBeUsed) {
  for (const Case& tried : cases()) {
    for (size_t i = 0; i < tried.slots.size(); ++i) {
      const std::string& name = tried.files.tensors[i].name;
      if (tried.is_gguf()) {  // matrices may have any of GGUF's types; its reader refuses others
        if (!tried.slots[i].is_vector()) continue;
        ModelFiles files = tried.files;
        files.tensors[i].dtype = DType::kQ4_0;
        EXPECT_THAT(complaint(files), AllOf(HasSubstr("'" + name + "'"), HasSubstr("Q4_0")));
        continue;
      }
      for (const char* type : {"F8_E4M3", "F64", "I32", "F32 without elements"}) {
        ModelFiles files = without(tried.files, i);
        files.unsupported.push_back({name, type});
        EXPECT_THAT(complaint(files), AllOf(HasSubstr("'" + name + "'"), HasSubstr(type)));
        // The tensor may also have the bare network's name.
        if (!name.starts_with("model.")) continue;
        const std::string bare = name.substr(6);
        files.unsupported.back().name = bare;
        EXPECT_THAT(complaint(files), AllOf(HasSubstr("'" + bare + "'"), HasSubstr(type)));
      }
    }
  }
}

TEST(EveryTensorTest, IsRefusedInAnotherShape) {
  for (const Case& tried : cases()) {
    for (size_t i = 0; i < tried.slots.size(); ++i) {
      const TensorInfo& tensor = tried.files.tensors[i];
      std::vector<std::vector<int64_t>> shapes = {{}, {1}, {tensor.cols() + 1}, {2, tensor.cols()}};
      if (!tried.slots[i].is_vector()) {
        shapes.push_back({tensor.rows(), tensor.cols() + 1});
        shapes.push_back({tensor.elements()});
        shapes.push_back({tensor.rows() + 1, tensor.cols()});
        if (tensor.rows() != tensor.cols()) shapes.push_back({tensor.cols(), tensor.rows()});
      }
      for (const std::vector<int64_t>& shape : shapes) {
        if (shape == tensor.shape) continue;
        ModelFiles files = tried.files;
        files.tensors[i].shape = shape;
        // In GGUF this tensor's rows may be the only source of the vocabulary's size; then the head
        // does not match it.
        const bool other_rows = tried.is_gguf() && tried.slots[i].name == "token_embedding" &&
                                shape.size() == 2 && shape[1] == tensor.cols();
        if (other_rows) {
          EXPECT_THAT(complaint(files), AnyOf(HasSubstr("'token_embd.weight' has shape"),
                                              HasSubstr("'output.weight' has shape")));
          continue;
        }
        EXPECT_THAT(complaint(files),
                    AllOf(HasSubstr("'" + tensor.name + "'"), HasSubstr(format_shape(shape))));
      }
    }
  }
}

// A GGUF file has all biases of a kind or none, so a single one that is left is an error.
TEST(EveryTensorTest, IsNotUsedAloneInGguf) {
  for (const Case& tried : cases()) {
    if (!tried.is_gguf()) continue;
    for (size_t i = 0; i < tried.slots.size(); ++i) {
      const bool is_bias = tried.files.tensors[i].name.ends_with(".bias");
      if (!is_bias) continue;
      ModelFiles files = tried.files;
      const std::string& name = tried.files.tensors[i].name;
      std::erase_if(files.tensors, [&](const TensorInfo& tensor) {
        return tensor.name.ends_with(".bias") && tensor.name != name;
      });
      files.finish();
      EXPECT_THAT(complaint(files), HasSubstr("is missing")) << name;
    }
  }
}

TEST(EveryTensorTest, IsSaidToBeLeftOutWhereTheSettingsDoNotAskForIt) {
  Case tried = cases().front();
  Metadata settings("config.json");
  for (const std::string_view key : tried.files.metadata.keys()) {
    if (!key.ends_with("_bias")) settings.add(std::string(key), *tried.files.metadata.find(key));
  }
  tried.files.metadata = settings;
  testing::internal::CaptureStderr();
  EXPECT_EQ(complaint(tried.files), "no error");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("'model.layers.0.self_attn.q_proj.bias' and 13 more are left out"));
  // A head beside a tied embedding is common, and the reference does not read it either.
  for (TensorInfo& tensor : tried.files.tensors) {
    if (tensor.name.ends_with(".bias")) tensor.name = "unrelated." + tensor.name;
  }
  tried.files.finish();
  tried.files.metadata.add("unrelated", true);
  testing::internal::CaptureStderr();
  EXPECT_EQ(complaint(tried.files), "no error");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace spillway
