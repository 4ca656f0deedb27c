// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "model/family.h"
#include "model/test_tensors.h"
#include "storage/gguf_writer.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

// Makes a Hugging Face Llama of two layers, described but without bytes.
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
  const ModelSpec spec = make_spec(kLlamaFamily.read_shape(files));
  add_tensors(kLlamaFamily.names(files), spec, files);
  files.finish();
  return files;
}

std::string complaint(const ModelFiles& files) {
  return error_of([&] { describe_model(files); });
}

TEST(ModelTest, BindsEveryWeightOfALlama) {
  const Model model = describe_model(tiny_llama());
  EXPECT_EQ(model.spec.head_dim, 16);
  EXPECT_EQ(model.spec.kv_dim(), 32);
  EXPECT_EQ(model.spec.ropes.front().inverse_frequencies.size(), 8U);
  EXPECT_EQ(model.weights.size(), 3U + 2 * 9);
  EXPECT_EQ(model.weight_bytes(), parameter_count(model.spec) * 4);
}

// Without tie_word_embeddings a Llama is not tied, so a missing head is an error.
TEST(ModelTest, DoesNotTieAHeadThatTheFilesLeaveOut) {
  ModelFiles files = tiny_llama();
  std::erase_if(files.tensors, [](const TensorInfo& t) { return t.name == "lm_head.weight"; });
  files.finish();
  EXPECT_NE(complaint(files).find("'lm_head.weight' is missing, and config.json does not tie it"),
            std::string::npos)
      << complaint(files);
  files.metadata.add("tie_word_embeddings", true);
  EXPECT_TRUE(describe_model(files).spec.has_tied_head());
}

TEST(ModelTest, SaysThatARopeFactorWithoutATypeIsLeftOut) {
  ModelFiles files = tiny_llama();
  const auto frequencies = describe_model(files).spec.ropes.front().inverse_frequencies;
  files.metadata.add("rope_scaling.factor", 4.0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(describe_model(files).spec.ropes.front().inverse_frequencies, frequencies);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("has no rope_type"), std::string::npos);
}

TEST(ModelTest, RefusesForeignQuantizationBeforeAnyTensor) {
  ModelFiles files = tiny_llama();
  files.tensors.clear();
  files.finish();
  files.metadata.add("quantization_config.quant_method", std::string("gptq"));
  EXPECT_EQ(complaint(files),
            "tiny: gptq is not supported; use a folder with the unquantized model, or a GGUF file "
            "of it");
}

