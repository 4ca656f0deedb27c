// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include "text/utf8.h"

namespace spillway {
namespace {

size_t skip_space_forward(std::string_view text, size_t position) {
  while (position < text.size()) {
    const Utf8Char c = decode_utf8(text, position);
    if (!c.valid || !is_unicode_space(c.code_point)) break;
    position += c.bytes;
  }
  return position;
}

// Returns the start of the character that ends at `position`, which must not be 0.
size_t previous_character(std::string_view text, size_t position) {
  size_t start = position - 1;
  while (start > 0 && position - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80)
    --start;
  return start;
}

size_t skip_space_backward(std::string_view text, size_t position, size_t limit) {
  while (position > limit) {
    const size_t start = previous_character(text, position);
    const Utf8Char c = decode_utf8(text, start);
    if (start < limit || !c.valid || start + c.bytes != position || !is_unicode_space(c.code_point))
      break;
    position = start;
  }
  return position;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<VocabToken>& tokens) : tokens_(&tokens) {
  roots_.fill(-1);
  bool any_single_word = false;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const TokenKind kind = tokens[id].kind;
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined &&
        kind != TokenKind::kUnknown)
      continue;
    if (tokens[id].text.empty()) continue;
    insert(tokens[id].text, static_cast<TokenId>(id));
    any_single_word |= tokens[id].single_word;
  }
  if (any_single_word)
    word_character_.emplace(R"(\A[\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])");
}

void AddedTokens::insert(std::string_view text, TokenId id) {
  const auto new_node = [&](char byte) {
    nodes_.push_back({.byte = byte});
    return static_cast<int32_t>(nodes_.size() - 1);
  };
  int32_t& root = roots_[static_cast<uint8_t>(text[0])];
  if (root < 0) root = new_node(text[0]);
  int32_t node = root;
  for (char byte : text.substr(1)) {
    int32_t child = child_of(node, byte);
    if (child < 0) {
      child = new_node(byte);
      nodes_[child].next_sibling = nodes_[node].first_child;
      nodes_[node].first_child = child;
    }
    node = child;
  }
  if (nodes_[node].token == kNoToken) nodes_[node].token = id;
}

int32_t AddedTokens::child_of(int32_t node, char byte) const {
  int32_t child = nodes_[node].first_child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

bool AddedTokens::is_special(TokenId id) const {
  return (*tokens_)[static_cast<size_t>(id)].kind != TokenKind::kUserDefined;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  RegexSearch search(*word_character_);
  const auto is_word = [&](size_t position) {
    const Utf8Char c = decode_utf8(text, position);
    return c.valid && search.try_find(text.substr(position, c.bytes), 0).has_value();
  };
  return (begin == 0 || !is_word(previous_character(text, begin))) &&
         (end == text.size() || !is_word(end));
}

AddedTokens::Match AddedTokens::longest_match(std::string_view text, size_t begin,
                                              size_t special_end) const {
  Match best;
  size_t end = begin + 1;
  for (int32_t node = roots_[static_cast<uint8_t>(text[begin])]; node >= 0;) {
    const TokenId id = nodes_[node].token;
    if (id != kNoToken && (!is_special(id) || end <= special_end)) best = {.token = id, .end = end};
    if (end == text.size()) break;
    node = child_of(node, text[end++]);
  }
  return best;
}

std::vector<TextFragment> AddedTokens::split(std::string_view text,
                                             std::span<const TextRange> special_ranges) const {
  std::vector<TextFragment> fragments;
  size_t plain_begin = 0;
  size_t range = 0;
  for (size_t position = 0; position < text.size();) {
    if (roots_[static_cast<uint8_t>(text[position])] < 0) {
      ++position;
      continue;
    }
    while (range < special_ranges.size() && special_ranges[range].end <= position) ++range;
    const bool inside = range < special_ranges.size() && special_ranges[range].begin <= position;
    const Match match = longest_match(text, position, inside ? special_ranges[range].end : 0);
    if (match.token == kNoToken) {
      ++position;
      continue;
    }
    const VocabToken& token = (*tokens_)[static_cast<size_t>(match.token)];
    if (token.single_word && !stands_alone(text, position, match.end)) {
      position = match.end;
      continue;
    }
    const size_t begin = token.lstrip ? skip_space_backward(text, position, plain_begin) : position;
    if (begin > plain_begin)
      fragments.push_back({.text = text.substr(plain_begin, begin - plain_begin)});
    fragments.push_back({.text = {}, .token = match.token});
    position = token.rstrip ? skip_space_forward(text, match.end) : match.end;
    plain_begin = position;
  }
  if (plain_begin < text.size()) fragments.push_back({.text = text.substr(plain_begin)});
  return fragments;
}

}  // namespace spillway
