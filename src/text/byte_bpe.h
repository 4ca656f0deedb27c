// SPDX-License-Identifier: Apache-2.0
// Implements byte-level BPE (GPT-2, OPT, Llama 3, Qwen2): patterns split the text into words, and
// the bytes of each word are merged by rank.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "text/merge_table.h"
#include "text/text_encoder.h"
#include "text/token_index.h"
#include "text/word_splitter.h"

namespace spillway {

// Keeps references to the vocabulary and the index. A run of bytes that are not UTF-8 is a word of
// its own.
class ByteBpe final : public TextEncoder {
 public:
  // Throws Error(kInvalidArgument) if a merge does not name two known tokens whose joint text is a
  // token, and Error(kUnsupported) for a pattern that cannot be run.
  ByteBpe(const Vocabulary& vocabulary, const TokenIndex& index);
  void encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const override;

 private:
  struct Scratch;
  void encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const;

  const Vocabulary& vocabulary_;
  const TokenIndex& index_;
  WordSplitter splitter_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_;
};

}  // namespace spillway
