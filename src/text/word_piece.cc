// SPDX-License-Identifier: Apache-2.0
#include "text/word_piece.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

size_t characters_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

}  // namespace

WordPiece::WordPiece(const WordPieceVocabulary& vocabulary)
    : words_(vocabulary.words),
      longest_word_(vocabulary.longest_word),
      unknown_(vocabulary.unknown),
      first_(vocabulary.first),
      last_(vocabulary.last),
      size_(vocabulary.pieces.size()) {
  for (const TokenId id : {unknown_, first_, last_}) {
    SPW_CHECK(id >= 0 && static_cast<size_t>(id) < size_, kInvalidArgument,
              "a special token has the id {}, the vocabulary has {}", id, size_);
  }
  for (size_t id = 0; id < size_; ++id) {
    const std::string& piece = vocabulary.pieces[id];
    if (piece.empty()) continue;
    longest_piece_ = std::max(longest_piece_, piece.size());
    const auto& mark = vocabulary.continuation;
    // If a piece occurs twice, the last one counts, as in the libraries that models come from.
    beginnings_.insert_or_assign(piece, static_cast<TokenId>(id));
    if (piece.starts_with(mark))
      continuations_.insert_or_assign(piece.substr(mark.size()), static_cast<TokenId>(id));
  }
}

void WordPiece::append_word(std::string_view word, std::vector<TokenId>& ids) const {
  const size_t before = ids.size();
  const auto is_unknown = [&] {
    ids.resize(before);
    ids.push_back(unknown_);
  };
  if (characters_of(word) > longest_word_) return is_unknown();
  for (size_t begin = 0; begin < word.size();) {
    const Pieces& pieces = begin == 0 ? beginnings_ : continuations_;
    size_t size = std::min(word.size() - begin, longest_piece_);
    auto found = pieces.end();
    for (; size > 0; --size) {
      const size_t end = begin + size;
      if (end < word.size() && !begins_character(word[end])) continue;
      found = pieces.find(word.substr(begin, size));
      if (found != pieces.end()) break;
    }
    if (found == pieces.end()) return is_unknown();
    ids.push_back(found->second);
    begin += size;
  }
}

std::vector<TokenId> WordPiece::encode(std::string_view text, size_t most_tokens) const {
  SPW_ASSERT(most_tokens >= 2);
  std::vector<TokenId> ids = {first_};
  for_each_bert_word(text, words_, [&](std::string_view word) {
    append_word(word, ids);
    return ids.size() < most_tokens - 1;
  });
  ids.resize(std::min(ids.size(), most_tokens - 1));
  ids.push_back(last_);
  return ids;
}

}  // namespace spillway
