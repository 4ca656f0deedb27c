// SPDX-License-Identifier: Apache-2.0
#include "serve/json_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "serve/api_error.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

uint64_t count_values(const ordered_json& value) {
  uint64_t count = 1;
  if (value.is_structured())
    for (const ordered_json& inner : value) count += count_values(inner);
  return count;
}

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// Returns "status code param", or "" if the text passes.
std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    check_json_bounds(text, limits);
    return "";
  } catch (const ApiError& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
    return std::to_string(error.status()) + " " + error.code_name() + " " + error.param();
  }
}

TEST(JsonBoundsTest, CountsWhatATreeHas) {
  for (const char* text :
       {"7", "[]", "{}", "[1]", "[ ]", R"({"a": 1})", "[[], {}, [[]]]", R"(["a,b:[{", "\"],"])",
        R"({"a": [1, 2, {"b": null}], "c": "x\\", "d": {}})", " [ 1 , 2 ] ", R"("\u0041")"}) {
    EXPECT_EQ(check_json_bounds(text, {}).values, count_values(ordered_json::parse(text))) << text;
  }
  EXPECT_EQ(check_json_bounds(R"(["abc", "\u00e9\n", ""])", {}).text_bytes, 5U);
}

TEST(JsonBoundsTest, RefusesTooManyValuesByTheFieldThatHasThem) {
  const JsonLimits limits{.values = 100};
  const std::string ids = repeat("1,", 98) + "1";
  EXPECT_EQ(refusal("[" + ids + "]", limits), "");
  EXPECT_EQ(refusal("[1," + ids + "]", limits), "413 request_too_large ");
  EXPECT_EQ(refusal(R"({"model": "x", "prompt": [1,)" + ids + "]}", limits),
            "413 request_too_large prompt");
  EXPECT_EQ(refusal(R"({"messages": [)" + repeat(R"({"role": "user"},)", 50) + "{}]}", limits),
            "413 request_too_large messages");
}

TEST(JsonBoundsTest, RefusesATextThatNoContextCanHold) {
  const JsonLimits limits{.string_bytes = 10, .context_tokens = 5};
  EXPECT_EQ(refusal(R"({"content": "0123456789"})", limits), "");
  EXPECT_EQ(refusal(R"({"content": "0123456789a"})", limits),
            "400 context_length_exceeded content");
  EXPECT_EQ(refusal(R"({"content": ")" + repeat("\\u00e9", 10) + "\"}", limits), "")
      << "escapes are one byte at least";
  EXPECT_EQ(refusal(R"({"content": ")" + repeat("\\\"", 11) + "\"}", limits),
            "400 context_length_exceeded content");
}

TEST(JsonBoundsTest, RefusesDepthAndWideObjects) {
  EXPECT_EQ(refusal(repeat("[", 64) + repeat("]", 64)), "");
  EXPECT_EQ(refusal(repeat("[", 65) + repeat("]", 65)), "400 invalid_json ");
  EXPECT_EQ(refusal(repeat("[", 100'000)), "400 invalid_json ");
  EXPECT_EQ(refusal("[" + repeat("[],", 1000) + "[]]"), "");
  const auto members = [](int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
    return text + "}";
  };
  EXPECT_EQ(refusal(members(1024)), "");
  EXPECT_EQ(refusal(members(1025)), "400 invalid_json ");
}

// Random text must not be read beyond its end; if a parser accepts it, the counts must be right.
TEST(JsonBoundsTest, TextThatIsNoJsonDoesNoHarm) {
  std::mt19937 random(7);
  const std::string letters = "[]{}:,\"\\u0 \n1a\xff";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) text += letters[random() % letters.size()];
    const JsonSize size = check_json_bounds(text, {});
    EXPECT_LE(size.values, text.size() + 1);
    EXPECT_LE(size.text_bytes, text.size());
    const ordered_json tree = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    // A tree keeps only one of equal keys, so objects are not compared.
    if (tree.is_discarded() || text.find('{') != std::string::npos) continue;
    EXPECT_EQ(size.values, count_values(tree)) << text;
  }
}

}  // namespace
}  // namespace spillway
