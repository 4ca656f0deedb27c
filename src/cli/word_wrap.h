// SPDX-License-Identifier: Apache-2.0
// Text that comes in pieces, broken between words at a terminal's edge.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// Every piece is shown at once. If a word then turns out to be too long for its line, it is erased
// there and written again on the next one. The last column stays free, since terminals differ in
// what they do once it is taken. Words longer than a line, and wide characters (Chinese, Japanese),
// are broken anywhere. Not thread-safe.
class WordWrap {
 public:
  // What to write for the next piece (whole UTF-8 characters) on a terminal of `columns`, which may
  // have changed since the last piece; `text` itself where that is 0 or less than 20.
  std::string add(std::string_view text, int columns);

 private:
  void add_character(std::string_view character, int columns, std::string& out);
  void begin_line(std::string& out);

  int column_ = 0;        // where the next character goes
  bool at_edge_ = false;  // white space did not fit; the next character that is none begins a line
  std::string word_;      // what the current word has so far, in this line
  int word_columns_ = 0;
};

}  // namespace spillway
