// SPDX-License-Identifier: Apache-2.0
// Tests files that are valid or nearly so, and make a naive reader use many times their size in
// memory.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>

#include "storage/gguf_reader.h"
#include "storage/gguf_writer.h"
#include "storage/hf_index.h"
#include "storage/json_metadata.h"
#include "storage/safetensors_reader.h"
#include "tests/hostile/case_runner.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace spillway {
namespace {

std::string repeated(std::string_view text, size_t bytes) {
  std::string out;
  out.reserve(bytes + text.size());
  while (out.size() < bytes) out += text;
  return out;
}

class AmplificationTest : public ::testing::Test {
 protected:
  void TearDown() override { std::cout << "  " << runner_.summary() << std::endl; }
  void gguf(const Bytes& bytes, const char* what) {
    runner_.run(
        bytes.size(), [&] { return parse_gguf(MemorySource("m.gguf", bytes)); },
        [&] { return std::string(what); });
  }
  void safetensors(std::string_view header, const char* what) {
    Bytes bytes(8 + header.size());
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::memcpy(bytes.data() + 8, header.data(), header.size());
    runner_.run(
        bytes.size(),
        [&] {
          ModelFiles model;
          model.file_bytes = {bytes.size()};
          parse_safetensors(MemorySource("m.safetensors", bytes), 0, model);
          model.finish();
          return model;
        },
        [&] { return std::string(what); });
  }
  void config(std::string_view text, const char* what) {
    runner_.run(
        text.size(),
        [&] {
          ModelFiles model;
          model.metadata = Metadata("config.json");
          flatten_json(text, "config.json", "", model.metadata);
          return model;
        },
        [&] { return std::string(what); });
  }
  void tokenizer_json(std::string_view text, const char* what) {
    runner_.run(
        text.size(),
        [&] {
          Tokenizer tokenizer(vocabulary_from_tokenizer_json(text, "", "folder"));
          return ModelFiles{};
        },
        [&] { return std::string(what); });
  }
  CaseRunner runner_;
};

constexpr size_t kMillion = 1'000'000;

TEST_F(AmplificationTest, GgufArraysTakeNoMoreThanTheyDoInTheFile) {
  for (const NumberType type : {NumberType::kU8, NumberType::kBool, NumberType::kI16}) {
    GgufWriter writer;
    writer.add("a", NumberArray{type, Bytes(32 * kMillion)});
    gguf(writer.bytes(), "numbers");
  }
  StringArray empty_strings;
  for (size_t i = 0; i < 4 * kMillion; ++i) empty_strings.push_back("");
  GgufWriter strings;
  strings.add("a", empty_strings);
  gguf(strings.bytes(), "empty strings");
  GgufWriter text;
  text.add("a", StringArray(std::vector<std::string>(3, std::string(40 * kMillion, 'x'))));
  text.add("b", std::string(60 * kMillion, 'x'));
  gguf(text.bytes(), "long strings");
  EXPECT_EQ(runner_.accepted(), 5);
}

TEST_F(AmplificationTest, GgufKeysAndTensorsAreLimited) {
  GgufWriter keys;
  for (int i = 0; i < 66'000; ++i) keys.add_bool(fmt::format("{}", i), true);
  gguf(keys.bytes(), "keys");
  GgufWriter tensors;
  for (size_t i = 0; i < ModelFiles::kMaxTensors; ++i)
    tensors.add_tensor(fmt::format("{}", i), DType::kF32, {1, 1, 1, 1}, Bytes(4));
  gguf(tensors.bytes(), "tensors");
  EXPECT_EQ(runner_.accepted(), 1);
}

TEST_F(AmplificationTest, JsonIsNeverHeldAsATree) {
  safetensors("{\"__metadata__\": {\"a\": [" + repeated("[0],", 20 * kMillion) + "0]}}", "arrays");
  safetensors("{\"__metadata__\": {\"a\": [" + repeated("{},0,", 20 * kMillion) + "0]}}",
              "objects");
  safetensors("{\"__metadata__\": {" + repeated("\"a\":0,", 20 * kMillion) + "\"b\":0}}",
              "members");
  safetensors("{\"__metadata__\": {\"a\": \"" + std::string(8 * kMillion, 'x') + "\"}}", "text");
  EXPECT_EQ(runner_.accepted(), 4);
  safetensors("{\"__metadata__\": {\"a\": [" + repeated("[],", 20 * kMillion) + "0]}}", "brackets");
  safetensors("{\"__metadata__\": {\"a\": [" + repeated("null,", 20 * kMillion) + "0]}}", "nulls");
  safetensors("{\"__metadata__\": {\"a\": \"" + std::string(90 * kMillion, 'x') + "\"}}", "string");
  safetensors("{\"__metadata__\": {\"a\": " + std::string(50 * kMillion, '1') + "}}", "number");
  safetensors(std::string(20 * kMillion, '['), "deep arrays");
  safetensors(std::string(20 * kMillion, ' '), "blanks");
  EXPECT_EQ(runner_.accepted(), 4);
}

TEST_F(AmplificationTest, SafetensorsEntriesAreLimited) {
  for (const char* format : {R"("{}":{{"dtype":"I8","shape":[],"data_offsets":[0,0]}},)",
                             R"("{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},)"}) {
    for (const int count : {100'000, 400'000}) {
      std::string header = "{";
      for (int i = 0; i < count; ++i) header += fmt::format(fmt::runtime(format), i);
      header.back() = '}';
      safetensors(header, format);
    }
  }
  EXPECT_EQ(runner_.accepted(), 2);
}

TEST_F(AmplificationTest, ConfigValuesAreLimited) {
  constexpr size_t kBytes = 4'000'000;  // the most that is read
  config("{\"a\": [" + repeated("1,", kBytes) + "1]}", "integers");
  config("{\"a\": [" + repeated("1,", kBytes) + "0.5]}", "integers that become floats");
  config("{\"a\": [" + repeated("\"\",", kBytes) + "\"\"]}", "strings");
  EXPECT_EQ(runner_.accepted(), 3);
  config("{\"a\": [" + repeated("[],", kBytes) + "[]]}", "arrays");
  std::string keys = "{\"" + std::string(240, 'x') + "\": {";
  for (int i = 0; i < 400'000; ++i) keys += fmt::format("\"{}\":0,", i);
  config(keys + "\"a\":0}}", "long paths");
}

TEST_F(AmplificationTest, IndexEntriesAreLimited) {
  for (const char* format : {R"("{}":"a.safetensors",)", R"("{0}":"{0}.safetensors",)"}) {
    for (const int count : {10'000, 400'000}) {
      std::string text = R"({"weight_map": {)";
      for (int i = 0; i < count; ++i) text += fmt::format(fmt::runtime(format), i);
      text.back() = '}';
      text += '}';
      runner_.run(
          text.size(),
          [&] {
            parse_hf_index(text, "index.json");
            return ModelFiles{};
          },
          [&] { return std::string(format); });
    }
  }
  EXPECT_EQ(runner_.accepted(), 2);
}

TEST_F(AmplificationTest, TokenizersAreNeverHeldAsALargeTree) {
  tokenizer_json(std::string(30 * kMillion, '['), "deep arrays");
  for (const char* value : {"[]", "{}", "0", "[0]", "\"\"", R"("\n")", R"({"":0})", "[[0]]"}) {
    const std::string element = std::string(value) + ",";
    tokenizer_json("[" + repeated(element, (kSanitized ? 12 : 30) * kMillion) + "0]", value);
    // These have as many nodes as are allowed.
    const std::string_view text = value;
    const size_t nodes = text == R"({"":0})" || text == "[[0]]" ? 3 : text == "[0]" ? 2 : 1;
    tokenizer_json("[" + repeated(element, 3'490'000 / nodes * element.size()) + "0]", value);
  }
  tokenizer_json("{" + repeated("\"a\":0,", 1'740'000 * 6) + "\"b\":0}", "members");
  EXPECT_EQ(runner_.accepted(), 0);
}

TEST_F(AmplificationTest, TokensThatAreFoundEverywhereAreLimited) {
  std::string json = R"({"model": {"vocab": {}, "merges": []}, "added_tokens": [)";
  for (int i = 0; i < 60'000; ++i)
    json += fmt::format(R"({{"id": {}, "content": "{:0500}", "special": true}},)", i, i);
  json.back() = ']';
  json += R"(, "pre_tokenizer": {"type": "ByteLevel"}})";
  tokenizer_json(json, "added tokens");
  EXPECT_EQ(runner_.accepted(), 0);
}

}  // namespace
}  // namespace spillway
