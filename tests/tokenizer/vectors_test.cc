// SPDX-License-Identifier: Apache-2.0
// Tests every tokenizer with 47 strings whose ids are known, and the chat templates of real models.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/vocabulary_from_files.h"
#include "storage/model_files.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace spillway {
namespace {

const std::filesystem::path kData = SPW_SHARED_DATA;
constexpr EncodeOptions kTextOnly{.add_special = false};

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string read_xz(const std::filesystem::path& path) {
  const std::string command = "xz -dc '" + path.string() + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[65536];
  for (size_t bytes = 0; pipe && (bytes = fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;)
    text.append(buffer, bytes);
  return text;
}

struct Vector {
  std::string text;
  std::vector<TokenId> ids;
};

// Reads texts that are separated by a line of their own, and one line of ids for each of them.
std::vector<Vector> read_vectors(const std::string& name) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  const auto folder = kData / "tokenizer-vectors";
  const std::string texts = read_text(folder / ("ggml-vocab-" + name + ".gguf.inp"));
  std::istringstream lines(read_text(folder / ("ggml-vocab-" + name + ".gguf.out")));
  std::vector<Vector> vectors;
  for (size_t begin = 0; begin <= texts.size();) {
    const size_t end = std::min(texts.find(kSeparator, begin), texts.size());
    Vector vector{.text = texts.substr(begin, end - begin), .ids = {}};
    std::string line;
    std::getline(lines, line);
    std::istringstream numbers(line);
    for (TokenId id = 0; numbers >> id;) vector.ids.push_back(id);
    vectors.push_back(std::move(vector));
    begin = end == texts.size() ? texts.size() + 1 : end + kSeparator.size();
  }
  return vectors;
}

Vocabulary read_folder(const std::string& name) {
  const auto folder = kData / "tokenizers" / name;
  return vocabulary_from_tokenizer_json(read_xz(folder / "tokenizer.json.xz"),
                                        read_text(folder / "tokenizer_config.json"), name);
}

struct Case {
  std::string vectors;
  std::string gguf;    // a vocabulary-only file, or
  std::string folder;  // a folder with tokenizer.json.xz
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.vectors << " " << c.gguf << c.folder; }

class TokenizerVectorsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kData / "tokenizer-vectors"))
      GTEST_SKIP() << "../shared/data/tokenizer-vectors is not here";
  }
};

TEST_P(TokenizerVectorsTest, GivesTheKnownIdsAndTheTextBack) {
  const Case& c = GetParam();
  const Tokenizer tokenizer(
      c.gguf.empty() ? read_folder(c.folder)
                     : vocabulary_from_files(open_tokenizer(kData / "tokenizer-vectors" / c.gguf)));
  const std::vector<Vector> vectors = read_vectors(c.vectors);
  EXPECT_EQ(vectors.size(), 47U);
  for (const Vector& vector : vectors) {
    EXPECT_EQ(tokenizer.encode(vector.text, kTextOnly), vector.ids) << vector.text;
    EXPECT_EQ(tokenizer.decode(vector.ids), vector.text);
    IncrementalDetokenizer detokenizer(tokenizer);
    std::string text;
    for (TokenId id : vector.ids) text += detokenizer.push(id);
    EXPECT_EQ(text + detokenizer.flush(), vector.text);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerVectorsTest,
    testing::Values(Case{"gpt-2", "ggml-vocab-gpt-2.gguf", ""}, Case{"gpt-2", "", "gpt2"},
                    Case{"llama-spm", "ggml-vocab-llama-spm.gguf", ""},
                    Case{"llama-spm", "", "llama2"}, Case{"phi-3", "ggml-vocab-phi-3.gguf", ""},
                    Case{"llama-bpe", "", "llama3"}, Case{"qwen2", "", "qwen2_5"}));

class RealChatTemplatesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kData / "tokenizers"))
      GTEST_SKIP() << "../shared/data/tokenizers is not here";
  }
  static std::string render(const Vocabulary& vocabulary) {
    const std::vector<ChatMessage> messages = {
        {"user", " Hi\n"}, {"assistant", "Yes?"}, {"user", "Bye"}};
    std::string text;
    const ChatTemplate chat(vocabulary.chat_template, vocabulary);
    for (const TextSegment& segment : chat.render({.messages = messages_to_json(messages)}))
      text += segment.text;
    return text;
  }
};

// The expected texts are what Jinja renders.
TEST_F(RealChatTemplatesTest, RendersWhatJinjaRenders) {
  EXPECT_EQ(render(read_folder("llama2")), "<s>[INST] Hi [/INST] Yes? </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(render(read_folder("llama3")),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(render(read_folder("qwen2_5")),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n"
            "Yes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(RealChatTemplatesTest, RendersThePhi3TemplateOfAGguf) {
  const auto path = kData / "tokenizer-vectors" / "ggml-vocab-phi-3.gguf";
  EXPECT_EQ(render(vocabulary_from_files(open_tokenizer(path))),
            "<s><|user|>\n Hi\n<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nBye<|end|>\n"
            "<|assistant|>\n");
}

}  // namespace
}  // namespace spillway
