// SPDX-License-Identifier: Apache-2.0
// Prompts with the lengths of their answers, from files as people have them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace spillway {

struct LengthExample {
  std::string prompt;
  std::string
      group;  // what tells it from others: examples of one are never on both sides of a split
  int64_t tokens = 0;  // of the answer
};

struct LengthData {
  std::vector<LengthExample> examples;
  int64_t without_answer = 0;  // left out
};

// A JSON array of Alpaca's objects (instruction, input, output) or ShareGPT's (conversations: each
// answer with what was said before it), or JSON lines with prompt and output, or tokens (how many,
// or the answer's ids). Answers are measured with `tokenizer`, without special tokens. Throws
// kInvalidArgument naming file, element and field, also where there is no answer at all.
LengthData read_length_data(const std::filesystem::path& path, const Tokenizer& tokenizer);

// The same of a text; `label` is in complaints.
LengthData parse_length_data(std::string_view text, const std::string& label,
                             const Tokenizer& tokenizer);

}  // namespace spillway
