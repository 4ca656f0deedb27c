// SPDX-License-Identifier: Apache-2.0
// spillway chat: talk, with the model's chat template.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/chat_history.h"
#include "cli/chat_input.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/prompt_input.h"
#include "cli/sampling_options.h"
#include "cli/session_flags.h"
#include "cli/template_option.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "engine/engine_client.h"
#include "engine/session.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr int64_t kShortestContext = 128;  // less holds no conversation

// What people know from other programs. The window is short, since in a longer one common words
// and the end of a turn are in it all the time.
const SamplingParams kDefaults{.temperature = 0.8F,
                               .top_k = 40,
                               .top_p = 0.95F,
                               .min_p = 0.05F,
                               .repetition_penalty = 1.1F,
                               .repetition_window = 64};

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  TemplateOption chat_template;
  std::string system;
  int max_tokens = 1024;
  int64_t context = 0;
};

std::filesystem::path expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  if (!path.starts_with("~/") || home == nullptr) return path;
  return std::filesystem::path(home) / path.substr(2);
}

// One line of standard input; false at its end.
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

// The talk itself. What is wrong with a line throws kInvalidArgument, or kIo if it cannot be saved,
// and leaves the conversation as it was.
class Chat {
 public:
  Chat(const ChatOptions& options, Conversation conversation, EngineClient& engine,
       SamplingParams sampling, bool interactive)
      : options_(options),
        conversation_(std::move(conversation)),
        engine_(engine),
        sampling_(std::move(sampling)),
        interactive_(interactive) {
    set_system(options.system);
  }

