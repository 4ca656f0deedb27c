// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_text.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(HttpTextTest, KnowsTokens) {
  for (const char* token : {"GET", "x", "Content-Length", "!#$%&'*+-.^_`|~09az"})
    EXPECT_TRUE(is_http_token(token)) << token;
  for (const char* other :
       {"", "a b", "a:", "a\t", "(a)", "a,b", "\"a\"", "\xc3\xa9", "a/b", "a=b"})
    EXPECT_FALSE(is_http_token(other)) << other;
}

TEST(HttpTextTest, KnowsWhatEndsALine) {
  EXPECT_TRUE(is_header_value(""));
  EXPECT_TRUE(is_header_value("a\tb \xc3\xa9"));
  for (const std::string_view bad : {"\r", "\n", "a\r\nb", "\x7f", "\x1b"})
    EXPECT_FALSE(is_header_value(bad));
  EXPECT_FALSE(is_header_value(std::string_view("\0", 1)));
}

TEST(HttpTextTest, FindsWordsInLists) {
  EXPECT_TRUE(list_has("close", "close"));
  EXPECT_TRUE(list_has("keep-alive , CLOSE\t,", "close"));
  EXPECT_FALSE(list_has("closed, not close, clos", "close"));
  EXPECT_FALSE(list_has("", "close"));
  EXPECT_FALSE(list_has(",,", "close"));
}

TEST(HttpTextTest, DecodesPercentSigns) {
  EXPECT_EQ(try_percent_decode("/a%20b%c3%A9+c"), "/a b\xc3\xa9+c");
  EXPECT_EQ(try_percent_decode("%2e%2E/%25"), "../%");
  EXPECT_EQ(try_percent_decode("%2f%2F"), "%2F%2F");
  EXPECT_EQ(try_percent_decode(""), "");
  for (const char* bad :
       {"%", "%2", "%%20", "%g0", "%0g", "%00", "%1f", "%7f", "%0A", "a%", "% 1", "%-1"})
    EXPECT_FALSE(try_percent_decode(bad)) << bad;
}

TEST(HttpTextTest, Trims) {
  EXPECT_EQ(trim_blanks(" \t a b\t "), "a b");
  EXPECT_EQ(trim_blanks(" \t "), "");
  EXPECT_TRUE(equal_ignoring_case("ChUnKeD", "chunked"));
  EXPECT_FALSE(equal_ignoring_case("chunke", "chunked"));
  EXPECT_EQ(lower_ascii("A-Z\xc3\x89"), "a-z\xc3\x89");
}

}  // namespace
}  // namespace spillway
