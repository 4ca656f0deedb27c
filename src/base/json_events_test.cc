// SPDX-License-Identifier: Apache-2.0
#include "base/json_events.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

// Records the events as text.
class Recorder final : public JsonHandler {
 public:
  void expect(uint64_t count) override { expected = count; }
  void start_object() override { open("{"); }
  void key(std::string& name) override { add(name + ":"); }
  void end_object() override { log += "} "; }
  void start_array() override { open("["); }
  void end_array() override { log += "] "; }
  void string(std::string& value) override { add(fmt::format("'{}'", value)); }
  void integer(int64_t value) override { add(fmt::format("{}", value)); }
  void large_unsigned(uint64_t value) override { add(fmt::format("{}u", value)); }
  void number(double value) override { add(fmt::format("{}f", value)); }
  void boolean(bool value) override { add(value ? "true" : "false"); }
  void null() override { add("null"); }

  std::string log;
  uint64_t expected = 0;
  uint64_t told = 0;

 private:
  void open(const char* bracket) { add(bracket); }
  void add(const std::string& text) {
    log += text + " ";
    ++told;
  }
};

std::string error_of(const std::string& text, uint64_t base = 0) {
  Recorder recorder;
  try {
    read_json_events(text, "f.json", recorder, base);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

TEST(JsonEventsTest, TellsValuesInTheOrderOfTheText) {
  Recorder recorder;
  read_json_events(
      R"({"a": [1, -2, 18446744073709551615, 0.5, 1e3], "b\n": {"c": null}, "d": true})", "f.json",
      recorder);
  EXPECT_EQ(recorder.log,
            "{ a: [ 1 -2 18446744073709551615u 0.5f 1000f ] b\n: { c: null } d: true } ");
}

TEST(JsonEventsTest, ForetellsHowManyValuesAndKeysFollow) {
  for (const char* text : {"0", "[]", "{}", "[ \t\r\n]", "[[]]", "[[],[]]", "[{}, {} ]", "[1,2,3]",
                           R"({"a":1})", R"({"a":{"b":[",:[{","\"]"]}})", R"( [ "" , [ 1 ] ] )"}) {
    Recorder recorder;
    read_json_events(text, "f.json", recorder);
    EXPECT_EQ(recorder.expected, recorder.told) << text;
  }
}

TEST(JsonEventsTest, SaysWhereTheTextIsNotJson) {
  EXPECT_THAT(error_of("[1, x]"), HasSubstr("f.json: not valid JSON at byte 4: "));
  EXPECT_THAT(error_of("[1, x]", 8), HasSubstr("f.json: not valid JSON at byte 12: "));
  EXPECT_THAT(error_of("[1] 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[\"\xFF\"]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(""), HasSubstr("not valid JSON at byte 0"));
}

TEST(JsonEventsTest, LimitsDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(error_of(nested(kMaxJsonDepth)), "no error");
  EXPECT_EQ(error_of(nested(kMaxJsonDepth + 1), 8),
            "f.json: JSON at byte 72 is nested deeper than 64");
  EXPECT_EQ(error_of("[\"" + std::string(1000, '[') + "\"]"), "no error");
}

TEST(JsonEventsTest, LimitsTheSizeOfATokenAndOfBlanks) {
  for (const char filler : {'x', '1', ' '}) {
    const std::string quote = filler == 'x' ? "\"" : "";
    const std::string text =
        "[" + quote + std::string(kMaxJsonTokenBytes + 1, filler) + quote + "]";
    EXPECT_THAT(error_of(text), HasSubstr("has more than 8388608 bytes")) << filler;
  }
  // The parser keeps empty containers and nulls together with the last token, too.
  for (const std::string part : {"[],", "null,"}) {
    std::string text = "[";
    while (text.size() <= kMaxJsonTokenBytes) text += part;
    EXPECT_THAT(error_of(text + "0]"), HasSubstr("has more than 8388608 bytes")) << part;
    text.insert(text.size() / 2 / part.size() * part.size() + 1, "-1.5e+3,");
    EXPECT_EQ(error_of(text + "0]"), "no error") << part;
  }
}

}  // namespace
}  // namespace spillway
