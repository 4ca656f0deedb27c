// SPDX-License-Identifier: Apache-2.0
// Provides small vocabularies for the tests of this folder.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/vocabulary.h"

namespace spillway {

inline TokenId add_token(Vocabulary& vocabulary, std::string text,
                         TokenKind kind = TokenKind::kNormal, float score = 0) {
  vocabulary.tokens.push_back({.text = std::move(text), .score = score, .kind = kind});
  return static_cast<TokenId>(vocabulary.tokens.size() - 1);
}

// Returns a vocabulary of the 256 bytes (the id is the byte), one token for each merge, then
// <|end|> (control), <s> (control) and <tool> (user-defined).
inline Vocabulary byte_vocabulary(const std::vector<std::string>& merges = {}) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    add_token(vocabulary, std::string(byte_letter(static_cast<uint8_t>(byte))));
  for (const std::string& merge : merges) {
    const auto sides = try_split_merge(merge);
    add_token(vocabulary, std::string(sides->first) + std::string(sides->second));
    vocabulary.merges.push_back(merge);
  }
  vocabulary.eos = add_token(vocabulary, "<|end|>", TokenKind::kControl);
  vocabulary.bos = add_token(vocabulary, "<s>", TokenKind::kControl);
  add_token(vocabulary, "<tool>", TokenKind::kUserDefined);
  return vocabulary;
}

// Returns a vocabulary of <unk> <s> </s>, the 256 byte tokens (id 3 + byte), then the given pieces
// with falling scores: -1, -2 ...
inline Vocabulary piece_vocabulary(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = TokenizerModel::kSentencePiece;
  vocabulary.unk = add_token(vocabulary, "<unk>", TokenKind::kUnknown);
  vocabulary.bos = add_token(vocabulary, "<s>", TokenKind::kControl);
  vocabulary.eos = add_token(vocabulary, "</s>", TokenKind::kControl);
  for (int byte = 0; byte < 256; ++byte)
    add_token(vocabulary, fmt::format("<0x{:02X}>", byte), TokenKind::kByte);
  float score = 0;
  for (const std::string& piece : pieces)
    add_token(vocabulary, piece, TokenKind::kNormal, score -= 1.0F);
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

}  // namespace spillway
