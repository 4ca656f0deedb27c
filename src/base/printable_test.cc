// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(PrintableTest, KeepsTextOnOneLineAndEscapesWhatCouldHarmATerminal) {
  EXPECT_EQ(printable("blk.0.größe"), "blk.0.größe");
  EXPECT_EQ(printable("a\nb\tc\x1b[0m\x7f"), "a\\nb\\tc\\x1b[0m\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");  // no UTF-8
  EXPECT_EQ(printable("\xc0\x8a \xed\xa0\x80"),
            "\\xc0\\x8a \\xed\\xa0\\x80");                                    // overlong, surrogate
  EXPECT_EQ(printable("\xe2\x80\xa8\xc2\x85"), "\\xe2\\x80\\xa8\\xc2\\x85");  // line separators
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");                    // right to left
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(PrintableTest, NamesFoldersWithATrailingSlash) {
  EXPECT_EQ(printable_name("/a/b/model.gguf"), "model.gguf");
  EXPECT_EQ(printable_name("/a/b/"), "b");
  EXPECT_EQ(printable_name("/"), "/");
}

}  // namespace
}  // namespace spillway
