// SPDX-License-Identifier: Apache-2.0
#include "text/sentence_piece.h"

#include <algorithm>
#include <bit>

#include "text/nfc.h"
#include "text/utf8.h"

namespace spillway {
namespace {

// Turns scores into ranks: a higher score gives a lower rank, equal scores equal ranks.
uint32_t rank_of_score(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 becomes 0
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return ~ascending;
}

// Returns where the word after `from` starts: at the first space symbol that follows another
// character, or at the end of the text.
size_t next_word_start(std::string_view text, size_t from) {
  while (text.substr(from).starts_with(kSpaceSymbol)) from += kSpaceSymbol.size();
  return std::min(text.find(kSpaceSymbol, from), text.size());
}

}  // namespace

struct SentencePiece::Scratch {
  WordCache cache;
  Merger merger;
  std::unordered_map<TokenId, uint32_t>
      unused_split;  // unused token -> size in bytes of the left half it was merged from
};

SentencePiece::SentencePiece(const Vocabulary& vocabulary, const TokenIndex& index)
    : vocabulary_(vocabulary), index_(index), merges_(vocabulary, index) {
  byte_tokens_.fill(kNoToken);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabToken& token = vocabulary.tokens[id];
    if (token.kind == TokenKind::kByte) {
      const auto byte = try_parse_byte_token(token.text);
      if (byte && byte_tokens_[*byte] == kNoToken) byte_tokens_[*byte] = static_cast<TokenId>(id);
    } else if (token.kind != TokenKind::kControl &&
               next_word_start(token.text, 0) < token.text.size()) {
      words_are_separate_ = false;
    }
  }
  if (index.find_plain(kSpaceSymbol) == kNoToken)
    words_are_separate_ = false;  // a space may then be part of a run of unknown characters
  if (vocabulary.split_on_space) words_are_separate_ = true;
}

void SentencePiece::encode(std::span<const TextFragment> fragments,
                           std::vector<TokenId>& ids) const {
  bool first = true;
  for (const TextFragment& fragment : fragments) {
    if (fragment.token != kNoToken) {
      ids.push_back(fragment.token);
    } else {
      Scratch scratch;
      encode_text(with_space_symbols(fragment.text, first), scratch, ids);
    }
    first = false;
  }
}

std::string SentencePiece::with_space_symbols(std::string_view text, bool first) const {
  std::string normalized;
  if (vocabulary_.normalize_nfc) {
    normalized = to_nfc(text);
    text = normalized;
  }
  std::string result;
  result.reserve(text.size() + text.size() / 2);
  const bool has_space = text.starts_with(' ') || text.starts_with(kSpaceSymbol);
  if (vocabulary_.add_space_prefix && (first || !vocabulary_.space_prefix_first_only) &&
      !(has_space && vocabulary_.space_prefix_unless_space))
    result.append(kSpaceSymbol);
  for (char c : text) {
    if (c == ' ')
      result.append(kSpaceSymbol);
    else
      result.push_back(c);
  }
  return result;
}

void SentencePiece::encode_text(std::string_view text, Scratch& scratch,
                                std::vector<TokenId>& ids) const {
  if (!words_are_separate_) {
    encode_word(text, scratch, ids);
    return;
  }
  while (!text.empty()) {
    size_t end = next_word_start(text, 0);
    // Metaspace's `split` makes every space symbol start a word.
    if (vocabulary_.split_on_space && text.starts_with(kSpaceSymbol))
      end = std::min(text.find(kSpaceSymbol, kSpaceSymbol.size()), text.size());
    encode_word(text.substr(0, end), scratch, ids);
    text.remove_prefix(end);
  }
}

void SentencePiece::encode_word(std::string_view word, Scratch& scratch,
                                std::vector<TokenId>& ids) const {
  if (scratch.cache.append(word, ids)) return;
  const size_t first = ids.size();
  scratch.merger.clear();
  for (size_t i = 0; i < word.size();) {
    const Utf8Char c = decode_utf8(word, i);
    const TokenId id = c.valid ? index_.find_plain(word.substr(i, c.bytes)) : kNoToken;
    scratch.merger.add(static_cast<uint32_t>(i), static_cast<uint32_t>(i + c.bytes), id);
    i += c.bytes;
  }
  if (vocabulary_.merges.empty()) {
    merge_by_score(word, scratch);
  } else {
    scratch.merger.run([&](const MergeSymbol& left, const MergeSymbol& right) {
      return merges_.try_find(left.id, right.id);
    });
  }
  bool after_unknown = false;
  scratch.merger.for_each([&](const MergeSymbol& symbol) {
    const size_t before = ids.size();
    emit(word.substr(symbol.begin, symbol.end - symbol.begin), symbol.id, scratch, ids);
    const bool unknown =
        symbol.id == kNoToken && ids.size() == before + 1 && vocabulary_.unk == ids.back();
    if (unknown && after_unknown && vocabulary_.fuse_unk) ids.pop_back();
    after_unknown = unknown;
  });
  scratch.cache.remember(word, first, ids.size());
}

void SentencePiece::merge_by_score(std::string_view word, Scratch& scratch) const {
  scratch.merger.run(
      [&](const MergeSymbol& left, const MergeSymbol& right) -> std::optional<Merge> {
        const TokenId id = index_.find_plain(word.substr(left.begin, right.end - left.begin));
        if (id == kNoToken) return std::nullopt;
        if (is_unused(id)) scratch.unused_split[id] = left.end - left.begin;
        return Merge{.rank = rank_of_score(vocabulary_.tokens[static_cast<size_t>(id)].score),
                     .id = id};
      });
}

void SentencePiece::emit(std::string_view text, TokenId id, const Scratch& scratch,
                         std::vector<TokenId>& ids) const {
  // Unused tokens are only steps on the way to longer ones; one that is left over is split again.
  std::vector<std::string_view> pending;
  while (true) {
    const auto split = is_unused(id) ? scratch.unused_split.find(id) : scratch.unused_split.end();
    if (split != scratch.unused_split.end() && split->second < text.size()) {
      pending.push_back(text.substr(split->second));
      text = text.substr(0, split->second);
    } else {
      if (id == kNoToken || is_unused(id))
        emit_unknown(text, ids);
      else
        ids.push_back(id);
      if (pending.empty()) return;
      text = pending.back();
      pending.pop_back();
    }
    id = index_.find_plain(text);
  }
}

void SentencePiece::emit_unknown(std::string_view text, std::vector<TokenId>& ids) const {
  const bool all_bytes = std::all_of(text.begin(), text.end(), [&](char byte) {
    return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken;
  });
  if (all_bytes) {
    for (char byte : text) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  } else if (vocabulary_.unk) {
    ids.push_back(*vocabulary_.unk);
  }
}

bool SentencePiece::is_unused(TokenId id) const {
  return id != kNoToken && vocabulary_.tokens[static_cast<size_t>(id)].kind == TokenKind::kUnused;
}

}  // namespace spillway
