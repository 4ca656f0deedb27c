// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Utf8Test, DecodesWhatItEncodesForEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Char decoded = decode_utf8(text, 0);
    ASSERT_TRUE(decoded.valid);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.bytes, text.size());
  }
}

TEST(Utf8Test, RejectsSurrogatesOverlongFormsAndValuesBeyondTheRange) {
  for (std::string_view text :
       {"\xED\xA0\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"})
    EXPECT_FALSE(is_valid_utf8(text));
}

TEST(Utf8Test, ReplacesEachMaximalSubpartByOneReplacementCharacter) {
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xFF\xFE"), "\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("déjà"), "déjà");
}

TEST(Utf8Test, FindsTheStartOfACharacterAtTheEnd) {
  const std::string face = "\xF0\x9F\x98\x81";
  for (size_t bytes = 1; bytes < 4; ++bytes)
    EXPECT_EQ(truncated_utf8_suffix_bytes("ab" + face.substr(0, bytes)), bytes);
  EXPECT_EQ(truncated_utf8_suffix_bytes("ab" + face), 0U);
  EXPECT_EQ(truncated_utf8_suffix_bytes("ab\xFF"), 0U);
  EXPECT_EQ(truncated_utf8_suffix_bytes("\x98\x81"), 0U);
  EXPECT_EQ(truncated_utf8_suffix_bytes(""), 0U);
}

TEST(Utf8Test, FindsTheValidPrefix) {
  EXPECT_EQ(valid_utf8_prefix_bytes("ab\xC3\xA9\xFFz"), 4U);
  EXPECT_EQ(valid_utf8_prefix_bytes(""), 0U);
}

}  // namespace
}  // namespace spillway
