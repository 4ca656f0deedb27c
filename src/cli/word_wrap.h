// SPDX-License-Identifier: Apache-2.0
// Wraps streamed text between words at a terminal's edge.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// Every text is shown as it comes. If a word turns out to be too long for its line, it is erased
// there and written again on the next line. The last column stays free, since terminals differ in
// what they do once it is taken. Words longer than a line, and wide characters (Chinese, Japanese),
// are broken anywhere. Not thread-safe.
class WordWrap {
 public:
  // Returns what to write for the next text (whole UTF-8 characters) on a terminal of `columns`
  // columns, which may change between calls; `text` itself if that is less than 20, such as 0.
  std::string add(std::string_view text, int columns);

 private:
  void add_character(std::string_view character, int columns, std::string& out);
  void begin_line(std::string& out);

  int column_ = 0;        // column of the next character
  bool at_edge_ = false;  // blanks did not fit; the next other character begins a line
  std::string word_;      // the part of the current word that is on this line
  int word_columns_ = 0;
};

}  // namespace spillway
