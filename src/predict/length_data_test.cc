// SPDX-License-Identifier: Apache-2.0
#include "predict/length_data.h"

#include <gtest/gtest.h>

#include <string>

#include "base/test_scoped_folder.h"
#include "storage/test_folder.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

LengthData parse(const std::string& text) {
  static const Tokenizer tokenizer(byte_vocabulary());
  return parse_length_data(text, "data", tokenizer);
}

int64_t tokens_of(const std::string& text) {
  const Tokenizer tokenizer(byte_vocabulary());
  return static_cast<int64_t>(tokenizer.encode(text, {.add_special = false}).size());
}

TEST(LengthDataTest, ReadsAlpaca) {
  const LengthData data = parse(R"([{"instruction": "Say it", "input": "", "output": "aaa bbb"},
      {"instruction": "Say that", "input": "loud", "output": "a"}, {"instruction": "No answer"}])");
  ASSERT_EQ(data.examples.size(), 2U);
  EXPECT_EQ(data.examples[0].prompt, "Say it");
  EXPECT_EQ(data.examples[0].tokens, tokens_of("aaa bbb"));
  EXPECT_EQ(data.examples[1].prompt, "Say that\nloud");
  EXPECT_EQ(data.examples[1].group, "Say that");
  EXPECT_EQ(data.without_answer, 1);
}

TEST(LengthDataTest, ReadsConversationsAnswerByAnswer) {
  const LengthData data = parse(R"([{"id": "1", "conversations": [
      {"from": "human", "value": "first"}, {"from": "gpt", "value": "aa"},
      {"from": "human", "value": "second"}, {"from": "gpt", "value": "bb bb"},
      {"from": "human", "value": "third"}]}])");
  ASSERT_EQ(data.examples.size(), 2U);
  EXPECT_EQ(data.examples[1].prompt, "second");
  EXPECT_EQ(data.examples[1].group, "first");
  EXPECT_EQ(data.examples[1].tokens, tokens_of("bb bb"));
  EXPECT_EQ(data.without_answer, 1);
}

TEST(LengthDataTest, ReadsLinesWithTextsNumbersAndIds) {
  const LengthData data = parse(
      "{\"prompt\": \"a\", \"output\": \"bb\"}\n\n{\"prompt\": \"b\", \"tokens\": 17}\r\n"
      "{\"prompt\": \"c\", \"tokens\": [1, 2, 3]}");
  ASSERT_EQ(data.examples.size(), 3U);
  EXPECT_EQ(data.examples[1].tokens, 17);
  EXPECT_EQ(data.examples[2].tokens, 3);
}

TEST(LengthDataTest, SaysWhereItIsWrong) {
  const auto complaint = [](const std::string& text) { return error_of([&] { parse(text); }); };
  EXPECT_NE(complaint("[{\"instruction\": 1}]").find("element 0"), std::string::npos);
  EXPECT_NE(complaint("{\"prompt\": \"a\", \"tokens\": 1}\n{\"q\": 1}").find("data:2"),
            std::string::npos);
  EXPECT_NE(complaint("{\"prompt\": \"a\", \"tokens\": -1}").find("tokens"), std::string::npos);
  EXPECT_NE(complaint("[{\"conversations\": [{\"from\": \"human\"}]}]").find("value"),
            std::string::npos);
  EXPECT_NE(complaint("").find("no prompt"), std::string::npos);
  EXPECT_NE(complaint("[]").find("no prompt"), std::string::npos);
  EXPECT_NE(complaint("{\"prompt\": ").find("data:1"), std::string::npos);
  EXPECT_NE(complaint("\xFD"
                      "7zXZ")
                .find("xz -dk"),
            std::string::npos);
}

TEST(LengthDataTest, ReadsFiles) {
  const TempFolder folder;
  const auto path = folder.write("d.jsonl", "{\"prompt\": \"a\", \"tokens\": 4}\n");
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(read_length_data(path, tokenizer).examples.front().tokens, 4);
  EXPECT_NE(error_of([&] { read_length_data(folder / "none", tokenizer); }), "no error");
}

}  // namespace
}  // namespace spillway
