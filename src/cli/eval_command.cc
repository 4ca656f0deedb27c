// SPDX-License-Identifier: Apache-2.0
// spillway eval: measures perplexity of a text and accuracy on last words.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "cli/attention_report.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/prompt_input.h"
#include "cli/session_flags.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "engine/last_word.h"
#include "engine/model_run.h"
#include "engine/perplexity.h"
#include "engine/session.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr int kShortestWindow = 4;

struct EvalOptions {
  SessionOptions session;
  std::string text;
  std::string last_word;
  int context = 512;
  int64_t max_windows = 0;
  bool json = false;
};

json eval_text(const EvalOptions& options, const std::vector<TokenId>& tokens, Session& session,
               AttentionTraffic& traffic) {
  const Tokenizer& tokenizer = session.loaded->require_tokenizer();
  ModelRun model(session, {}, options.context);
  Runner& runner = model.runner;

  ProgressBar bar("perplexity");
  PerplexityOptions perplexity_options;
  perplexity_options.context = options.context;
  perplexity_options.max_windows = options.max_windows;
  if (tokenizer.vocabulary().add_bos) perplexity_options.bos = tokenizer.bos();
  perplexity_options.cancel = &interrupted();
  perplexity_options.progress = [&](int64_t done, int64_t total, double so_far) {
    bar.update(static_cast<uint64_t>(done), static_cast<uint64_t>(total),
               fmt::format("{} of {} windows, {:.3f} so far", done, total, so_far));
  };
  const Stopwatch watch;
  const PerplexityResult result = perplexity(runner.decoder, runner.kv, tokens, perplexity_options);
  traffic += runner.decoder.take_stats().attention;
  return {
      {"perplexity", result.perplexity},
      {"perplexity_stderr", result.standard_error},
      {"tokens", result.tokens},
      {"windows", result.windows},
      {"ctx", options.context},
      {"text_tokens", tokens.size()},
      {"tokens_per_s", static_cast<double>(result.windows * options.context) / watch.seconds()}};
}

// Reads {"text": "..."} lines, as in LAMBADA.
std::vector<Passage> read_passages(const std::string& path, const Tokenizer& tokenizer) {
  std::istringstream lines(read_text_input(path));
  const std::string name = printable_path(path);
  std::vector<Passage> passages;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const json parsed = json::parse(line, nullptr, false);
    SPW_CHECK(parsed.is_object() && parsed.contains("text") && parsed["text"].is_string(),
              kInvalidArgument, "{}:{}: not a JSON object with a \"text\"", name, number);
    try {
      passages.push_back(split_last_word(tokenizer, parsed["text"].get<std::string>()));
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}", name, number, error.what());
    }
  }
  SPW_CHECK(!passages.empty(), kInvalidArgument, "{}: no passages", name);
  return passages;
}

// Returns the tokens of the longest passage. Throws kInvalidArgument if the model cannot take it.
int64_t longest_passage(const EvalOptions& options, const std::vector<Passage>& passages,
                        const ModelSpec& spec) {
  size_t longest = 0;
  for (const Passage& p : passages)
    longest = std::max(longest, p.context.size() + p.last_word.size());
  SPW_CHECK(static_cast<int64_t>(longest) <= spec.max_context, kInvalidArgument,
            "{}: a passage has {} tokens, the model's context {}", options.last_word, longest,
            spec.max_context);
  return static_cast<int64_t>(longest);
}

json eval_last_words(const std::vector<Passage>& passages, int64_t longest, Session& session,
                     AttentionTraffic& traffic) {
  ModelRun model(session, {}, longest);
  Runner& runner = model.runner;
  ProgressBar bar("last words");
  int64_t right = 0, words = 0;
  double logprob = 0;
  for (const Passage& passage : passages) {
    SPW_CHECK(!interrupted(), kCancelled, "stopped after {} of {} passages", words,
              passages.size());
    const TargetScore score =
        score_target(runner.decoder, runner.kv, passage.context, passage.last_word);
    right += score.greedy_matches ? 1 : 0;
    logprob += score.logprob;
    ++words;
    bar.update(static_cast<uint64_t>(words), passages.size(),
               fmt::format("{} of {} right", right, words));
  }
  traffic += runner.decoder.take_stats().attention;
  return {{"last_word_accuracy", static_cast<double>(right) / static_cast<double>(words)},
          {"last_word_perplexity", std::exp(-logprob / static_cast<double>(words))},
          {"passages", words}};
}

