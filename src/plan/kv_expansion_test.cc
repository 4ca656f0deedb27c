// SPDX-License-Identifier: Apache-2.0
#include "plan/kv_expansion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

TEST(KvExpansionTest, ReadsWhatItWrites) {
  for (const char* text : {"off", "auto", "3", "17"})
    EXPECT_EQ(kv_expansion_text(parse_kv_expansion(text, "--kv-expansion")), text);
  EXPECT_EQ(parse_kv_expansion("0", "--kv-expansion"), KvExpansion());
  EXPECT_TRUE(parse_kv_expansion("auto", "--kv-expansion").adapts());
}

TEST(KvExpansionTest, RefusesOtherWordsInALine) {
  for (const char* text : {"", "on", "-1", "3x", "99999999999", "a\nb"}) {
    try {
      parse_kv_expansion(text, "my.json: kv_expansion");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::StartsWith("my.json: kv_expansion is '"));
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
    }
  }
}

}  // namespace
}  // namespace spillway
