// SPDX-License-Identifier: Apache-2.0
#include "serve/model_names.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

TEST(ModelNamesTest, AcceptsItsNameItsAliasesAndNoName) {
  const ModelNames names("tiny", {"gpt-4", "tiny", "gpt-4"});
  EXPECT_EQ(names.name(), "tiny");
  EXPECT_EQ(names.listed(), (std::vector<std::string>{"tiny", "gpt-4"}));
  EXPECT_TRUE(names.accepts("tiny") && names.accepts("gpt-4") && names.accepts(""));
  EXPECT_FALSE(names.accepts("gpt-5") || names.accepts("*") || names.accepts("Tiny"));
}

TEST(ModelNamesTest, AStarAcceptsAnyNameAndIsNotListed) {
  const ModelNames names("tiny", {"*", "gpt-4"});
  EXPECT_TRUE(names.accepts("whatever") && names.accepts("*"));
  EXPECT_EQ(names.listed(), (std::vector<std::string>{"tiny", "gpt-4"}));
}

TEST(ModelNamesTest, RefusesAnEmptyAlias) { EXPECT_THROW(ModelNames("tiny", {""}), Error); }

}  // namespace
}  // namespace spillway
