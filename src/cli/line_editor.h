// SPDX-License-Identifier: Apache-2.0
// Reads input at a terminal, with editing, history, and pasted text of several lines.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class TypedEnd {
  kEntered,    // with Enter: `text` is the input
  kCleared,    // by Ctrl-C: the input is gone
  kEndOfInput  // Ctrl-D on an empty line, the terminal is gone, or a signal came (interrupted())
};

struct TypedText {
  TypedEnd end = TypedEnd::kEndOfInput;
  std::string text;       // without the last newline; may have others, and bytes that are not UTF-8
  bool was_empty = true;  // for kCleared: there was nothing to clear
};

// Changes the settings of the terminal on standard input and output while it reads, and restores
// them after each read. Only one may exist at a time, used by one thread. There are two
// implementations: on libedit, and a plain one for builds without it.
class LineEditor {
 public:
  // `history` has the newest text last.
  explicit LineEditor(const std::vector<std::string>& history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  TypedText read();
  // Adds a text to the history that the arrow keys bring back.
  void remember(const std::string& text);

  // Returns what a user should know about missing features; empty if nothing is missing.
  static std::string_view shortcomings();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