int eval(const EvalOptions& options) {
  SPW_CHECK(!options.text.empty() || !options.last_word.empty(), kInvalidArgument,
            "nothing to evaluate; give --text FILE or --last-word FILE.jsonl");
  const std::string text = options.text.empty() ? "" : read_text_input(options.text);
  Session session(options.session, terminal_services());
  const Tokenizer& tokenizer = session.loaded->require_tokenizer();
  std::vector<TokenId> tokens;
  std::vector<Passage> passages;
  ExpectedRun run;
  if (!options.text.empty()) {
    tokens = tokenizer.encode(text);
    run = {.tokens = options.context, .shortest_tokens = kShortestWindow};
  }
  int64_t longest = 0;
  if (!options.last_word.empty()) {
    passages = read_passages(options.last_word, tokenizer);
    longest = longest_passage(options, passages, session.loaded->model.spec);
    if (longest >= run.tokens) run = {.tokens = longest};  // no option makes a passage shorter
  }
  run.prompt = run.tokens;
  run.generated = 1;  // nothing is decoded
  session.load(run);
  json out{{"model", options.session.model}};
  AttentionTraffic traffic;
  if (!options.text.empty()) out.update(eval_text(options, tokens, session, traffic));
  if (!options.last_word.empty()) out.update(eval_last_words(passages, longest, session, traffic));
  report_attention(out, session.settings.attention_topk, traffic);
  if (options.json) {
    print_json(out);
    return 0;
  }
  if (out.contains("perplexity")) {
    print_now(fmt::format(
        "perplexity {:.4f} +- {:.4f} over {} tokens in {} windows of {} ({:.0f} tokens/s)\n",
        out["perplexity"].get<double>(), out["perplexity_stderr"].get<double>(),
        out["tokens"].get<int64_t>(), out["windows"].get<int64_t>(), options.context,
        out["tokens_per_s"].get<double>()));
  }
  if (out.contains("last_word_accuracy")) {
    print_now(fmt::format("last-word accuracy {:.2f}%, perplexity {:.3f} over {} passages\n",
                          100 * out["last_word_accuracy"].get<double>(),
                          out["last_word_perplexity"].get<double>(),
                          out["passages"].get<int64_t>()));
  }
  if (session.settings.attention_topk > 0) print_now(describe_attention(traffic));
  return 0;
}

}  // namespace

void add_eval_command(Command& app) {
  auto* command = app.add_subcommand(
      "eval", "measure how well a model predicts: perplexity of a text, accuracy on last words");
  auto options = std::make_shared<EvalOptions>();
  add_session_flags(*command, options->session);
  command->add_option("--text", options->text, "perplexity of this text file")
      ->placeholder("FILE")
      ->basic();
  command
      ->add_option("-c,--ctx", options->context,
                   "tokens in a window; the second half of each is scored")
      ->check(in_range(kShortestWindow, 1 << 24))
      ->basic();
  command
      ->add_option("--max-windows", options->max_windows, "stop after this many windows; 0 = all")
      ->check(not_negative())
      ->basic();
  command
      ->add_option("--last-word", options->last_word,
                   "a file of lines {\"text\": ...}: is the last word guessed? (LAMBADA)")
      ->placeholder("FILE")
      ->basic();
  command->add_flag("--json", options->json, "print one JSON object")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway eval smollm2 --text wiki.test.raw --ctx 512");
  command->note(
      "Windows do not overlap, each begins with BOS where the model has one, and its second half "
      "is scored, so the figure compares with llama.cpp's perplexity for the same file and "
      "context.");
  command->action([options] { return eval(*options); });
}

}  // namespace spillway
