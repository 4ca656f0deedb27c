// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_input.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/family.h"
#include "model/test_tensors.h"
#include "model/transformer_shape.h"

namespace spillway {
namespace {

TransformerShape llama_shape() {
  TransformerShape shape;
  shape.family = "llama";
  shape.vocab_size = 100;
  shape.hidden = shape.embedding_dim = 64;
  shape.layers = 3;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.ffn = 96;
  shape.max_context = 512;
  shape.norm_eps = 1e-6F;
  shape.sliding_window = 77;
  shape.rope.dims = 16;
  shape.rope.theta = 500000;
  return shape;
}
void set_frequencies(RopeSpec& rope, const std::vector<double>& frequencies) {
  rope.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
}

TEST(GgufInputTest, ScalingOfFrequenciesIsRecognised) {
  RopeSpec rope = llama_shape().rope;
  auto frequencies = base_inverse_frequencies(rope);
  set_frequencies(rope, frequencies);
  EXPECT_EQ(rope_scaling_kind(rope), RopeScalingKind::kNone);
  for (double& frequency : frequencies) frequency /= 3;
  set_frequencies(rope, frequencies);
  EXPECT_EQ(rope_scaling_kind(rope), RopeScalingKind::kLinear);
  EXPECT_NEAR(rope_divisors(rope).front(), 3, 1e-6);
  frequencies = base_inverse_frequencies(rope);
  apply_llama3_scaling({}, frequencies);
  set_frequencies(rope, frequencies);
  EXPECT_EQ(rope_scaling_kind(rope), RopeScalingKind::kUneven);
  EXPECT_EQ(rope_divisors(rope).front(), 1);
  EXPECT_NEAR(rope_divisors(rope).back(), 8, 1e-5);
}

// Makes a file of `keys` alone, with tensors of which only the names matter.
ModelFiles files_of(const TransformerShape& shape, const Family& family) {
  ModelFiles files;
  files.name = "test";
  files.metadata.add("general.architecture", shape.family);
  family.write_gguf_keys(shape, files.metadata);
  add_tensors(family.names(ModelFiles{}), make_spec(shape), files);
  files.finish();
  return files;
}

void expect_equal(const TransformerShape& got, const TransformerShape& want) {
  EXPECT_EQ(got.vocab_size, want.vocab_size);
  EXPECT_EQ(got.hidden, want.hidden);
  EXPECT_EQ(got.embedding_dim, want.embedding_dim);
  EXPECT_EQ(got.layers, want.layers);
  EXPECT_EQ(got.heads, want.heads);
  EXPECT_EQ(got.kv_heads, want.kv_heads);
  EXPECT_EQ(got.head_dim, want.head_dim);
  EXPECT_EQ(got.ffn, want.ffn);
  EXPECT_EQ(got.max_context, want.max_context);
  EXPECT_EQ(got.sliding_window, want.sliding_window);
  EXPECT_EQ(got.norm, want.norm);
  EXPECT_EQ(got.wiring, want.wiring);
  EXPECT_EQ(got.norm_eps, want.norm_eps);
  EXPECT_EQ(got.norm_affine, want.norm_affine);
  EXPECT_EQ(got.norm_bias, want.norm_bias);
  EXPECT_EQ(got.final_norm, want.final_norm);
  EXPECT_EQ(got.position, want.position);
  EXPECT_EQ(got.position_offset, want.position_offset);
  EXPECT_EQ(got.activation, want.activation);
  EXPECT_EQ(got.gated_mlp, want.gated_mlp);
  EXPECT_EQ(got.qkv_bias, want.qkv_bias);
  EXPECT_EQ(got.attention_out_bias, want.attention_out_bias);
  EXPECT_EQ(got.mlp_bias, want.mlp_bias);
  EXPECT_EQ(got.tied_head, want.tied_head);
  ASSERT_EQ(got.rope.inverse_frequencies.size(), want.rope.inverse_frequencies.size());
  for (size_t i = 0; i < want.rope.inverse_frequencies.size(); ++i) {
    EXPECT_NEAR(got.rope.inverse_frequencies[i] / want.rope.inverse_frequencies[i], 1, 1e-6);
  }
}

TEST(GgufInputTest, KeysOfALlamaSayItsSpec) {
  for (const double factor : {1.0, 4.0}) {
    for (const bool flag : {false, true}) {
      TransformerShape shape = llama_shape();
      auto frequencies = base_inverse_frequencies(shape.rope);
      for (double& frequency : frequencies) frequency /= factor;
      set_frequencies(shape.rope, frequencies);
      shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = shape.tied_head = flag;
      const ModelFiles files = files_of(shape, kLlamaFamily);
      expect_equal(kLlamaFamily.read_shape(files), shape);
    }
  }
}

TEST(GgufInputTest, KeysOfAnOptSayItsSpec) {
  for (const bool flag : {false, true}) {
    TransformerShape shape;
    shape.family = "opt";
    shape.vocab_size = 100;
    shape.hidden = 64;
    shape.embedding_dim = flag ? 32 : 64;
    shape.layers = 2;
    shape.heads = shape.kv_heads = 4;
    shape.head_dim = 16;
    shape.ffn = 96;
    shape.max_context = 128;
    shape.norm = NormKind::kLayer;
    shape.norm_bias = true;
    shape.wiring = flag ? ResidualWiring::kPostNorm : ResidualWiring::kPreNorm;
    shape.final_norm = shape.norm_affine = !flag;
    shape.position = PositionKind::kLearned;
    shape.position_offset = 2;
    shape.activation = flag ? ActivationKind::kGelu : ActivationKind::kRelu;
    shape.gated_mlp = false;
    shape.qkv_bias = shape.attention_out_bias = shape.mlp_bias = shape.tied_head = !flag;
    const ModelFiles files = files_of(shape, kOptFamily);
    expect_equal(kOptFamily.read_shape(files), shape);
    EXPECT_EQ(&family_of(files), &kOptFamily);
    EXPECT_NE(gguf_caveat(files).find("llama.cpp"), std::string::npos);
  }
}

}  // namespace
}  // namespace spillway
