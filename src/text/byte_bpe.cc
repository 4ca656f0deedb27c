// SPDX-License-Identifier: Apache-2.0
#include "text/byte_bpe.h"

#include "text/byte_alphabet.h"
#include "text/nfc.h"
#include "text/utf8.h"

namespace spillway {

struct ByteBpe::Scratch {
  WordSplit split;
  WordCache cache;
  Merger merger;
};

ByteBpe::ByteBpe(const Vocabulary& vocabulary, const TokenIndex& index)
    : vocabulary_(vocabulary),
      index_(index),
      splitter_(vocabulary.pre_split == PreSplit::kCustom ? vocabulary.split_stages
                                                          : pre_split_stages(vocabulary.pre_split)),
      merges_(vocabulary, index) {
  for (int byte = 0; byte < 256; ++byte)
    byte_tokens_[static_cast<size_t>(byte)] =
        index.find_plain(byte_letter(static_cast<uint8_t>(byte)));
}

void ByteBpe::encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const {
  Scratch scratch{.split = WordSplit(splitter_), .cache = {}, .merger = {}};
  for (const TextFragment& fragment : fragments) {
    if (fragment.token != kNoToken) {
      ids.push_back(fragment.token);
      continue;
    }
    if (!vocabulary_.normalize_nfc && !vocabulary_.add_space_prefix) {
      encode_text(fragment.text, scratch, ids);
      continue;
    }
    std::string text =
        vocabulary_.normalize_nfc ? to_nfc(fragment.text) : std::string(fragment.text);
    if (vocabulary_.add_space_prefix && !text.starts_with(' ')) text.insert(0, 1, ' ');
    encode_text(text, scratch, ids);
    scratch.cache = {};  // its keys refer to `text`
  }
}

void ByteBpe::encode_text(std::string_view text, Scratch& scratch,
                          std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix_bytes(text);
    for (std::string_view word : scratch.split.split(text.substr(0, valid)))
      encode_word(word, scratch, ids);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Char c = decode_utf8(text, invalid);
      if (c.valid) break;
      invalid += c.bytes;
    }
    if (invalid > 0) encode_word(text.substr(0, invalid), scratch, ids);
    text.remove_prefix(invalid);
  }
}

void ByteBpe::encode_word(std::string_view word, Scratch& scratch,
                          std::vector<TokenId>& ids) const {
  if (scratch.cache.append(word, ids)) return;
  const size_t first = ids.size();
  const TokenId whole = vocabulary_.ignore_merges ? index_.find_plain(spell_bytes(word)) : kNoToken;
  if (whole != kNoToken) {
    ids.push_back(whole);
  } else {
    scratch.merger.clear();
    for (uint32_t i = 0; i < word.size(); ++i) {
      TokenId id = byte_tokens_[static_cast<uint8_t>(word[i])];
      if (id == kNoToken && vocabulary_.unk) id = *vocabulary_.unk;
      if (id != kNoToken) scratch.merger.add(i, i + 1, id);
    }
    scratch.merger.run([&](const MergeSymbol& left, const MergeSymbol& right) {
      return merges_.try_find(left.id, right.id);
    });
    scratch.merger.for_each([&](const MergeSymbol& symbol) { ids.push_back(symbol.id); });
  }
  scratch.cache.remember(word, first, ids.size());
}

}  // namespace spillway
