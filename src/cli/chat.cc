// SPDX-License-Identifier: Apache-2.0
#include "cli/chat.h"

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/chat_history.h"
#include "cli/chat_input.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "cli/word_wrap.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

std::filesystem::path expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  if (!path.starts_with("~/") || home == nullptr) return path;
  return std::filesystem::path(home) / path.substr(2);
}

// Reads one line of standard input; returns false at its end.
bool read_line(std::string& line) {
  line.clear();
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c == '\n') return true;
    SPW_CHECK(line.size() < kMaxLineBytes, kInvalidArgument, "a message has more than {} bytes",
              kMaxLineBytes);
    line += static_cast<char>(c);
  }
  return !line.empty() && !interrupted();
}

int talk_at_terminal(Chat& chat) {
  ChatHistory history(try_history_path());
  LineEditor editor(history.messages());
  bool cleared_before = false;
  while (true) {
    TypedText typed = editor.read();
    if (interrupted() && interrupt_exit_code() == 128 + SIGINT) {
      clear_interrupt();  // it came when an answer had just ended
      typed = {TypedEnd::kCleared, "", true};
    }
    if (typed.end == TypedEnd::kEndOfInput) {
      print_now("\n");
      return interrupted() ? interrupt_exit_code() : 0;
    }
    if (typed.end == TypedEnd::kCleared) {
      if (cleared_before && typed.was_empty) return 0;
      cleared_before = true;
      print_now("\x1b[2m[Ctrl-C again leaves, as Ctrl-D and /exit do]\x1b[0m\n");
      continue;
    }
    cleared_before = false;
    if (history.add(typed.text)) editor.remember(typed.text);
    try {
      if (!chat.take(typed.text)) return 0;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kIo) throw;
      report_error(ExitCode::kUsage, error.what());
    }
    if (interrupted()) {
      if (interrupt_exit_code() != 128 + SIGINT) return interrupt_exit_code();
      clear_interrupt();  // it stopped the answer only; the chat goes on
    }
  }
}

// Takes every line as a message and answers it before the next one is read.
int answer_lines(Chat& chat) {
  std::string line;
  while (read_line(line) && chat.take(line) && !interrupted()) {
  }
  return interrupted() ? interrupt_exit_code() : 0;
}

}  // namespace

Chat::Chat(AnswerSource& source, const std::string& system, int max_tokens, bool interactive)
    : source_(source), max_tokens_(max_tokens), interactive_(interactive) {
  set_system(system);
}

bool Chat::take(const std::string& line) {
  SPW_CHECK(is_valid_utf8(line), kInvalidArgument, "this message is not UTF-8, so it was not sent");
  const ChatInput input = parse_chat_input(line);
  switch (input.action) {
    case ChatAction::kNothing:
      break;
    case ChatAction::kMessage:
      answer(input.text);
      break;
    case ChatAction::kHelp:
      print_now(chat_commands_help());
      break;
    case ChatAction::kClear:
      conversation_.clear();
      note("the conversation is forgotten");
      break;
    case ChatAction::kSystem:
      if (input.text.empty()) {
        print_now(conversation_.system().empty() ? "nothing\n" : conversation_.system() + "\n");
      } else {
        set_system(input.text);
        note("the model is told so from the next message on; /clear forgets what was said");
      }
      break;
    case ChatAction::kSave:
      SPW_CHECK(!input.text.empty(), kInvalidArgument, "/save needs the name of a file");
      conversation_.save(expand_home(input.text));
      note(fmt::format("{} messages are in {}", conversation_.size(), input.text));
      break;
    case ChatAction::kExit:
      return false;
    case ChatAction::kUnknown:
      fail(ErrorCode::kInvalidArgument,
           "no command {}; /help lists them, and /{} sends it as a message", input.text,
           input.text);
  }
  return true;
}

void Chat::note(std::string_view text) const {
  if (interactive_ && stderr_is_terminal()) fmt::print(stderr, "\x1b[2m[{}]\x1b[0m\n", text);
}

void Chat::warn(std::string_view text) const {
  if (interactive_) {
    note(text);
  } else {
    log_warning("{}", text);
  }
}

void Chat::set_system(const std::string& text) {
  if (!text.empty() && !source_.supports_system_role())
    warn("this model's chat template has no place for a system message; it is not sent");
  conversation_.set_system(text);
}

void Chat::answer(const std::string& message) {
  const Conversation before = conversation_;
  conversation_.add_question(message);
  try {
    const ChatAnswer answer = ask();
    conversation_.add_answer(answer.text);
    report(answer);
  } catch (const Error&) {
    conversation_ = before;
    throw;
  }
}

// Prints the answer. The line that it ends in is completed even if the answer breaks off.
ChatAnswer Chat::ask() {
  bool is_in_line = false;
  WordWrap wrap;
  const AnswerListener listener = {.show =
                                       [&](std::string_view text) {
                                         is_in_line = is_in_line || !text.empty();
                                         print_now(wrap.add(text, stdout_columns()));
                                       },
                                   .warn = [&](std::string_view text) { warn(text); }};
  try {
    ChatAnswer answer = source_.answer(conversation_, listener);
    print_now("\n");
    return answer;
  } catch (const Error&) {
    if (is_in_line) print_now("\n");
    throw;
  }
}

void Chat::report(const ChatAnswer& answer) const {
  const int64_t context = answer.context.value_or(std::numeric_limits<int64_t>::max());
  std::string cut =
      describe_cut(answer.finish, answer.tokens, answer.prompt_tokens.value_or(0), context);
  const auto used = static_cast<int64_t>(answer.prompt_tokens.value_or(0) + answer.tokens);
  const bool ended_early = answer.finish == FinishReason::kLength;
  const bool full = ended_early && used >= context;
  const std::string_view more = source_.way_to_more_context();
  if (full && !interactive_)
    log_warning("an answer was {}{}{}", cut, more.empty() ? "" : "; ", more);
  if (full) cut += fmt::format("; /clear starts over{}{}", more.empty() ? "" : ", ", more);
  if (ended_early && !full && answer.tokens < static_cast<size_t>(max_tokens_))
    cut = "cut by the server";
  if (cut.empty() && answer.is_blank()) cut = "the answer is empty";
  std::string text = fmt::format("{}{}{}{}", cut, cut.empty() ? "" : "; ",
                                 answer.tokens_are_counted ? "" : "about ",
                                 describe_speed(answer.tokens, answer.decode_s));
  if (answer.wait_s) text += fmt::format(", the first after {:.2f} s", *answer.wait_s);
  if (answer.prompt_tokens) text += fmt::format("; context {}", used);
  if (answer.prompt_tokens && answer.context) text += fmt::format(" of {}", context);
  if (answer.reused_tokens > 0)
    text += fmt::format(", {} of them not computed again", answer.reused_tokens);
  note(text);
}

int talk(AnswerSource& source, const std::string& system, int max_tokens) {
  const bool interactive = stdin_is_terminal() && stdout_is_terminal();
  Chat chat(source, system, max_tokens, interactive);
  if (!interactive) return answer_lines(chat);
  survive_interrupts();
  print_now(fmt::format("Talking to {}. /help lists commands, Ctrl-D leaves.\n", source.name()));
  if (!LineEditor::shortcomings().empty())
    print_now(fmt::format("({})\n", LineEditor::shortcomings()));
  return talk_at_terminal(chat);
}

}  // namespace spillway
