// SPDX-License-Identifier: Apache-2.0
#include "text/json_document.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

std::string complaint(const std::string& text) {
  try {
    JsonDocument document(text, "f.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string repeated(std::string_view text, size_t times) {
  std::string result;
  while (times-- > 0) result += text;
  return result;
}

TEST(JsonDocumentTest, HoldsEveryKindOfValue) {
  const std::string text = R"({"a": [1, "x", [], {}, [[-5], 2.5]], "b": {"c": true}, "d": null,
                               "e": false, "f": 18446744073709551615})";
  const JsonDocument document(text, "f.json");
  const JsonValue root = document.root();
  ASSERT_TRUE(root.is_object());
  EXPECT_EQ(root.size(), 5U);
  const JsonValue a = root.try_member("a").value();
  ASSERT_TRUE(a.is_array());
  ASSERT_EQ(a.size(), 5U);
  EXPECT_EQ(a.element(0).integer(), 1);
  EXPECT_EQ(a.element(1).string(), "x");
  EXPECT_TRUE(a.element(2).is_array());
  EXPECT_EQ(a.element(2).size(), 0U);
  EXPECT_TRUE(a.element(3).is_object());
  EXPECT_EQ(a.element(4).element(0).element(0).integer(), -5);
  EXPECT_FALSE(a.element(4).element(1).is_integer());
  EXPECT_TRUE(root.try_member("b")->try_member("c")->is_true());
  EXPECT_TRUE(root.try_member("d")->is_null());
  EXPECT_TRUE(root.try_member("e")->is_boolean());
  EXPECT_FALSE(root.try_member("f")->is_integer());
  EXPECT_FALSE(root.try_member("g").has_value());
}

TEST(JsonDocumentTest, FindsStringsInTheTextWithAndWithoutEscapes) {
  const std::string text =
      "\xEF\xBB\xBF"
      R"( {"k\"ey" : ["", "\\", "a\"b", "\u00e9\ud83d\ude00", "plain ▁", "\n\n"], "z":"\\\""})";
  const JsonDocument document(text, "f.json");
  std::vector<std::string> found;
  document.root().for_each_member([&](std::string_view key, JsonValue value) {
    found.emplace_back(key);
    if (value.is_string()) found.emplace_back(value.string());
    if (!value.is_array()) return;
    value.for_each_element([&](JsonValue element) { found.emplace_back(element.string()); });
  });
  EXPECT_EQ(found, (std::vector<std::string>{"k\"ey", "", "\\", "a\"b", "é😀", "plain ▁", "\n\n",
                                             "z", "\\\""}));
}

TEST(JsonDocumentTest, KeepsManyAndLongStringsWithEscapes) {
  const std::string longest = std::string(200'000, 'x') + "\n";
  const std::string text =
      "[" + repeated(R"("ab\n",)", 50'000) + "\"" + std::string(200'000, 'x') + "\\n\"]";
  const JsonDocument document(text, "f.json");
  size_t right = 0;
  document.root().for_each_element([&](JsonValue v) { right += v.string() == "ab\n"; });
  EXPECT_EQ(right, 50'000U);
  EXPECT_EQ(document.root().element(50'000).string(), longest);
}

TEST(JsonDocumentTest, TakesTheLastOfMembersWithOneName) {
  const JsonDocument document(R"({"a": 1, "a": 2})", "f.json");
  EXPECT_EQ(document.root().size(), 2U);
  EXPECT_EQ(document.root().try_member("a")->integer(), 2);
}

TEST(JsonDocumentTest, RefusesMoreValuesThanATokenizerHas) {
  EXPECT_EQ(complaint("[" + repeated("0,", JsonDocument::kMaxNodes - 2) + "0]"), "");
  EXPECT_EQ(complaint("[" + repeated("0,", JsonDocument::kMaxNodes - 1) + "0]"),
            "f.json: 3500001 values and keys are too many (limit 3500000)");
  EXPECT_NE(complaint("{" + repeated("\"\":0,", JsonDocument::kMaxNodes / 2) + "\"\":0}"), "");
}

TEST(JsonDocumentTest, RefusesDeepNesting) {
  EXPECT_EQ(complaint(std::string(1'000'000, '[')),
            "f.json: JSON at byte 64 is nested deeper than 64");
}

}  // namespace
}  // namespace spillway
