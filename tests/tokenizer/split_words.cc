// SPDX-License-Identifier: Apache-2.0
// Splits texts into words, for tests/python/test_pre_splits.py: split_words PRE < TEXTS. PRE is a
// value of GGUF's tokenizer.ggml.pre; texts end with a NUL. Each text gives a line: the lengths of
// its words in bytes.
#include <fmt/core.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "base/error.h"
#include "text/word_splitter.h"

int main(int argc, char** argv) {
  const auto pre_split = spillway::try_pre_split_from_gguf_name(argc == 2 ? argv[1] : "");
  if (!pre_split) {
    fmt::print(stderr, "usage: split_words PRE < TEXTS\n");
    return 2;
  }
  try {
    const spillway::WordSplitter splitter(spillway::pre_split_stages(*pre_split));
    spillway::WordSplit cut(splitter);
    std::ios::sync_with_stdio(false);
    std::string line;
    for (std::string text; std::getline(std::cin, text, '\0');) {
      line.clear();
      for (const std::string_view word : cut.split(text)) line += fmt::format("{} ", word.size());
      fmt::print("{}\n", line);
    }
  } catch (const spillway::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
