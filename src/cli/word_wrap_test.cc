// SPDX-License-Identifier: Apache-2.0
#include "cli/word_wrap.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/progress_line.h"
#include "text/utf8.h"

namespace spillway {
namespace {

// Returns the lines that a terminal shows which understands newlines, "N columns back" and "erase
// to the end of the line".
std::vector<std::string> shown(std::string_view output) {
  std::vector<std::vector<std::string>> lines(1);
  size_t column = 0;
  for (size_t at = 0; at < output.size();) {
    if (output.substr(at).starts_with("\x1b[K")) {
      lines.back().resize(column);
      at += 3;
    } else if (output.substr(at).starts_with("\x1b[")) {
      const size_t end = output.find('D', at);
      column -= std::stoul(std::string(output.substr(at + 2, end - at - 2)));
      at = end + 1;
    } else if (output[at] == '\n') {
      lines.emplace_back();
      column = 0;
      ++at;
    } else {
      const size_t bytes = decode_utf8(output, at).bytes;
      lines.back().resize(column);
      lines.back().emplace_back(output.substr(at, bytes));
      ++column;
      at += bytes;
    }
  }
  std::vector<std::string> texts;
  for (const auto& line : lines) {
    std::string text;
    for (const std::string& character : line) text += character;
    texts.push_back(text);
  }
  return texts;
}

// Wraps ASCII text that comes `bytes` at a time.
std::string wrapped(std::string_view text, int columns, size_t bytes) {
  WordWrap wrap;
  std::string out;
  for (size_t at = 0; at < text.size(); at += bytes)
    out += wrap.add(text.substr(at, bytes), columns);
  return out;
}

TEST(WordWrapTest, BreaksLinesBetweenWordsHoweverTheTextIsCut) {
  const std::string text = "The capital of France is Paris, which lies on the Seine.";
  const std::vector<std::string> expected = {"The capital of", "France is Paris,",
                                             "which lies on the", "Seine."};
  for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
    std::vector<std::string> lines = shown(wrapped(text, 20, bytes));
    for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
    EXPECT_EQ(lines, expected) << bytes;
  }
}

TEST(WordWrapTest, AWordThatFillsTheLineStays) {
  EXPECT_EQ(wrapped("1234567890 12345678 x", 20, 3), "1234567890 12345678\nx");
  EXPECT_EQ(wrapped("1234567890 12345678", 20, 3), "1234567890 12345678");
}

TEST(WordWrapTest, AWordLongerThanALineIsBrokenAtTheEdge) {
  EXPECT_EQ(wrapped(std::string(45, 'x'), 21, 7),
            std::string(20, 'x') + "\n" + std::string(20, 'x') + "\n" + std::string(5, 'x'));
}

TEST(WordWrapTest, LinesOfTheTextStayLines) {
  EXPECT_EQ(wrapped("one\n  two\n\nthree\n", 20, 4), "one\n  two\n\nthree\n");
  // Blanks beyond the edge are invisible, and make no empty line.
  EXPECT_EQ(wrapped("1234567890123456789   \nnext", 20, 5), "1234567890123456789\nnext");
}

TEST(WordWrapTest, WideCharactersAreBrokenAnywhere) {
  WordWrap wrap;
  std::string text, out;
  for (int i = 0; i < 12; ++i) text += "河";
  for (const std::string& line : shown(wrap.add(text, 20))) {
    EXPECT_LT(display_width(line), 20);
    out += line;
  }
  EXPECT_EQ(out, text);
}

TEST(WordWrapTest, FollowsATerminalThatBecomesNarrower) {
  WordWrap wrap;
  std::string out = wrap.add("one two three four ", 80);
  out += wrap.add("five six", 20);
  EXPECT_EQ(out, "one two three four \nfive six");
}

TEST(WordWrapTest, LeavesTextAloneWhereThereIsNoTerminal) {
  const std::string text(300, 'x');
  EXPECT_EQ(wrapped(text, 0, 50), text);
  EXPECT_EQ(wrapped(text, 19, 50), text);
}

}  // namespace
}  // namespace spillway
