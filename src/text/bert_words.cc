// SPDX-License-Identifier: Apache-2.0
#include "text/bert_words.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "text/bert_tables.h"
#include "text/jinja/characters.h"
#include "text/nfc.h"
#include "text/utf8.h"

namespace spillway {
namespace {

bool is_in(std::span<const CodePointRange> ranges, char32_t c) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), c,
                       [](char32_t at, const CodePointRange& range) { return at < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

// Lowercases the capitals added to Unicode after version 14, the version that jinja::append_lower()
// knows; returns any other character unchanged.
char32_t lower_of_new(char32_t c) {
  switch (c) {
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    default:
      if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
      if (c >= 0x16EA0 && c <= 0x16EB8) return c + 0x1B;
      return c;
  }
}

template <class Fn>
void for_each_character(std::string_view text, Fn&& fn) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    fn(c, i);
    i += c.bytes;
  }
}

std::string without_accents(std::string_view text) {
  const std::string decomposed = to_nfd(text);
  std::string result;
  for_each_character(decomposed, [&](const Utf8Char& c, size_t at) {
    if (!is_in(accent_ranges(), c.code_point)) result.append(decomposed, at, c.bytes);
  });
  return result;
}

std::string in_lowercase(std::string_view text) {
  std::string result;
  for_each_character(text, [&](const Utf8Char& c, size_t) {
    jinja::append_lower(result, lower_of_new(c.code_point));
  });
  return result;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Applies the rules to a run of text between white space, so that it has the form of the
// vocabulary.
std::string normalized(std::string_view chunk, const BertWordRules& rules) {
  std::string result(chunk);
  if (is_ascii(chunk)) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    if (rules.lowercase) std::ranges::transform(result, result.begin(), lower);
    return result;
  }
  if (rules.strip_accents) result = without_accents(result);
  if (rules.lowercase) result = in_lowercase(result);
  return result;
}

// Splits `chunk` at punctuation and passes each word to `take`. Returns false if `take` did.
bool take_words(std::string_view chunk, const BertWordRules& rules,
                const std::function<bool(std::string_view)>& take) {
  const std::string text = normalized(chunk, rules);
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (is_in(punctuation_ranges(), c.code_point)) {
      const std::string_view all(text);
      if (i > begin && !take(all.substr(begin, i - begin))) return false;
      if (!take(all.substr(i, c.bytes))) return false;
      begin = i + c.bytes;
    }
    i += c.bytes;
  }
  return begin == text.size() || take(std::string_view(text).substr(begin));
}

}  // namespace

void for_each_bert_word(std::string_view text, const BertWordRules& rules,
                        const std::function<bool(std::string_view)>& take) {
  std::string chunk;
  const auto end_chunk = [&] {
    const bool goes_on = chunk.empty() || take_words(chunk, rules, take);
    chunk.clear();
    return goes_on;
  };
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const std::string_view bytes = text.substr(i, c.bytes);
    i += c.bytes;
    if (!c.valid || (rules.clean && is_in(removed_ranges(), c.code_point))) continue;
    const bool is_alone = rules.split_ideographs && is_in(ideograph_ranges(), c.code_point);
    if ((is_alone || is_unicode_space(c.code_point)) && !end_chunk()) return;
    if (is_unicode_space(c.code_point)) continue;
    chunk += bytes;
    if (is_alone && !end_chunk()) return;
  }
  end_chunk();
}

}  // namespace spillway
