// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway {
namespace {

const std::vector<std::string> kNames = {"run",       "chat",         "serve",      "smollm2",
                                         "--top-k",   "--top-p",      "-n",         "--max-tokens",
                                         "--kv-type", "--gpu-memory", "llama-2-7b", "llama-2-13b"};

TEST(NearestNameTest, FindsWhatOneOrTwoLettersMissed) {
  EXPECT_EQ(try_nearest_name("rnu", kNames), "run");
  EXPECT_EQ(try_nearest_name("sevre", kNames), "serve");
  EXPECT_EQ(try_nearest_name("smolm2", kNames), "smollm2");
  EXPECT_EQ(try_nearest_name("SmolLM2", kNames), "smollm2");
  EXPECT_EQ(try_nearest_name("--max-token", kNames), "--max-tokens");
  EXPECT_EQ(try_nearest_name("--max_tokens", kNames), "--max-tokens");
  EXPECT_EQ(try_nearest_name("--kvtype", kNames), "--kv-type");
  EXPECT_EQ(try_nearest_name("-top-p", kNames), "--top-p");
}

TEST(NearestNameTest, FindsTheOnlyNameThatAWordBegins) {
  EXPECT_EQ(try_nearest_name("--gpu", kNames), "--gpu-memory");
  EXPECT_EQ(try_nearest_name("llama", kNames), std::nullopt);  // two names begin with it
  EXPECT_EQ(try_nearest_name("llama-2-13", kNames), "llama-2-13b");
}

TEST(NearestNameTest, FindsNothingWhereNoNameIsNear) {
  EXPECT_EQ(try_nearest_name("inspect", kNames), std::nullopt);
  EXPECT_EQ(try_nearest_name("-x", kNames), std::nullopt);
  EXPECT_EQ(try_nearest_name("", kNames), std::nullopt);
  EXPECT_EQ(try_nearest_name(std::string(100'000, 'a'), kNames), std::nullopt);
  EXPECT_EQ(try_nearest_name("run", {}), std::nullopt);
}

TEST(NearestNameTest, AsksWhetherItWasMeant) {
  EXPECT_EQ(did_you_mean("rnu", kNames), "; did you mean run?");
  EXPECT_EQ(did_you_mean("inspect", kNames), "");
}

}  // namespace
}  // namespace spillway
