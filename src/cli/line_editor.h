// SPDX-License-Identifier: Apache-2.0
// Reads what a person types at a terminal: editing, history, pasted text of several lines.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class TypedEnd {
  kEntered,    // with Enter: `text` is what was typed
  kCleared,    // Ctrl-C: what was typed is gone
  kEndOfInput  // Ctrl-D on an empty line, the terminal is gone, or a signal came (interrupted())
};

struct TypedText {
  TypedEnd end = TypedEnd::kEndOfInput;
  std::string text;       // without the last newline; may have others, and bytes that are not UTF-8
  bool was_empty = true;  // of kCleared: there was nothing to clear
};

// Owns the settings of the terminal on standard input and output while it reads; between two reads
// they are as it found them. One at a time, used by one thread. There are two: on libedit, and a
// plain one for programs built without it.
class LineEditor {
 public:
  // The newest of `history` is last.
  explicit LineEditor(const std::vector<std::string>& history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  TypedText read();
  // Adds to what the arrow keys bring back.
  void remember(const std::string& text);

  // What a user should know before the first line; empty where nothing is missing.
  static std::string_view shortcomings();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
