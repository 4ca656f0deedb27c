// SPDX-License-Identifier: Apache-2.0
// Reads prompts with the lengths of their answers from files in common formats.
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
  std::string group;   // examples of a group are all on the same side of a train/test split
  int64_t tokens = 0;  // length of the answer
};

struct LengthData {
  std::vector<LengthExample> examples;
  int64_t without_answer = 0;  // examples that were left out because they have no answer
};

// Reads a JSON array of Alpaca's objects (instruction, input, output) or ShareGPT's (conversations:
// each answer with the message before it), or JSON lines with prompt and either output or tokens
// (the answer's number of tokens or its ids). Answers in text are measured with `tokenizer`,
// without special tokens. Throws kInvalidArgument naming file, element and field, also if there is
// no answer at all.
LengthData read_length_data(const std::filesystem::path& path, const Tokenizer& tokenizer);

// Reads the same from a text; error messages begin with `label`.
LengthData parse_length_data(std::string_view text, const std::string& label,
                             const Tokenizer& tokenizer);

}  // namespace spillway
