// SPDX-License-Identifier: Apache-2.0
#include "cli/word_wrap.h"

#include <fmt/core.h>

#include "cli/progress_line.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr int kLeastColumns = 20;
constexpr int kTabColumns = 8;

}  // namespace

std::string WordWrap::add(std::string_view text, int columns) {
  if (columns < kLeastColumns) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = decode_utf8(text, at).bytes;
    add_character(text.substr(at, bytes), columns - 1, out);
    at += bytes;
  }
  return out;
}

void WordWrap::begin_line(std::string& out) {
  out += '\n';
  column_ = 0;
  at_edge_ = false;
  word_.clear();
  word_columns_ = 0;
}

void WordWrap::add_character(std::string_view character, int columns, std::string& out) {
  const char first = character.front();
  if (first == '\n') return begin_line(out);
  if (first == ' ' || first == '\t') {
    const int width = first == '\t' ? kTabColumns - column_ % kTabColumns : 1;
    word_.clear();
    word_columns_ = 0;
    at_edge_ = at_edge_ || column_ + width > columns;
    if (at_edge_) return;  // blanks at the end of a line are invisible
    out += character;
    column_ += width;
    return;
  }
  if (at_edge_) begin_line(out);
  const int width = display_width(character);
  if (column_ + width > columns) {
    if (width > 1 || word_columns_ == 0 || word_columns_ >= column_) {
      begin_line(out);
    } else {
      const std::string moved = word_;
      const int moved_columns = word_columns_;
      out += fmt::format("\x1b[{}D\x1b[K", moved_columns);
      begin_line(out);
      out += moved;
      column_ = word_columns_ = moved_columns;
      word_ = moved;
    }
  }
  out += character;
  column_ += width;
  if (width > 1) {  // a line may break after a wide character
    word_.clear();
    word_columns_ = 0;
  } else {
    word_ += character;
    word_columns_ += width;
  }
}

}  // namespace spillway
