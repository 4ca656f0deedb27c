// SPDX-License-Identifier: Apache-2.0
// SentencePiece's BPE (Llama 1 and 2, Phi-3, Gemma): characters are merged, what is unknown falls
// back to bytes.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"
#include "text/text_encoder.h"
#include "text/token_index.h"

namespace spillway {

// Keeps references to the vocabulary and the index. With merges in the vocabulary they rank the
// pairs, as in tokenizer.json; without, any two neighbours whose joint text is a token merge, the
// highest score first, as in SentencePiece's own model files and GGUF.
class SentencePiece final : public TextEncoder {
 public:
  // Throws Error(kInvalidArgument) for merges that are not two known tokens with a known joint
  // text.
  SentencePiece(const Vocabulary& vocabulary, const TokenIndex& index);
  void encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const override;

 private:
  struct Scratch;
  std::string with_space_symbols(std::string_view text, bool first) const;
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const;
  void merge_by_score(std::string_view word, Scratch& scratch) const;
  // The ids of one symbol that merging has left, which may be an unused token or none.
  void emit(std::string_view text, TokenId id, const Scratch& scratch,
            std::vector<TokenId>& ids) const;
  void emit_unknown(std::string_view text, std::vector<TokenId>& ids) const;
  bool is_unused(TokenId id) const;

  const Vocabulary& vocabulary_;
  const TokenIndex& index_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_;
  bool words_are_apart_ =
      true;  // no token reaches from one word into the next, so that words can be merged alone
};

}  // namespace spillway
