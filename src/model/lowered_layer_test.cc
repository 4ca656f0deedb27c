// SPDX-License-Identifier: Apache-2.0
#include "model/lowered_layer.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_scoped_folder.h"
#include "model/known_models.h"
#include "model/transformer_shape.h"

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Describes each op with the norms before it and its finish: "qkv(attention_norm, append)".
std::vector<std::string> described(const LoweredLayer& layer) {
  constexpr const char* kFinishes[] = {"", "add", "activate", "gate", "append"};
  std::vector<std::string> all;
  for (int i = 0; i < static_cast<int>(layer.ops.size()); ++i) {
    const LoweredOp& op = layer.ops[static_cast<size_t>(i)];
    std::string with;
    const auto add = [&](std::string_view part) {
      if (!part.empty()) with += fmt::format("{}{}", with.empty() ? "" : ", ", part);
    };
    for (const int norm : op.norms) add(layer.spec->ops[static_cast<size_t>(norm)].name);
    add(kFinishes[static_cast<size_t>(op.finish)]);
    if (op.kind == LoweredKind::kAttention && op.rope >= 0) add("rope");
    all.push_back(with.empty() ? std::string(layer.name(i))
                               : fmt::format("{}({})", layer.name(i), with));
  }
  return all;
}

std::vector<std::string> layer_of(const std::string& model) {
  return described(make_spec(try_known_model(model).value()).lowered->layer(0));
}

TEST(LoweredLayerTest, FusesWhatDevicesRunTogether) {
  EXPECT_THAT(layer_of("llama-2-7b"),
              ElementsAre("qkv(attention_norm, append)", "attention(rope)", "attention_out(add)",
                          "mlp_up(mlp_norm, gate)", "mlp_down(add)"));
  EXPECT_THAT(layer_of("opt-125m"),
              ElementsAre("qkv(attention_norm, append)", "attention", "attention_out(add)",
                          "mlp_up(mlp_norm, activate)", "mlp_down(add)"));
  // opt-350m has norms after attention and MLP: the last one is an op of its own.
  EXPECT_THAT(layer_of("opt-350m"),
              ElementsAre("qkv(append)", "attention", "attention_out(add)",
                          "mlp_up(attention_norm, activate)", "mlp_down(add)", "mlp_norm"));
}

// Both branches must read the residual stream before either is added.
TEST(LoweredLayerTest, ParallelBranchesAreAddedLast) {
  EXPECT_THAT(layer_of("gpt-neox-20b"),
              ElementsAre("qkv(attention_norm, append)", "attention(rope)",
                          "mlp_up(mlp_norm, activate)", "attention_out(add)", "mlp_down(add)"));
  EXPECT_THAT(layer_of("gpt-j-6b"),
              ElementsAre("qkv(attention_norm, append)", "attention(rope)", "mlp_up(activate)",
                          "attention_out(add)", "mlp_down(add)"));
}

// These norms are between the products and rope, so q, k and v are not appended with the products.
TEST(LoweredLayerTest, NormsOfHeadsAreOpsOfTheirOwn) {
  TransformerShape shape = try_known_model("llama-2-7b").value();
  shape.head_norms = true;
  EXPECT_THAT(described(make_spec(shape).lowered->layer(0)),
              ElementsAre("qkv(attention_norm)", "query_norm", "key_norm", "attention(rope)",
                          "attention_out(add)", "mlp_up(mlp_norm, gate)", "mlp_down(add)"));
}

// A norm of a branch is an op with the sum that follows it.
TEST(LoweredLayerTest, NormsOfBranchesAddTheirResult) {
  EXPECT_THAT(layer_of("gemma-3-1b"),
              ElementsAre("qkv(attention_norm)", "query_norm", "key_norm", "attention(rope)",
                          "attention_out", "attention_post_norm(add)", "mlp_up(mlp_norm, gate)",
                          "mlp_down", "mlp_post_norm(add)"));
  EXPECT_THAT(layer_of("olmo-2-7b"), ElementsAre("qkv", "query_norm", "key_norm", "attention(rope)",
                                                 "attention_out", "attention_post_norm(add)",
                                                 "mlp_up(gate)", "mlp_down", "mlp_post_norm(add)"));
}

TEST(LoweredLayerTest, EmbeddingAndHeadAreLists) {
  const auto lists_of = [](const char* name) {
    const auto lowered = make_spec(try_known_model(name).value()).lowered;
    std::vector<std::string> all = described(lowered->embedding);
    for (const std::string& op : described(lowered->head)) all.push_back(op);
    return all;
  };
  EXPECT_THAT(lists_of("llama-2-7b"), ElementsAre("token_embedding", "gather", "head(final_norm)"));
  EXPECT_THAT(lists_of("opt-350m"),
              ElementsAre("token_embedding", "project_in", "position_embedding", "gather",
                          "project_out", "head"));
}

// Equal layers share one description, and lists of a network share buffers of one name.
TEST(LoweredLayerTest, CountsTheBuffersOfANetwork) {
  const ModelSpec spec = make_spec(try_known_model("opt-350m").value());
  EXPECT_EQ(&spec.layer(0), &spec.layer(23));
  EXPECT_EQ(&spec.lowered->layer(0), &spec.lowered->layer(23));
  std::vector<std::string> buffers;
  for (const ScratchBuffer& buffer : spec.lowered->buffers)
    buffers.push_back(fmt::format("{} {} {}{}", buffer.name, buffer.columns, buffer.head_columns,
                                  buffer.f32 ? " f32" : ""));
  EXPECT_THAT(buffers, ElementsAre("narrow 512 512", "qkv 3072 0", "attended 1024 0", "mlp 4096 0",
                                   "head_input 0 1024", "logits 0 50272 f32"));
  EXPECT_EQ(spec.lowered->buffers[spec.lowered->widest_buffer()].name, "mlp");
}

TEST(LoweredLayerTest, SaysWhatItCannotFuse) {
  const auto refusal = [](auto&& change) {
    LayerSpec layer = *make_spec(try_known_model("llama-2-7b").value()).layers.front();
    change(layer);
    std::vector<ScratchBuffer> buffers;
    return error_of([&] { (void)lower(std::make_shared<LayerSpec>(layer), 4096, buffers); });
  };
  EXPECT_EQ(refusal([](LayerSpec&) {}), "no error");
  // A sum must follow the linear op or norm whose result is added.
  EXPECT_THAT(refusal([](LayerSpec& layer) {
                layer.ops.push_back({.kind = OpKind::kAdd,
                                     .name = "again",
                                     .input = layer.place("attended"),
                                     .output = kResidual});
              }),
              HasSubstr("op 'again' follows nothing"));
}

}  // namespace
}  // namespace spillway