TEST(ModelTest, NamesAMissingTensorAndAWrongShape) {
  ModelFiles files = tiny_llama();
  std::erase_if(files.tensors,
                [](const TensorInfo& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  files.finish();
  EXPECT_NE(complaint(files).find("model.layers.1.mlp.up_proj.weight"), std::string::npos)
      << complaint(files);

  files = tiny_llama();
  for (TensorInfo& t : files.tensors) {
    if (t.name == "model.layers.0.self_attn.k_proj.weight") std::swap(t.shape[0], t.shape[1]);
  }
  EXPECT_NE(complaint(files).find("[64, 32]"), std::string::npos) << complaint(files);
}

TEST(ModelTest, RefusesAnUnknownArchitectureByName) {
  ModelFiles files = tiny_llama();
  files.metadata = Metadata("config.json");
  files.metadata.add("model_type", std::string("perceiver"));
  EXPECT_NE(complaint(files).find("perceiver"), std::string::npos);
}

TEST(TransformerShapeTest, RefusesSizesThatMakeNoSense) {
  const TransformerShape good = kLlamaFamily.read_shape(tiny_llama());
  EXPECT_NO_THROW(validate(good, "here"));
  const auto refuses = [&](auto&& change) {
    TransformerShape bad = good;
    change(bad);
    EXPECT_THROW(validate(bad, "here"), Error);
  };
  refuses([](TransformerShape& s) { s.layers = 0; });
  refuses([](TransformerShape& s) { s.heads = -1; });
  refuses([](TransformerShape& s) { s.kv_heads = 3; });
  refuses([](TransformerShape& s) { s.vocab_size = int64_t{1} << 40; });
  refuses([](TransformerShape& s) { s.rope.dims = 7; });
  refuses([](TransformerShape& s) { s.norm_eps = NAN; });
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

// Writes a GGUF Llama of one layer, with heads of 8 elements, to a folder and reads it back.
class GgufLlamaTest : public ::testing::Test {
 protected:
  using Change = std::function<void(GgufWriter&)>;

  // `change` adds keys and tensors to those that every file has.
  ModelFiles files(const Change& change) const {
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    writer.add_u32("llama.block_count", 1);
    writer.add_u32("llama.context_length", 64);
    writer.add_u32("llama.embedding_length", 32);
    writer.add_u32("llama.feed_forward_length", 48);
    writer.add_u32("llama.attention.head_count", 4);
    change(writer);
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols) {
      writer.add_tensor(name, DType::kF16, {rows, cols},
                        std::vector<std::byte>(static_cast<size_t>(rows * cols * 2)));
    };
    const auto norm = [&](const char* name) { add_floats(writer, name, std::vector<float>(32)); };
    matrix("token_embd.weight", 10, 32);
    norm("output_norm.weight");
    norm("blk.0.attn_norm.weight");
    matrix("blk.0.attn_q.weight", 32, 32);
    matrix("blk.0.attn_k.weight", kv_rows_, 32);
    matrix("blk.0.attn_v.weight", kv_rows_, 32);
    matrix("blk.0.attn_output.weight", 32, 32);
    norm("blk.0.ffn_norm.weight");
    matrix("blk.0.ffn_gate.weight", 48, 32);
    matrix("blk.0.ffn_up.weight", 48, 32);
    matrix("blk.0.ffn_down.weight", 32, 48);
    writer.write(folder_ / "tiny.gguf");
    return open_model(folder_ / "tiny.gguf");
  }
  TransformerShape shape(const Change& change) const {
    const ModelFiles read = files(change);
    (void)describe_model(read);  // fails if a tensor is missing
    return kLlamaFamily.read_shape(read);
  }
  std::string refusal(const Change& change) const { return complaint(files(change)); }

  static void add_floats(GgufWriter& writer, const char* name, const std::vector<float>& values) {
    writer.add_tensor(name, DType::kF32, {static_cast<int64_t>(values.size())},
                      std::as_bytes(std::span(values)));
  }
  // The frequencies of heads of 8 elements, each divided by its divisor.
  static std::vector<float> frequencies(const std::vector<double>& divisors) {
    std::vector<float> result;
    for (size_t i = 0; i < 4; ++i) {
      const double base = std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
      result.push_back(static_cast<float>(base / divisors[i]));
    }
    return result;
  }

  TempFolder folder_;
  int64_t kv_rows_ = 32;
};

TEST_F(GgufLlamaTest, TakesWhatTheFileLeavesOutFromTheFormat) {
  const TransformerShape read = shape([](GgufWriter&) {});
  EXPECT_EQ(read.kv_heads, 4);
  EXPECT_EQ(read.head_dim, 8);
  EXPECT_EQ(read.vocab_size, 10);
  EXPECT_EQ(read.name, "tiny.gguf");
  EXPECT_EQ(read.rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(read.rope.dims, 8);
  EXPECT_EQ(read.rope.inverse_frequencies, frequencies({1, 1, 1, 1}));
  EXPECT_FLOAT_EQ(read.norm_eps, 1e-5F);
  EXPECT_TRUE(read.tied_head);
  EXPECT_FALSE(read.qkv_bias);
}

TEST_F(GgufLlamaTest, ReadsFewerKvHeads) {
  kv_rows_ = 16;
  EXPECT_EQ(shape([](GgufWriter& w) { w.add_u32("llama.attention.head_count_kv", 2); }).kv_heads,
            2);
  EXPECT_EQ(refusal([](GgufWriter&) {}),
            "tiny.gguf: tensor 'blk.0.attn_k.weight' has shape [16, 32], [32, 32] expected");
}

TEST_F(GgufLlamaTest, ReadsLinearRopeScaling) {
  const auto scaled = frequencies({4, 4, 4, 4});
  EXPECT_EQ(shape([](GgufWriter& w) {
              w.add("llama.rope.scaling.type", "linear");
              w.add_f32("llama.rope.scaling.factor", 4);
            }).rope.inverse_frequencies,
            scaled);
  // Files from 2023 have another key.
  EXPECT_EQ(shape([](GgufWriter& w) {
              w.add_f32("llama.rope.scale_linear", 4);
            }).rope.inverse_frequencies,
            scaled);
  // A factor needs no type.
  EXPECT_EQ(shape([](GgufWriter& w) {
              w.add_f32("llama.rope.scaling.factor", 4);
            }).rope.inverse_frequencies,
            scaled);
  EXPECT_EQ(shape([](GgufWriter& w) {
              w.add("llama.rope.scaling.type", "linear");
              w.add_f32("llama.rope.scale_linear", 4);
            }).rope.inverse_frequencies,
            scaled);
  EXPECT_EQ(shape([](GgufWriter& w) {
              w.add("llama.rope.scaling.type", "none");
              w.add_f32("llama.rope.scaling.factor", 4);
              w.add_f32("llama.rope.scale_linear", 4);
            }).rope.inverse_frequencies,
            frequencies({1, 1, 1, 1}));
  for (const float factor : {0.0F, -1.0F}) {
    const std::string message = refusal([&](GgufWriter& w) {
      w.add("llama.rope.scaling.type", "linear");
      w.add_f32("llama.rope.scaling.factor", factor);
    });
    EXPECT_TRUE(message.starts_with("tiny.gguf: rope scaling factor ")) << message;
  }
  const std::string infinite = refusal([](GgufWriter& w) {
    w.add("llama.rope.scaling.type", "linear");
    w.add_f32("llama.rope.scaling.factor", INFINITY);
  });
  EXPECT_TRUE(infinite.starts_with("tiny.gguf: key 'llama.rope.scaling.factor'")) << infinite;
}

TEST_F(GgufLlamaTest, DividesFrequenciesByTheTensorForThem) {
  const auto with_divisors = [](std::vector<float> divisors) {
    return [divisors](GgufWriter& w) { add_floats(w, "rope_freqs.weight", divisors); };
  };
  EXPECT_EQ(shape(with_divisors({1, 2, 4.5, 8})).rope.inverse_frequencies,
            frequencies({1, 2, 4.5, 8}));
  EXPECT_EQ(refusal(with_divisors({1, 2, 3})),
            "tiny.gguf: tensor 'rope_freqs.weight' has 3 elements, 4 expected");
  EXPECT_EQ(refusal(with_divisors({1, 0, 1, 1})),
            "tiny.gguf: tensor 'rope_freqs.weight' has a divisor of 0 at 1");
  EXPECT_EQ(refusal(with_divisors({1, 1, 1, -2})),
            "tiny.gguf: tensor 'rope_freqs.weight' has a divisor of -2 at 3");
  EXPECT_EQ(refusal(with_divisors({1, 1, INFINITY, 1})),
            "tiny.gguf: tensor 'rope_freqs.weight' has a divisor of inf at 2");
}

// LongRoPE has divisors for sequences within the original context, and others for longer ones.
TEST_F(GgufLlamaTest, AppliesTheShortFactorsOfLongRope) {
  const auto with_factors = [](std::vector<float> shorter, uint32_t original) {
    return [=](GgufWriter& w) {
      add_floats(w, "rope_factors_short.weight", shorter);
      add_floats(w, "rope_factors_long.weight", {2, 4, 8, 16});
      w.add_u32("llama.rope.scaling.original_context_length", original);
      w.add_f32("llama.rope.scaling.attn_factor", 1.25F);
    };
  };
  testing::internal::CaptureStderr();
  const TransformerShape read = shape(with_factors({1, 1.5F, 2, 4}, 48));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "the context is 48 positions, not 64: positions beyond it need the long factors"),
            std::string::npos);
  EXPECT_EQ(read.rope.inverse_frequencies, frequencies({1, 1.5, 2, 4}));
  EXPECT_EQ(read.rope.scale, 1.25F);
  EXPECT_EQ(read.max_context, 48);
  EXPECT_EQ(shape(with_factors({1, 1, 1, 1}, 64)).max_context, 64);
  EXPECT_EQ(shape(with_factors({1, 1, 1, 1}, 4096)).max_context, 64);
  EXPECT_EQ(refusal(with_factors({1, 2, 3}, 48)),
            "tiny.gguf: tensor 'rope_factors_short.weight' has 3 elements, 4 expected");
  EXPECT_EQ(refusal(with_factors({1, 2, 0, 4}, 48)),
            "tiny.gguf: tensor 'rope_factors_short.weight' has a divisor of 0 at 2");
  EXPECT_EQ(refusal(with_factors({1, 1, 1, 1}, 0)),
            "tiny.gguf: an original context of 0 positions makes no sense");
  for (const bool has_long : {false, true}) {
    const std::string missing = refusal([&](GgufWriter& w) {
      if (has_long) add_floats(w, "rope_factors_long.weight", {2, 4, 8, 16});
      if (!has_long) w.add("llama.rope.scaling.type", "longrope");
    });
    EXPECT_NE(missing.find("rope_factors_short.weight"), std::string::npos) << missing;
  }
}

TEST_F(GgufLlamaTest, RefusesWhatItCannotRunAndNamesTheFile) {
  EXPECT_EQ(refusal([](GgufWriter& w) {
              w.add("llama.rope.scaling.type", "yarn");
              w.add_f32("llama.rope.scaling.factor", -1);
            }),
            "tiny.gguf: the yarn rope scaling makes no sense");
  EXPECT_EQ(refusal([](GgufWriter& w) { w.add("llama.rope.scaling.type", "dynamic"); }),
            "tiny.gguf: rope scaling 'dynamic' is not supported; none, linear, yarn and longrope "
            "are");
  EXPECT_EQ(refusal([](GgufWriter& w) { w.add_f32("llama.rope.scaling.attn_factor", -1); }),
            "tiny.gguf: the rope attention factor -1 makes no sense");
  EXPECT_EQ(refusal([](GgufWriter& w) { w.add_u32("llama.expert_count", 8); }),
            "tiny.gguf: mixture-of-experts models are not supported yet");
  EXPECT_EQ(shape([](GgufWriter& w) { w.add_u32("llama.expert_count", 0); }).layers, 1);
  EXPECT_EQ(refusal([](GgufWriter& w) {
              w.add_u32("llama.attention.key_length", 8);
              w.add_u32("llama.attention.value_length", 16);
            }),
            "tiny.gguf: key length 8 and value length 16 differ, which is not supported");
  const std::string odd =
      refusal([](GgufWriter& w) { w.add_u32("llama.rope.dimension_count", 7); });
  EXPECT_EQ(odd, "tiny.gguf: rotary size 7 is odd");
}

}  // namespace
}  // namespace spillway
