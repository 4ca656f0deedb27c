// SPDX-License-Identifier: Apache-2.0
#include "storage/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "storage/json_metadata.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

std::vector<std::string_view> list(const StringArray& array) {
  return {array.begin(), array.end()};
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Metadata flat(std::string_view json) {
  Metadata metadata("config.json");
  flatten_json(json, "config.json", "", metadata);
  return metadata;
}

TEST(MetadataTest, GettersReturnWhatWasAdded) {
  Metadata m("m.gguf");
  m.add("i", int64_t{-3});
  m.add("u", uint64_t{7});
  m.add("d", 0.5);
  m.add("b", true);
  m.add("s", std::string("text"));
  m.add("strings", StringArray({"a", "", "c"}));
  EXPECT_EQ(m.get_int("i"), -3);
  EXPECT_EQ(m.get_int("u"), 7);
  EXPECT_EQ(m.get_double("d"), 0.5);
  EXPECT_EQ(m.get_double("u"), 7.0);
  EXPECT_TRUE(m.get_bool("b"));
  EXPECT_EQ(m.get_string("s"), "text");
  EXPECT_THAT(list(m.get_string_array("strings")), ElementsAre("a", "", "c"));
  EXPECT_THAT(m.keys(), ElementsAre("i", "u", "d", "b", "s", "strings"));
}

TEST(MetadataTest, MissingKeysAreNulloptOrAnErrorThatNamesThem) {
  const Metadata m("m.gguf");
  EXPECT_EQ(m.try_int("k"), std::nullopt);
  EXPECT_EQ(m.try_double("k"), std::nullopt);
  EXPECT_EQ(m.try_bool("k"), std::nullopt);
  EXPECT_EQ(m.try_string("k"), nullptr);
  EXPECT_EQ(m.try_string_array("k"), nullptr);
  EXPECT_EQ(m.try_int_array("k"), std::nullopt);
  EXPECT_EQ(m.try_float_array("k"), std::nullopt);
  EXPECT_EQ(m.describe("k"), "missing");
  EXPECT_EQ(error_of([&] { m.get_int("llama.block_count"); }),
            "m.gguf: key 'llama.block_count' is missing; expected an integer");
}

TEST(MetadataTest, AWrongTypeNamesKeyOffsetExpectedAndFound) {
  Metadata m("m.gguf");
  m.add("k", std::string("a\nb"), 99);
  EXPECT_EQ(
      error_of([&] { m.get_int("k"); }),
      "m.gguf: key 'k' at byte 99: expected an integer below 2^63, found the string \"a\\nb\"");
  EXPECT_THAT(error_of([&] { m.try_double("k"); }), HasSubstr("expected a finite number"));
  EXPECT_THAT(error_of([&] { m.try_bool("k"); }), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of([&] { m.try_string_array("k"); }),
              HasSubstr("expected an array of strings"));
  EXPECT_THAT(error_of([&] { m.try_int_array("k"); }), HasSubstr("expected an array of integers"));
}

TEST(MetadataTest, NumbersOutOfRangeAreRefused) {
  Metadata m("m.gguf");
  m.add("big", std::numeric_limits<uint64_t>::max());
  m.add("nan", std::numeric_limits<double>::quiet_NaN());
  m.add("n", int64_t{33});
  EXPECT_THAT(error_of([&] { m.get_int("big"); }), HasSubstr("18446744073709551615"));
  EXPECT_THAT(error_of([&] { m.get_double("nan"); }), HasSubstr("finite"));
  EXPECT_EQ(m.get_int("n", 1, 33), 33);
  EXPECT_EQ(m.try_int("other", 1, 32), std::nullopt);
  EXPECT_EQ(error_of([&] { m.get_int("n", 1, 32); }),
            "m.gguf: key 'n': expected an integer from 1 to 32, found the integer 33");
  EXPECT_THAT(error_of([&] { m.get_double("n", 0, 1); }), HasSubstr("a number from 0 to 1"));
}

TEST(MetadataTest, KeysMustBeNewNotEmptyAndShort) {
  Metadata m("m.gguf");
  m.add("k", true, 5);
  EXPECT_EQ(error_of([&] { m.add("k", true, 9); }), "m.gguf: key 'k' at byte 9 is there twice");
  EXPECT_THAT(error_of([&] { m.add("", true); }), HasSubstr("empty key"));
  EXPECT_THAT(error_of([&] { m.add(std::string(257, 'x'), true); }), HasSubstr("257 bytes"));
}

TEST(MetadataTest, DescribesValuesOnOneShortLine) {
  Metadata m("m.gguf");
  m.add("text", "\"x\"\n" + std::string(500, 'y'));
  m.add("strings", StringArray(std::vector<std::string>(1000, "to\nken")));
  NumberArray numbers{NumberType::kI8, std::vector<std::byte>(6, std::byte{0xff})};
  m.add("numbers", numbers);
  EXPECT_THAT(m.describe("text"), HasSubstr("\"\\\"x\\\"\\nyyy"));
  EXPECT_LT(m.describe("text").size(), 100u);
  EXPECT_EQ(m.describe("strings"),
            R"([1000 strings: "to\nken", "to\nken", "to\nken", "to\nken", ...])");
  EXPECT_EQ(m.describe("numbers"), "[6 i8: -1, -1, -1, -1, ...]");
  EXPECT_THAT(m.get_int_array("numbers"), ElementsAre(-1, -1, -1, -1, -1, -1));
}

TEST(JsonMetadataTest, FlattensObjectsToDottedPaths) {
  const Metadata m = flat(R"({"a": 1, "rope": {"factor": 8.0, "deep": {"x": "y"}}, "n": null,
                              "ids": [1, 2], "mix": [1, 2.5], "names": ["p", "q"],
                              "flags": [true, false], "none": [], "z": false})");
  EXPECT_THAT(m.keys(), ElementsAre("a", "rope.factor", "rope.deep.x", "ids", "mix", "names",
                                    "flags", "none", "z"));
  EXPECT_EQ(m.get_double("rope.factor"), 8.0);
  EXPECT_EQ(m.get_string("rope.deep.x"), "y");
  EXPECT_THAT(m.get_int_array("ids"), ElementsAre(1, 2));
  EXPECT_THAT(m.get_float_array("mix"), ElementsAre(1.0f, 2.5f));
  EXPECT_THAT(m.get_float_array("ids"), ElementsAre(1.0f, 2.0f));
  EXPECT_EQ(m.describe("flags"), "[2 bool: true, false]");
  EXPECT_TRUE(m.get_string_array("none").empty());
  EXPECT_TRUE(m.get_int_array("none").empty());
}

