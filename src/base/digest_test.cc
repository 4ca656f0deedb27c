// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(DigestTest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(digest128(""), "99aa06d3014798d86001c324468d497f");
}

TEST(DigestTest, PiecesAreAsTheWhole) {
  Digest pieces;
  EXPECT_EQ(pieces.digits(), digest128(""));
  pieces.add("spill");
  pieces.add("way");
  EXPECT_EQ(pieces.digits(), digest128("spillway"));
  EXPECT_NE(pieces.digits(), digest128("spill"));
}

}  // namespace
}  // namespace spillway
