// SPDX-License-Identifier: Apache-2.0
#include "text/word_splitter.h"

#include <algorithm>
#include <utility>

#include "text/byte_alphabet.h"

namespace spillway {
namespace {

bool begins_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }

// Splits the letters that stand for the bytes of `word`, and splits `word` at the same places.
void split_by_letters(RegexSearch& search, std::string_view word,
                      std::vector<std::string_view>& pieces) {
  const std::string letters = spell_bytes(word);
  std::vector<std::string_view> cut;
  split_by_matches(search, letters, cut);
  for (const std::string_view piece : cut) {
    const auto bytes =
        static_cast<size_t>(std::count_if(piece.begin(), piece.end(), begins_character));
    pieces.push_back(word.substr(0, bytes));
    word.remove_prefix(bytes);
  }
}

}  // namespace

WordSplitter::WordSplitter(std::span<const SplitStage> stages) {
  for (const SplitStage& stage : stages) stages_.push_back({Regex(stage.pattern), stage.on_bytes});
}

WordSplit::WordSplit(const WordSplitter& splitter) : splitter_(splitter) {
  for (const WordSplitter::Stage& stage : splitter.stages_) searches_.emplace_back(stage.regex);
}

std::span<const std::string_view> WordSplit::split(std::string_view text) {
  words_.clear();
  if (!text.empty()) words_.push_back(text);
  for (size_t i = 0; i < searches_.size(); ++i) {
    next_.clear();
    for (const std::string_view word : words_) {
      if (splitter_.stages_[i].on_bytes)
        split_by_letters(searches_[i], word, next_);
      else
        split_by_matches(searches_[i], word, next_);
    }
    std::swap(words_, next_);
  }
  return words_;
}

}  // namespace spillway
