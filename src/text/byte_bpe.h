// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (GPT-2, OPT, Llama 3, Qwen2): patterns cut the text into words, each word's bytes
// are merged by rank.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "text/merge_table.h"
#include "text/text_encoder.h"
#include "text/token_index.h"
#include "text/word_splitter.h"

namespace spillway {

// Keeps references to the vocabulary and the index. Bytes that are not UTF-8 are words of their
// own.
class ByteBpe final : public TextEncoder {
 public:
  // Throws Error(kInvalidArgument) for merges that are not two known tokens with a known joint
  // text, and Error(kUnsupported) for a pattern that cannot be run.
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
