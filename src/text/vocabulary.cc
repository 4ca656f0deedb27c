// SPDX-License-Identifier: Apache-2.0
#include "text/vocabulary.h"

#include <limits>

#include "base/error.h"

namespace spillway {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxMerges = size_t{1} << 26;
constexpr size_t kMaxTokenBytes = 65536;
// Control, unknown and user-defined tokens are searched for in every text; each byte of theirs
// takes 16 bytes in AddedTokens.
constexpr size_t kMaxMatchedTokenBytes = 1024;
constexpr size_t kMaxMatchedBytes = size_t{1} << 20;
constexpr size_t kMaxSplitStages = 64;

void check_id(const Vocabulary& vocabulary, TokenId id, std::string_view field) {
  SPW_CHECK(id >= 0 && static_cast<size_t>(id) < vocabulary.tokens.size(), kInvalidArgument,
            "vocabulary: {} is {}, but there are {} tokens", field, id, vocabulary.tokens.size());
}

}  // namespace

void validate(const Vocabulary& vocabulary) {
  SPW_CHECK(!vocabulary.tokens.empty(), kInvalidArgument, "vocabulary: it has no tokens");
  SPW_CHECK(vocabulary.tokens.size() <= kMaxTokens, kInvalidArgument,
            "vocabulary: {} tokens are too many (limit {})", vocabulary.tokens.size(), kMaxTokens);
  SPW_CHECK(vocabulary.merges.size() <= kMaxMerges, kInvalidArgument,
            "vocabulary: {} merges are too many (limit {})", vocabulary.merges.size(), kMaxMerges);
  SPW_CHECK(vocabulary.split_stages.size() <= kMaxSplitStages, kInvalidArgument,
            "vocabulary: {} split stages are too many (limit {})", vocabulary.split_stages.size(),
            kMaxSplitStages);
  size_t matched_bytes = 0;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabToken& token = vocabulary.tokens[id];
    const bool matched = token.kind == TokenKind::kControl || token.kind == TokenKind::kUnknown ||
                         token.kind == TokenKind::kUserDefined;
    if (matched) matched_bytes += token.text.size();
    const size_t limit = matched ? kMaxMatchedTokenBytes : kMaxTokenBytes;
    SPW_CHECK(token.text.size() <= limit, kInvalidArgument,
              "vocabulary: token {} has {} bytes of text (limit {})", id, token.text.size(), limit);
  }
  SPW_CHECK(matched_bytes <= kMaxMatchedBytes, kInvalidArgument,
            "vocabulary: control, unknown and user-defined tokens have {} bytes of text together "
            "(limit {})",
            matched_bytes, kMaxMatchedBytes);
  if (vocabulary.bos) check_id(vocabulary, *vocabulary.bos, "the id of bos");
  if (vocabulary.eos) check_id(vocabulary, *vocabulary.eos, "the id of eos");
  if (vocabulary.eot) check_id(vocabulary, *vocabulary.eot, "the id of eot");
  if (vocabulary.unk) check_id(vocabulary, *vocabulary.unk, "the id of unk");
  if (vocabulary.pad) check_id(vocabulary, *vocabulary.pad, "the id of pad");
  for (TokenId id : vocabulary.end_of_generation)
    check_id(vocabulary, id, "an id that ends generation");
  SPW_CHECK(!vocabulary.add_bos || vocabulary.bos, kInvalidArgument,
            "vocabulary: add_bos is set, but there is no bos");
  SPW_CHECK(!vocabulary.add_eos || vocabulary.eos, kInvalidArgument,
            "vocabulary: add_eos is set, but there is no eos");
}

std::optional<std::pair<std::string_view, std::string_view>> try_split_merge(
    std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size())
    return std::nullopt;
  if (merge.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
  return std::pair(merge.substr(0, space), merge.substr(space + 1));
}

std::optional<uint8_t> try_parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

}  // namespace spillway