TEST(JsonMetadataTest, FlattensWhatArraysContain) {
  const Metadata m =
      flat(R"({"l": [{"t": 1}, {"t": 2, "u": [3]}, [4, [5]], "s", null], "after": 6})");
  EXPECT_THAT(m.keys(), ElementsAre("l.0.t", "l.1.t", "l.1.u", "l.2.1", "l.2", "l", "after"));
  EXPECT_EQ(m.get_int("l.1.t"), 2);
  EXPECT_THAT(m.get_int_array("l.2.1"), ElementsAre(5));
  EXPECT_EQ(m.describe("l"), "[5 values of several types]");
  EXPECT_THAT(error_of([&] { m.get_int_array("l"); }), HasSubstr("expected an array of integers"));
}

TEST(JsonMetadataTest, LargeIntegersKeepTheirValue) {
  const Metadata m = flat(R"({"max": 9223372036854775807, "u": 18446744073709551615, "f": 1e300})");
  EXPECT_EQ(m.get_int("max"), std::numeric_limits<int64_t>::max());
  EXPECT_THAT(error_of([&] { m.get_int("u"); }), HasSubstr("below 2^63"));
  EXPECT_EQ(m.get_double("f"), 1e300);
}

TEST(JsonMetadataTest, BadTextIsOneLineWithAPosition) {
  EXPECT_THAT(error_of([] { flat("{\"a\": 1,\n \"b\"; 2}"); }),
              ::testing::AllOf(HasSubstr("config.json: not valid JSON at byte 13"),
                               ::testing::Not(HasSubstr("\n"))));
  for (const char* text : {"", "[1]", "3", "\"x\"", "null", "{\"a\": 1} x", "{\"a\": 1e999}"})
    EXPECT_THAT(error_of([&] { flat(text); }), HasSubstr("config.json: ")) << text;
  EXPECT_THAT(error_of([] { flat(R"({"a": 1, "a": 2})"); }), HasSubstr("'a' is there twice"));
  EXPECT_THAT(error_of([] { flat(R"({"a.b": 1, "a": {"b": 2}})"); }), HasSubstr("twice"));
}

TEST(JsonMetadataTest, DeepNestingIsRefusedWithoutRecursion) {
  const std::string brackets = "{\"a\":" + std::string(100'000, '[');
  EXPECT_THAT(error_of([&] { flat(brackets); }), HasSubstr("nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(error_of([&] { flat(objects); }), HasSubstr("nested deeper than 64"));
  const std::string closed = "{\"a\":" + std::string(50, '[') + std::string(50, ']') + "}";
  EXPECT_EQ(error_of([&] { flat(closed); }), "no error");
}

TEST(JsonMetadataTest, OverlongTokensAndPathsAreRefused) {
  EXPECT_THAT(error_of([] { flat("{\"a\": \"" + std::string(9 << 20, 'x') + "\"}"); }),
              HasSubstr("a string or number at byte 6, with what follows it, has more than"));
  EXPECT_THAT(error_of([] { flat("{\"a\": " + std::string(9 << 20, '1') + "}"); }),
              HasSubstr("has more than"));
  const std::string name(200, 'k');
  EXPECT_THAT(error_of([&] { flat("{\"" + name + "\": {\"" + name + "\": 1}}"); }),
              HasSubstr("more than 256 bytes"));
}

}  // namespace
}  // namespace spillway
