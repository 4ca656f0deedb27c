// SPDX-License-Identifier: Apache-2.0
// Compares steps with drafts and steps without on one loaded model, in alternating rounds. A draft
// token is right with a given probability, as with `spillway bench --draft-acceptance`.
// bench/drafts.py reads the lines of JSON.
#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/bench_run.h"
#include "cli/command_line.h"
#include "cli/session_flags.h"
#include "cli/terminal_services.h"
#include "engine/draft_estimate.h"
#include "engine/model_run.h"
#include "engine/session.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  SessionOptions session;
  int prompt_tokens = 64, answer_tokens = 97, rounds = 3, draft_tokens = 4;
  std::vector<double> acceptances = {0.6, 0.0};
};

// A way to generate: without drafts, or with drafts of this acceptance.
struct Variant {
  std::string name;
  DraftOptions drafts;
};

std::vector<Variant> variants_of(const Options& options) {
  std::vector<Variant> variants = {{.name = "without", .drafts = {}}};
  for (const double acceptance : options.acceptances) {
    SPW_CHECK(acceptance >= 0 && acceptance <= 1, kInvalidArgument,
              "--acceptance {} is no probability; give 0 to 1", acceptance);
    variants.push_back(
        {.name = fmt::format("{}", acceptance),
         .drafts = {
             .kind = DraftKind::kDrawn, .acceptance = acceptance, .tokens = options.draft_tokens}});
  }
  return variants;
}

json measure(const Session& session, ModelRun& model, const Options& options,
             const Variant& variant) {
  const std::vector<RequestLengths> requests = {
      {.prompt = options.prompt_tokens, .answer = options.answer_tokens}};
  EngineOptions engine = model.options;
  engine.drafts = variant.drafts;
  engine.draft_costs = estimate_draft_costs(session, variant.drafts, /*sequences=*/1);
  const BenchRun run = run_median(model.runner, {.engine = engine, .requests = requests});
  const auto steps = static_cast<double>(std::max<int64_t>(1, run.decode.steps));
  return {{"name", variant.name},
          {"tokens_per_s", (options.answer_tokens - 1) / run.decode.seconds},
          {"steps", run.decode.steps},
          {"s_per_step", run.decode.seconds / steps},
          {"proposed", run.engine.draft_proposed},
          {"accepted", run.engine.draft_accepted}};
}

void sweep(const Options& options) {
  const std::vector<Variant> variants = variants_of(options);
  const int64_t tokens = int64_t{options.prompt_tokens} + options.answer_tokens;
  SessionOptions planned = options.session;
  planned.drafts = variants.back().drafts;  // with room for steps with drafts
  Session session(planned, terminal_services());
  session.choose_plan({.tokens = tokens,
                       .sequences = 1,
                       .prompt = options.prompt_tokens,
                       .generated = options.answer_tokens});
  fmt::print(stderr, "{}\n", session.describe_plan());
  session.load();
  ModelRun model(session, {.admission = RunOrder::Admission::kWholeBlocks}, tokens);
  for (int round = 0; round < options.rounds; ++round) {
    for (const Variant& variant : variants) {
      json line = measure(session, model, options, variant);
      line["round"] = round;
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("one sequence with and without drafts that are right by chance; lines of JSON");
  spillway::Command command(&app, nullptr);
  spillway::add_session_flags(command, options.session);
  app.add_option("--prompt-len", options.prompt_tokens)->capture_default_str();
  app.add_option("--gen-len", options.answer_tokens)->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--draft-tokens", options.draft_tokens, "proposed in a step")
      ->capture_default_str();
  app.add_option("--acceptance", options.acceptances,
                 "how likely a draft is right if those before it are")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    spillway::sweep(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "draft_sweep: {}\n", error.what());
    return 1;
  }
  return 0;
}
