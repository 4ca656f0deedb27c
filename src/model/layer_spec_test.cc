// SPDX-License-Identifier: Apache-2.0
#include "model/layer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "model/known_models.h"

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Makes a layer of norm, q/k/v, attention and its output matrix, with heads of 4 in a stream of 8.
LayerSpec attention_layer() {
  LayerSpec layer;
  const Place normed = layer.place("normed"), qkv = layer.place("qkv"),
              attended = layer.place("attended"), branch = layer.place("branch");
  layer.ops = {{.kind = OpKind::kNorm,
                .name = "norm",
                .output = normed,
                .matrices = {{.name = "norm", .rows = 1, .cols = 8}}},
               {.kind = OpKind::kLinear,
                .name = "qkv",
                .input = normed,
                .output = qkv,
                .matrices = {{.name = "query", .rows = 8, .cols = 8},
                             {.name = "key", .rows = 4, .cols = 8},
                             {.name = "value", .rows = 4, .cols = 8}}},
               {.kind = OpKind::kRope, .name = "rope", .input = qkv, .output = qkv, .rope = 0},
               {.kind = OpKind::kAttention,
                .name = "attention",
                .input = qkv,
                .output = attended,
                .attention = {.heads = 2, .kv_heads = 1, .head_dim = 4}},
               {.kind = OpKind::kLinear,
                .name = "out",
                .input = attended,
                .output = branch,
                .matrices = {{.name = "out", .rows = 8, .cols = 8}}},
               {.kind = OpKind::kAdd, .name = "sum", .input = branch, .output = kResidual}};
  return layer;
}

std::string complaint(const std::function<void(LayerSpec&)>& change) {
  LayerSpec layer = attention_layer();
  change(layer);
  return error_of([&] { validate(layer, 8, "here"); });
}

TEST(LayerSpecTest, TakesALayerAndKnowsTheWidthsOfItsScratches) {
  EXPECT_EQ(complaint([](LayerSpec&) {}), "no error");
  EXPECT_THAT(scratch_columns(attention_layer(), 8), ElementsAre(8, 16, 8, 8));
  EXPECT_EQ(attention_layer().find("rope")->rope, 0);
  EXPECT_EQ(attention_layer().find("mlp_up"), nullptr);
}

TEST(LayerSpecTest, NothingIsReadBeforeItIsWritten) {
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops.erase(l.ops.begin()); }),
              HasSubstr("here, op 'qkv': its input was not written"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops.erase(l.ops.begin() + 3); }),
              HasSubstr("op 'out': its input was not written"));
  // Before an embedding there is no residual stream.
  EXPECT_THAT(error_of([] { validate(attention_layer(), 0, "here"); }),
              HasSubstr("op 'norm': its input was not written"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[0].output = 9; }), HasSubstr("no scratch 9"));
}

TEST(LayerSpecTest, ShapesAgree) {
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[0].matrices[0].cols = 7; }),
              HasSubstr("its weight has 7 columns"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[1].matrices[1].cols = 7; }),
              HasSubstr("matrix 'key' has 7 columns, its input 8"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[1].matrices[1].rows = 8; }),
              HasSubstr("op 'attention': its input is not q, k and v"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[4].matrices[0].rows = 16; }),
              HasSubstr("op 'sum': it cannot be added"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[2].rope = -1; }), HasSubstr("names no rope"));
}

TEST(LayerSpecTest, NamesAreUnique) {
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[4].name = "qkv"; }),
              HasSubstr("its name is not its own"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[4].matrices[0].name = "key"; }),
              HasSubstr("the name of matrix 'key' is not its own"));
  EXPECT_THAT(complaint([](LayerSpec& l) { l.ops[5].name = ""; }), HasSubstr("not its own"));
}

// The result of a norm may never be in memory (Ops::run_step), so it must be read before its
// input changes.
TEST(LayerSpecTest, ANormIsReadBeforeItsInputChanges) {
  const auto read_late = [](LayerSpec& layer) {
    layer.ops.push_back({.kind = OpKind::kLinear,
                         .name = "late",
                         .input = 0,
                         .output = layer.place("other"),
                         .matrices = {{.name = "late", .rows = 8, .cols = 8}}});
  };
  EXPECT_THAT(complaint(read_late),
              HasSubstr("op 'late': what it reads was made of something that has changed since"));
  EXPECT_EQ(complaint([&](LayerSpec& layer) {
              read_late(layer);
              std::swap(layer.ops[5], layer.ops[6]);  // before the sum
            }),
            "no error");
}

// A norm of the heads of q and k is in place.
TEST(LayerSpecTest, TakesNormsOfHeads) {
  const auto norm = [](int64_t first, int64_t columns, int64_t head) {
    return [=](LayerSpec& layer) {
      layer.ops.insert(layer.ops.begin() + 2,
                       {.kind = OpKind::kNorm,
                        .name = "query_norm",
                        .input = 1,
                        .output = 1,
                        .matrices = {{.name = "query_norm", .rows = 1, .cols = head}},
                        .norm = {.first_column = first, .columns = columns}});
    };
  };
  EXPECT_EQ(complaint(norm(0, 8, 4)), "no error");
  EXPECT_EQ(complaint(norm(8, 4, 4)), "no error");
  EXPECT_THAT(complaint(norm(8, 4, 3)), HasSubstr("its weight has 3 columns"));
  EXPECT_THAT(complaint(norm(12, 8, 4)), HasSubstr("a norm of heads has a weight"));
}

// make_spec() validates every list, so this finds families whose lists are wrong.
TEST(LayerSpecTest, EveryKnownModelValidates) {
  for (const std::string& name : known_model_names())
    EXPECT_NO_THROW(make_spec(try_known_model(name).value())) << name;
}

}  // namespace
}  // namespace spillway
