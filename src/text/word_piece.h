// SPDX-License-Identifier: Apache-2.0
// Implements WordPiece, the tokenizer of BERT and related models: each word is split into the
// longest pieces that the vocabulary has.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bert_words.h"
#include "text/token_id.h"

namespace spillway {

struct WordPieceVocabulary {
  // The index is the id, and an empty text means that there is no such token. Pieces inside a word
  // begin with `continuation`.
  std::vector<std::string> pieces;
  std::string continuation = "##";
  size_t longest_word = 100;                 // in characters; longer words are unknown
  TokenId unknown = 0, first = 0, last = 0;  // [UNK], [CLS], [SEP]
  BertWordRules words;
};

// Immutable and thread-safe. Names of special tokens in a text are treated as plain text.
class WordPiece {
 public:
  // Throws kInvalidArgument if the special tokens are not in the vocabulary.
  explicit WordPiece(const WordPieceVocabulary& vocabulary);

  // Returns `first`, the pieces of `text` and `last`, at most `most_tokens` (2 or more) ids in all.
  // A longer text is cut off at the end and not read any further.
  std::vector<TokenId> encode(std::string_view text, size_t most_tokens) const;

  size_t size() const { return size_; }  // all ids are below it

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  using Pieces = std::unordered_map<std::string, TokenId, Hash, std::equal_to<>>;

  void append_word(std::string_view word, std::vector<TokenId>& ids) const;

  BertWordRules words_;
  size_t longest_word_, longest_piece_ = 0;  // characters, bytes
  TokenId unknown_, first_, last_;
  size_t size_;
  Pieces beginnings_, continuations_;  // continuations without their mark
};

}  // namespace spillway