  // Does what a line says; false when it ends the talk.
  bool take(const std::string& line) {
    SPW_CHECK(is_valid_utf8(line), kInvalidArgument,
              "this message is not UTF-8, so it was not sent");
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

 private:
  // For the person at the terminal; others have no use for it.
  void note(std::string_view text) const {
    if (interactive_ && stderr_is_terminal()) fmt::print(stderr, "\x1b[2m[{}]\x1b[0m\n", text);
  }
  // What changes answers is said in pipes, too.
  void warn(std::string_view text) const {
    if (interactive_) {
      note(text);
    } else {
      log_warning("{}", text);
    }
  }

  void set_system(const std::string& text) {
    if (!text.empty() && !conversation_.takes_system())
      warn("this model's chat template has no place for a system message; it is not sent");
    conversation_.set_system(text);
  }

  // The conversation as a prompt with room for an answer: a quarter of the context, or what was
  // asked for if that is less.
  std::vector<TokenId> make_prompt() {
    const int64_t context = engine_.max_sequence_tokens();
    const int64_t reserve = std::min<int64_t>(options_.max_tokens, context / 4);
    std::vector<TokenId> prompt = conversation_.encode();
    while (static_cast<int64_t>(prompt.size()) + reserve > context &&
           conversation_.forget_oldest()) {
      warn("the context is full: the oldest question and answer are forgotten");
      prompt = conversation_.encode();
    }
    return prompt;
  }

  void answer(const std::string& message) {
    const int64_t context = engine_.max_sequence_tokens();
    conversation_.add_question(message);
    GenerationRequest request;
    request.prompt = make_prompt();
    const size_t prompt_tokens = request.prompt.size();
    if (static_cast<int64_t>(prompt_tokens) >= context) {
      conversation_.drop_last();
      fail(ErrorCode::kInvalidArgument,
           "this message has {} tokens with its surroundings, the context {}; shorten it",
           prompt_tokens, context);
    }
    request.max_tokens = options_.max_tokens;
    request.sampling = sampling_;
    request.stop = options_.sampling.stop;
    ++sampling_.seed;  // the same question again gets another answer
    const int64_t reused_before = engine_.stats().reused_tokens;
    const Answer answer = generate(engine_, std::move(request),
                                   [](const GenerationEvent& event) { print_now(event.text); });
    print_now("\n");
    if (answer.error) throw *answer.error;
    conversation_.add_answer(answer.text);
    report(answer, prompt_tokens, engine_.stats().reused_tokens - reused_before, context);
  }

  void report(const Answer& answer, size_t prompt_tokens, int64_t reused, int64_t context) const {
    std::string cut = describe_cut(answer, prompt_tokens, context);
    const int64_t used = static_cast<int64_t>(prompt_tokens + answer.ids.size());
    const bool full = answer.finish == FinishReason::kLength && used >= context;
    if (full && !interactive_) log_warning("an answer was {}; --ctx gives more", cut);
    if (full) cut += "; /clear starts over, --ctx gives more";
    if (cut.empty() && answer.is_blank()) cut = "the answer is empty";
    const std::string kept =
        reused > 0 ? fmt::format(", {} of them not computed again", reused) : std::string();
    note(fmt::format("{}{}{}; context {} of {}{}", cut, cut.empty() ? "" : "; ",
                     describe_speed(answer), used, context, kept));
  }

  const ChatOptions& options_;
  Conversation conversation_;
  EngineClient& engine_;
  SamplingParams sampling_;
  bool interactive_;
};

int talk_at_terminal(Chat& chat) {
  ChatHistory history(try_history_path());
  LineEditor editor(history.messages());
  bool cleared_before = false;
  while (true) {
    TypedText typed = editor.read();
    if (interrupted() && interrupt_exit_code() == 128 + SIGINT) {
      clear_interrupt();  // meant for an answer that had just ended
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
      clear_interrupt();  // it stopped the answer; the talk goes on
    }
  }
}

// Every line is a message, answered before the next one is read.
int answer_lines(Chat& chat) {
  std::string line;
  while (read_line(line) && chat.take(line) && !interrupted()) {
  }
  return interrupted() ? interrupt_exit_code() : 0;
}

// The flags, else what the model's makers say, else the defaults.
SamplingParams choose_sampling(const SamplingOptions& flags, const SuggestedSampling& suggested) {
  for (const std::string& what : suggested.ignored) log_warning("{}; it is ignored", what);
  SamplingParams params = kDefaults;
  suggested.apply_to(params);
  params = flags.over(params);
  params.seed = flags.choose_seed();
  log_info(
      "temperature {}, top-k {}, top-p {}, min-p {}, repetition penalty {} over {} tokens (0: "
      "all), seed {}",
      params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty,
      params.repetition_window, params.seed);
  return params;
}

int chat(ChatOptions options) {
  // Before the model is loaded: bad input should not have to wait.
  require_utf8(options.system, "--system");
  options.sampling.over(kDefaults);
  options.sampling.choose_seed();

  Session session(options.session, terminal_services());
  const Tokenizer& tokenizer = session.loaded->require_tokenizer();
  Conversation conversation(
      tokenizer, options.chat_template.require_template(tokenizer, options.session.model));
  const SamplingParams sampling = choose_sampling(options.sampling, session.loaded->sampling);
  validate(sampling, session.loaded->model.spec.vocab_size);

  session.choose_plan({.tokens = session.context_tokens(options.context),
                       .least_context = options.context > 0 ? 0 : kShortestContext,
                       .shortest_tokens = kShortestContext});
  session.say_plan();
  session.load();
  const int64_t context = session.planned_tokens();
  Runner runner = session.make_runner(context);
  Engine engine(runner.decoder, runner.kv, &tokenizer,
                {.max_sequence_tokens = context, .reuse_prefixes = true});
  const bool interactive = stdin_is_terminal() && stdout_is_terminal();
  EngineClient client(engine);
  Chat talk(options, std::move(conversation), client, sampling, interactive);
  if (!interactive) return answer_lines(talk);
  survive_interrupts();
  print_now(fmt::format("Talking to {}. /help lists commands, Ctrl-D leaves.\n",
                        session.loaded->model.spec.name));
  if (!LineEditor::shortcomings().empty())
    print_now(fmt::format("({})\n", LineEditor::shortcomings()));
  return talk_at_terminal(talk);
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "talk with a model that has a chat template");
  auto options = std::make_shared<ChatOptions>();
  add_session_flags(*command, options->session);
  command->add_option("--system", options->system,
                      "what the model is told before the conversation");
  options->chat_template.add_to(*command);
  command->add_option("-n,--max-tokens", options->max_tokens, "at most this many tokens an answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("-c,--ctx", options->context,
                   "tokens the conversation may have; 0 = the model's, at most 4096")
      ->capture_default_str()
      ->check(not_negative());
  options->sampling.add_to(*command, kDefaults);
  command->footer(
      "A model's generation_config.json (or a GGUF file's general.sampling keys) replaces the "
      "sampling defaults, flags\n"
      "replace both; --verbose says what holds, and the seed. /help lists the commands of a talk.\n"
      "Where input or output is no terminal, every line is a message (or a command), only answers "
      "are written, and a\n"
      "line that cannot be sent ends the talk with exit code 2:\n"
      "  echo 'Name three rivers.' | spillway chat smollm2");
  command->final_callback([options] { throw CLI::RuntimeError(chat(*options)); });
}

}  // namespace spillway
