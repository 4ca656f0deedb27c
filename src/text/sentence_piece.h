// SPDX-License-Identifier: Apache-2.0
// Implements SentencePiece's BPE (Llama 1 and 2, Phi-3, Gemma): characters are merged, and unknown
// ones fall back to byte tokens.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"
#include "text/text_encoder.h"
#include "text/token_index.h"

namespace spillway {

// Keeps references to the vocabulary and the index. If the vocabulary has merges, they rank the
// pairs, as in tokenizer.json. If not, any two neighbours whose joint text is a token are merged,
// the highest score first, as in SentencePiece's own model files and GGUF.
class SentencePiece final : public TextEncoder {
 public:
  // Throws Error(kInvalidArgument) if a merge does not name two known tokens whose joint text is a
  // token.
  SentencePiece(const Vocabulary& vocabulary, const TokenIndex& index);
  void encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const override;

 private:
  struct Scratch;
  std::string with_space_symbols(std::string_view text, bool first) const;
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const;
  void merge_by_score(std::string_view word, Scratch& scratch) const;
  // Appends the ids of one symbol left after merging, whose token may be unused or missing.
  void emit(std::string_view text, TokenId id, const Scratch& scratch,
            std::vector<TokenId>& ids) const;
  void emit_unknown(std::string_view text, std::vector<TokenId>& ids) const;
  bool is_unused(TokenId id) const;

  const Vocabulary& vocabulary_;
  const TokenIndex& index_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_;
  // No token reaches from one word into the next, so each word can be merged by itself.
  bool words_are_separate_ = true;
};

}  // namespace spillway
