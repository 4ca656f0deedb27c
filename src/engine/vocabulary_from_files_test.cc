// SPDX-License-Identifier: Apache-2.0
#include "engine/vocabulary_from_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/gguf_writer.h"
#include "storage/model_files.h"
#include "storage/test_folder.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder with five tokens, of which tokenizer_config.json names "d" as the end.
class FolderTest : public ::testing::Test {
 protected:
  std::vector<TokenId> ends(std::string_view config, std::string_view generation = "{}",
                            std::string_view tokenizer = R"({"eos_token": "d"})") {
    folder_.write("vocab.json", R"({"a": 0, "b": 1, "c": 2, "d": 3, "e": 4})");
    folder_.write("merges.txt", "");
    folder_.write("tokenizer_config.json", tokenizer);
    folder_.write("config.json", config);
    folder_.write("generation_config.json", generation);
    testing::internal::CaptureStderr();
    const Tokenizer tokenizer_of(vocabulary_from_files(open_tokenizer(folder_.path())));
    said_ = testing::internal::GetCapturedStderr();
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < 5; ++id) {
      if (tokenizer_of.is_end_of_generation(id)) ids.push_back(id);
    }
    return ids;
  }

  TempFolder folder_;
  std::string said_;
};

TEST_F(FolderTest, EndsAtWhatAnyOfItsFilesCallsTheEnd) {
  EXPECT_THAT(ends("{}"), ElementsAre(3));
  EXPECT_THAT(ends(R"({"eos_token_id": 1})"), ElementsAre(1, 3));
  EXPECT_THAT(ends(R"({"eos_token_id": [1, 2]})"), ElementsAre(1, 2, 3));
  EXPECT_THAT(ends(R"({"eos_token_id": 1})", R"({"eos_token_id": [3, 4]})"), ElementsAre(1, 3, 4));
  EXPECT_THAT(ends(R"({"eos_token_id": null})", R"({"eos_token_id": 0})"), ElementsAre(0, 3));
  EXPECT_EQ(said_, "");
}

TEST_F(FolderTest, SaysWhichIdsAreOfNoToken) {
  EXPECT_THAT(ends(R"({"eos_token_id": [1, 5], "bos_token_id": 99})"), ElementsAre(1, 3));
  EXPECT_THAT(said_, HasSubstr("config.json: eos_token_id is 5, but there are 5 tokens"));
  EXPECT_THAT(said_, HasSubstr("bos_token_id is 99"));
  ends("{}", R"({"eos_token_id": 7})");
  EXPECT_THAT(said_, HasSubstr("generation_config.eos_token_id is 7"));
  ends(R"({"eos_token_id": -1})");
  EXPECT_EQ(said_, "");
  ends("{}", "{}", R"({"eos_token": "</s>", "bos_token": "a"})");
  EXPECT_THAT(said_, HasSubstr("eos_token '</s>' is not in the vocabulary"));
}

std::string said_of_gguf(const char* key, uint32_t id) {
  TempFolder folder;
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", "gpt-2");
  StringArray tokens;
  for (const char* text : {"a", "b", "c"}) tokens.push_back(text);
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add_u32(key, id);
  writer.write(folder / "vocabulary.gguf");
  testing::internal::CaptureStderr();
  vocabulary_from_files(open_tokenizer(folder / "vocabulary.gguf"));
  return testing::internal::GetCapturedStderr();
}

TEST(GgufVocabularyTest, SaysWhichIdsAreOfNoToken) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.eot_token_id"}) {
    EXPECT_THAT(said_of_gguf(key, 3),
                HasSubstr(std::string(key) + " is 3, but there are 3 tokens"));
    EXPECT_EQ(said_of_gguf(key, 2), "");
    EXPECT_EQ(said_of_gguf(key, 0xFFFFFFFF), "");  // some converters write it for "none"
  }
}

}  // namespace
}  // namespace spillway
