// SPDX-License-Identifier: Apache-2.0
#include "storage/type_mix.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

namespace spillway {
namespace {

struct Network {
  int layers = 24;
  int64_t columns = 4096;
  bool tied = false;
  bool shared_values = false;
};

std::map<std::string, DType> types(const char* mix, const Network& network) {
  std::vector<std::string> names{"token_embd.weight"};
  if (!network.tied) names.emplace_back("output.weight");
  for (int layer = 0; layer < network.layers; ++layer) {
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"})
      names.push_back(fmt::format("blk.{}.{}.weight", layer, name));
  }
  names.emplace_back("position_embd.weight");
  std::vector<MixTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kBF16, network.columns});
  const auto chosen = choose_types(*try_type_mix(mix), tensors, network.shared_values);
  std::map<std::string, DType> result;
  for (size_t i = 0; i < names.size(); ++i) result[names[i]] = chosen[i].type;
  return result;
}

TEST(TypeMixTest, TheHeadHasSixBitsWhereOthersHaveFewer) {
  for (const char* mix : {"q4_0", "q4_k_m", "q5_k_m"}) {
    EXPECT_EQ(types(mix, {})["output.weight"], DType::kQ6_K) << mix;
    EXPECT_EQ(types(mix, {})["token_embd.weight"], try_type_mix(mix)->main) << mix;
    EXPECT_EQ(types(mix, {.tied = true})["token_embd.weight"], DType::kQ6_K) << mix;
  }
  EXPECT_EQ(types("q8_0", {})["output.weight"], DType::kQ8_0);
  EXPECT_EQ(types("bf16", {})["output.weight"], DType::kBF16);
}

TEST(TypeMixTest, ValuesAndTheWayDownHaveMoreBitsInSomeLayers) {
  for (const auto& [mix, main] :
       {std::pair{"q4_k_m", DType::kQ4_K}, std::pair{"q5_k_m", DType::kQ5_K}}) {
    auto chosen = types(mix, {.layers = 24});
    // These are the first and the last eighth (three layers each), and 5, 8, 11, ... in between.
    for (const int layer : {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}) {
      for (const char* name : {"attn_v", "ffn_down"})
        EXPECT_EQ(chosen[fmt::format("blk.{}.{}.weight", layer, name)], DType::kQ6_K) << layer;
      EXPECT_EQ(chosen[fmt::format("blk.{}.attn_q.weight", layer)], main);
    }
    for (const int layer : {3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19}) {
      for (const char* name : {"attn_v", "ffn_down"})
        EXPECT_EQ(chosen[fmt::format("blk.{}.{}.weight", layer, name)], main) << layer;
    }
  }
  EXPECT_EQ(types("q4_0", {})["blk.0.attn_v.weight"], DType::kQ4_0);
}

TEST(TypeMixTest, ValuesSharedByManyHeadsHaveFiveBits) {
  EXPECT_EQ(types("q4_k_m", {.shared_values = true})["blk.3.attn_v.weight"], DType::kQ5_K);
  EXPECT_EQ(types("q4_k_m", {.shared_values = true})["blk.3.ffn_down.weight"], DType::kQ4_K);
}

TEST(TypeMixTest, TablesOfPositionsStay) {
  EXPECT_EQ(types("q4_0", {})["position_embd.weight"], DType::kBF16);
  EXPECT_EQ(types("f32", {})["position_embd.weight"], DType::kF32);
}

TEST(TypeMixTest, OddWidthsHaveSmallerBlocksOrNone) {
  EXPECT_EQ(type_that_fits(DType::kQ4_K, 576), DType::kQ5_0);
  EXPECT_EQ(type_that_fits(DType::kQ5_K, 576), DType::kQ5_1);
  EXPECT_EQ(type_that_fits(DType::kQ6_K, 576), DType::kQ8_0);
  EXPECT_EQ(type_that_fits(DType::kQ4_K, 512), DType::kQ4_K);
  for (const DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ4_0, DType::kQ8_0})
    EXPECT_EQ(type_that_fits(type, 100), DType::kF16);
  EXPECT_EQ(type_that_fits(DType::kF32, 100), DType::kF32);
}

TEST(TypeMixTest, NamesAreKnownInAnyCase) {
  EXPECT_EQ(try_type_mix("q4_k_m")->main, DType::kQ4_K);
  EXPECT_EQ(try_type_mix("Bf16")->main, DType::kBF16);
  EXPECT_FALSE(try_type_mix("q4_k"));
  EXPECT_FALSE(try_type_mix(""));
  EXPECT_EQ(type_mix_names(), "f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0");
}

}  // namespace
}  // namespace spillway
