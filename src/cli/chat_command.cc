// SPDX-License-Identifier: Apache-2.0
// spillway chat: talk, with the model's chat template.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/sampling_options.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr int64_t kShortestContext = 128;  // less holds no conversation

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  std::string system;
  int max_tokens = 1024;
  int64_t context = 0;
};

// The conversation so far, and how it becomes tokens.
class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, ChatTemplate chat, const std::string& system)
      : tokenizer_(tokenizer), template_(std::move(chat)) {
    if (!system.empty()) system_ = ChatMessage{"system", system};
    clear();
  }

  void clear() {
    messages_.clear();
    if (system_) messages_.push_back(*system_);
  }
  void add(const char* role, std::string content) {
    messages_.push_back({role, std::move(content)});
  }
  void drop_last() { messages_.pop_back(); }

  std::vector<TokenId> encode() const {
    const auto segments = render_chat_segments(template_, messages_, true);
    return tokenizer_.encode_segments(segments, {.add_special = false});
  }

  // Forgets the oldest question and answer; false when only the newest question is left.
  bool forget_oldest() {
    const size_t first = system_ ? 1 : 0;
    if (messages_.size() < first + 3) return false;
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first),
                    messages_.begin() + static_cast<std::ptrdiff_t>(first) + 2);
    return true;
  }

 private:
  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::optional<ChatMessage> system_;
  std::vector<ChatMessage> messages_;
};

ChatTemplate detect_template(const Tokenizer& tokenizer, const std::string& model) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  SPW_CHECK(!vocabulary.chat_template.empty(), kInvalidArgument,
            "{} has no chat template, so it was not trained to chat; use spillway run", model);
  const auto chat = try_detect_chat_template(vocabulary);
  SPW_CHECK(chat.has_value(), kUnsupported,
            "{} has a chat template of an unknown kind; ChatML, Llama 2, Llama 3, Zephyr and Phi-3 "
            "are known; use spillway run",
            model);
  return *chat;
}

std::string answer(Engine& engine, const ChatOptions& options, std::vector<TokenId> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling.parse();
  request.stop = options.sampling.stop;
  std::string text;
  const RequestId id = engine.submit(std::move(request));
  while (engine.step([&](const GenerationEvent& event) {
    text += event.text;
    print_now(event.text);
    SPW_CHECK(event.finish != FinishReason::kError, kInternal, "{}", event.error);
  })) {
    if (interrupted()) engine.cancel(id);
  }
  print_now("\n");
  return text;
}

bool read_line(bool interactive, std::string& line) {
  if (interactive) print_now("\x1b[1m> \x1b[0m");
  line.clear();
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c == '\n') return true;
    SPW_CHECK(line.size() < kMaxLineBytes, kInvalidArgument, "a message has more than {} bytes",
              kMaxLineBytes);
    line += static_cast<char>(c);
  }
  return !line.empty() && !interrupted();
}

int chat(ChatOptions options) {
  require_utf8(options.system, "--system");
  Session session(options.session);
  const Tokenizer& tokenizer = session.loaded->require_tokenizer();
  Conversation conversation(tokenizer, detect_template(tokenizer, options.session.model),
                            options.system);

  const int64_t context = session.context_tokens(options.context);
  session.load({.tokens = context, .shortest_tokens = kShortestContext});
  Runner runner = session.make_runner(context);
  Engine engine(runner.decoder, runner.kv, &tokenizer, {.max_sequence_tokens = context});
  validate(options.sampling.parse(), session.loaded->model.spec.vocab_size);

  const bool interactive = stdout_is_terminal();
  if (interactive) survive_interrupts();
  if (interactive)
    print_now("Talking to " + session.loaded->model.spec.name +
              ". /reset starts over, /exit or Ctrl-D ends.\n");
  std::string line;
  while (read_line(interactive, line)) {
    if (line.empty()) continue;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/reset") {
      conversation.clear();
      continue;
    }
    if (!is_valid_utf8(line)) {
      const int code =
          report_error(ExitCode::kUsage, "this message is not UTF-8, so it was not sent");
      if (!interactive) return code;
      continue;
    }
    conversation.add("user", line);
    std::vector<TokenId> prompt = conversation.encode();
    // Room for an answer: a quarter of the context, or what was asked for if that is less.
    const int64_t reserve = std::min<int64_t>(options.max_tokens, engine.max_sequence_tokens() / 4);
    while (static_cast<int64_t>(prompt.size()) + reserve > engine.max_sequence_tokens() &&
           conversation.forget_oldest()) {
      if (interactive)
        print_now("[the context is full: the oldest question and answer are forgotten]\n");
      prompt = conversation.encode();
    }
    if (static_cast<int64_t>(prompt.size()) >= engine.max_sequence_tokens()) {
      conversation.drop_last();
      const int code = report_error(
          ExitCode::kUsage,
          fmt::format(
              "this message has {} tokens with its surroundings, the context {}; shorten it",
              prompt.size(), engine.max_sequence_tokens()));
      if (!interactive) return code;
      continue;
    }
    conversation.add("assistant", answer(engine, options, std::move(prompt)));
    if (interrupted()) {
      if (!interactive) return interrupt_exit_code();
      clear_interrupt();  // it stopped the answer; the talk goes on
    }
  }
  if (interactive) print_now("\n");
  return interrupted() ? interrupt_exit_code() : 0;
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "talk with a model that has a chat template");
  auto options = std::make_shared<ChatOptions>();
  options->session.add_to(*command);
  command->add_option("--system", options->system,
                      "what the model is told before the conversation");
  command->add_option("-n,--max-tokens", options->max_tokens, "at most this many tokens an answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--ctx", options->context,
                   "tokens the conversation may have; 0 = the model's, at most 4096")
      ->capture_default_str()
      ->check(not_negative());
  options->sampling.add_to(*command);
  command->footer(
      "Each line is a message. Ctrl-C stops an answer; /reset forgets the conversation; /exit or "
      "Ctrl-D ends.\n"
      "Piped input works too:  echo 'Name three rivers.' | spillway chat smollm2");
  command->final_callback([options] { throw CLI::RuntimeError(chat(*options)); });
}

}  // namespace spillway
