// SPDX-License-Identifier: Apache-2.0
// Splits texts into words as BERT does, for tests/python/test_word_piece.py: bert_words RULES <
// TEXTS. RULES are some of the letters c (clean), i (ideographs alone), a (no accents), l
// (lowercase); texts end with a NUL. Each text gives a line: its words, separated by blanks.
#include <fmt/core.h>

#include <iostream>
#include <string>
#include <string_view>

#include "text/bert_words.h"

int main(int argc, char** argv) {
  const std::string_view letters = argc == 2 ? argv[1] : "?";
  if (letters.find_first_not_of("cial") != std::string_view::npos) {
    fmt::print(stderr, "usage: bert_words RULES < TEXTS\n");
    return 2;
  }
  const auto has = [&](char letter) { return letters.find(letter) != std::string_view::npos; };
  const spillway::BertWordRules rules{.clean = has('c'),
                                      .split_ideographs = has('i'),
                                      .strip_accents = has('a'),
                                      .lowercase = has('l')};
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::string text; std::getline(std::cin, text, '\0');) {
    line.clear();
    spillway::for_each_bert_word(text, rules, [&](std::string_view word) {
      line.append(line.empty() ? "" : " ").append(word);
      return true;
    });
    std::cout << line << '\n';
  }
  return 0;
}
