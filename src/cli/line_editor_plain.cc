// SPDX-License-Identifier: Apache-2.0
// The line editor for builds without libedit, with only what the terminal itself can do.
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"

namespace spillway {

struct LineEditor::State {
  std::string input;
};

LineEditor::LineEditor(const std::vector<std::string>& /*history*/)
    : state_(std::make_unique<State>()) {}
LineEditor::~LineEditor() = default;

TypedText LineEditor::read() {
  print_now("\x1b[1m>\x1b[0m ");
  std::string& input = state_->input;
  while (true) {
    const size_t end = input.find('\n');
    if (end != input.npos) {
      TypedText typed{TypedEnd::kEntered, input.substr(0, end), end == 0};
      input.erase(0, end + 1);
      return typed;
    }
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) {
      input.append(bytes, static_cast<size_t>(count));
    } else if (count == 0) {
      // Ctrl-D ends the input; after some text it only ends the line.
      if (input.empty()) return {};
      input += '\n';
    } else if (errno != EINTR) {
      return {};
    } else if (interrupted()) {
      if (interrupt_exit_code() != 128 + SIGINT) return {};
      clear_interrupt();
      print_now("\n");
      // The terminal has discarded the line, and does not say whether there was any text.
      input.clear();
      return {TypedEnd::kCleared, "", true};
    }
  }
}

void LineEditor::remember(const std::string& /*text*/) {}

std::string_view LineEditor::shortcomings() {
  return "built without libedit: no line editing and history, lines of at most 4095 bytes";
}

}  // namespace spillway
