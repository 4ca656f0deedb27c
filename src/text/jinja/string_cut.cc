// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/string_cut.h"

#include <algorithm>
#include <limits>
#include <string>

#include "text/jinja/characters.h"
#include "text/jinja/find.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

uint64_t cuts(int64_t most) {
  return most < 0 ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(most);
}

// Returns the offset at which the last character starts.
size_t last_character(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && (text[start] & 0xC0) == 0x80) --start;
  while (start + decode_utf8(text, start).bytes < text.size())
    start += decode_utf8(text, start).bytes;
  return start;
}

}  // namespace

Text strip_whitespace(const Text& text, Side side) {
  std::string_view kept = text.bytes();
  if (side != Side::kRight) kept = strip_spaces_left(kept);
  if (side != Side::kLeft) kept = strip_spaces_right(kept);
  return text.part(kept);
}

Text strip_characters(const Text& text, std::string_view set, Side side) {
  std::u32string characters;
  for (size_t at = 0; at < set.size();) {
    const Utf8Char c = decode_utf8(set, at);
    characters.push_back(c.code_point);
    at += c.bytes;
  }
  std::sort(characters.begin(), characters.end());
  const auto in_set = [&](char32_t c) {
    return std::binary_search(characters.begin(), characters.end(), c);
  };
  std::string_view kept = text.bytes();
  while (side != Side::kRight && !kept.empty() && in_set(decode_utf8(kept, 0).code_point))
    kept.remove_prefix(decode_utf8(kept, 0).bytes);
  while (side != Side::kLeft && !kept.empty()) {
    const size_t last = last_character(kept);
    if (!in_set(decode_utf8(kept, last).code_point)) break;
    kept = kept.substr(0, last);
  }
  return text.part(kept);
}

std::vector<Text> split_at(const Text& text, std::string_view separator, int64_t most,
                           bool from_right) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> parts;
  if (!from_right) {
    size_t done = 0;
    for (uint64_t left = cuts(most); left > 0; --left) {
      const auto at = find_bytes(bytes, separator, done);
      if (!at) break;
      parts.push_back(text.part(done, *at - done));
      done = *at + separator.size();
    }
    parts.push_back(text.part(done));
    return parts;
  }
  // The text is reversed once, so that each split need not reverse the rest.
  const std::string backwards(bytes.rbegin(), bytes.rend());
  const std::string separator_backwards(separator.rbegin(), separator.rend());
  size_t done = 0;
  for (uint64_t left = cuts(most); left > 0; --left) {
    const auto at = find_bytes(backwards, separator_backwards, done);
    if (!at) break;
    parts.push_back(text.part(bytes.size() - *at, *at - done));
    done = *at + separator.size();
  }
  parts.push_back(text.part(0, bytes.size() - done));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_at_whitespace(const Text& text, int64_t most, bool from_right) {
  std::vector<Text> parts;
  std::string_view rest = text.bytes();
  uint64_t left = cuts(most);
  if (from_right) {
    // Words are split from the left; if there are too many, the first of them are joined again.
    const std::vector<Text> words = split_at_whitespace(text, -1, false);
    if (words.size() <= left) return words;
    const size_t joined = words.size() - static_cast<size_t>(left);
    const Text& last = words[joined - 1];
    const auto size = static_cast<size_t>(last.bytes().data() + last.size() - rest.data());
    parts.push_back(text.part(0, size));  // keeps white space at the start
    parts.insert(parts.end(), words.begin() + static_cast<std::ptrdiff_t>(joined), words.end());
    return parts;
  }
  while (true) {
    rest = strip_spaces_left(rest);
    if (rest.empty()) return parts;
    if (left-- == 0) {
      parts.push_back(text.part(rest));
      return parts;
    }
    size_t size = 0;
    while (size < rest.size()) {
      const Utf8Char c = decode_utf8(rest, size);
      if (c.valid && is_space(c.code_point)) break;
      size += c.bytes;
    }
    parts.push_back(text.part(rest.substr(0, size)));
    rest.remove_prefix(size);
  }
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> lines;
  size_t start = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    size_t after = at + c.bytes;
    if (c.valid && is_line_end(c.code_point)) {
      if (c.code_point == '\r' && after < bytes.size() && bytes[after] == '\n') ++after;
      lines.push_back(text.part(start, (keep_ends ? after : at) - start));
      start = after;
    }
    at = after;
  }
  if (start < bytes.size()) lines.push_back(text.part(start));
  return lines;
}

Value replace_text(Heap& heap, const Text& text, std::string_view old, const Text& by,
                   int64_t most) {
  const std::string_view bytes = text.bytes();
  heap.charge_scan(bytes.size());
  TextBuilder out(heap);
  uint64_t left = cuts(most);
  size_t done = 0;
  if (old.empty()) {
    // Python inserts the new text before every character and at the end.
    for (size_t at = 0; left > 0; --left) {
      out.append(by);
      heap.charge_steps(1);
      if (at >= bytes.size()) {
        done = at;
        break;
      }
      const size_t size = decode_utf8(bytes, at).bytes;
      out.append(text.part(at, size));
      at += size;
      done = at;
    }
    out.append(text.part(done));
    return out.take(text.is_markup());
  }
  for (; left > 0; --left) {
    const auto at = find_bytes(bytes, old, done);
    if (!at) break;
    heap.charge_steps(1);
    out.append(text.part(done, *at - done));
    out.append(by);
    done = *at + old.size();
  }
  if (done == 0) return heap.text(text);
  out.append(text.part(done));
  return out.take(text.is_markup());
}

Value join_texts(Heap& heap, const Text& separator, const std::vector<Text>& texts) {
  TextBuilder out(heap);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(texts[i]);
  }
  return out.take(separator.is_markup());
}

}  // namespace spillway::jinja
