// SPDX-License-Identifier: Apache-2.0
// Requests that KV memory limits, on a real device by many ways to schedule them: a model is loaded
// once, then each line of the input is a measurement (a JSON object, see read_cell()), and each
// line of the output what came of it. A server's engine without its HTTP: device, plan, cache,
// scheduler, predictor and controller (which here hears of no predicted demand) are the product's.
// bench/pie_figures.py and bench/s3_engine.py say which measurements there are.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/stopwatch.h"
#include "bench/arrivals.h"
#include "cli/session_flags.h"
#include "cli/terminal_services.h"
#include "engine/answer_lengths.h"
#include "engine/engine.h"
#include "engine/placement_options.h"
#include "engine/runner.h"
#include "engine/serving_estimate.h"
#include "engine/session.h"
#include "predict/ngram_predictor.h"
#include "predict/simple_predictors.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  SessionOptions session;
  std::string kv_budget = "3GB";
  int64_t context = 2048;
  int max_sequences = 64;
};

constexpr int kAlwaysWaiting = 64;  // requests, where they saturate
constexpr double kTellEvery = 0.5;  // seconds
// What a server expects; pauses for prompts follow from it.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;

// One measurement.
struct Cell {
  std::string requests;            // a file, see Arrivals
  bool saturates = true;           // some always wait, whatever the times say
  std::string turning = "0";       // layers whose KV takes turns, or "auto"
  std::string admission = "room";  // predicted, room or whole, as --kv-admission
  std::string lengths = "off";     // built-in, mean, oracle or off
  std::string learn;               // a file of requests that were answered before
  bool learns = true;              // from answers of this measurement, too
  std::string order = "first";     // first or shortest
  bool recomputes = false;         // who gives way is computed again, and not kept in host memory
  std::optional<double> spare;     // room for answers that grow; none: as the engine does
  int64_t context = 0;             // of prompt and answer; 0: what there is room for
  double warm_up_s = 10, seconds = 30;
  uint32_t seed = 1;
};

Cell read_cell(const json& of) {
  Cell cell;
  cell.requests = of.at("requests");
  cell.saturates = of.value("saturates", cell.saturates);
  cell.turning = of.value("turning", cell.turning);
  cell.admission = of.value("admission", cell.admission);
  cell.lengths = of.value("lengths", cell.lengths);
  cell.learn = of.value("learn", cell.learn);
  cell.learns = of.value("learns", cell.learns);
  cell.order = of.value("order", cell.order);
  cell.recomputes = of.value("recomputes", cell.recomputes);
  if (of.contains("spare")) cell.spare = of.at("spare").get<double>();
  cell.context = of.value("context", cell.context);
  cell.warm_up_s = of.value("warm_up_s", cell.warm_up_s);
  cell.seconds = of.value("seconds", cell.seconds);
  cell.seed = of.value("seed", cell.seed);
  return cell;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
  return values[at];
}

// Who says how long answers will be; null: nobody.
std::unique_ptr<AnswerLengths> lengths_of(const Cell& cell, int64_t most_tokens) {
  if (cell.lengths == "built-in")
    return std::make_unique<AnswerLengths>(
        std::make_unique<NgramPredictor>(LengthBuckets::of_unknown(most_tokens)), "", "");
  if (cell.lengths == "mean")
    return std::make_unique<AnswerLengths>(
        std::make_unique<RunningMeanPredictor>(LengthBuckets::of_unknown(most_tokens)), "", "");
  SPW_CHECK(cell.lengths == "off" || cell.lengths == "oracle", kInvalidArgument,
            "lengths are {}; give built-in, mean, oracle or off", cell.lengths);
  return nullptr;
}

// The engine of one measurement and what it is told.
class Measurement {
 public:
  Measurement(const Cell& cell, Session& session, Runner& runner, KvStore* store, int max_sequences)
      : cell_(cell),
        context_(cell.context > 0 ? cell.context : session.planned_tokens()),
        kv_(runner.kv),
        lengths_(lengths_of(cell, context_)),
        arrivals_(cell.requests, session.loaded->model.spec.vocab_size, cell.seed),
        engine_(runner.decoder, runner.kv, nullptr,
                options_of(session, runner, store, max_sequences)) {
    if (!cell.learn.empty()) learn(session.loaded->model.spec.vocab_size);
  }
  ~Measurement() {
    engine_.cancel_all([](const GenerationEvent&) {});
    try {
      engine_.change_turns(0);
    } catch (const Error&) {
      // After a device's error, which is on its way and says more.
    }
  }

  json run() {
    if (cell_.turning != "auto") engine_.change_turns(std::stoi(cell_.turning));
    watch_ = {};
    while (watch_.seconds() < cell_.warm_up_s) step();
    engine_.take_traffic();
    const EngineStats before = engine_.stats();
    const LengthCounts said = lengths_ ? lengths_->counts() : LengthCounts{};
    latencies_s_.clear();
    first_s_.clear();
    waiting_s_ = running_s_ = prompt_steps_s_ = 0;
    const double from_s = watch_.seconds();
    json series = json::array();
    double told_s = from_s;
    int64_t told = before.generated_tokens;
    while (watch_.seconds() < from_s + cell_.seconds) {
      step();
      const double now_s = watch_.seconds();
      if (now_s - told_s < kTellEvery) continue;
      const int64_t tokens = engine_.stats().generated_tokens;
      series.push_back({{"s", now_s - from_s},
                        {"tokens_per_s", static_cast<double>(tokens - told) / (now_s - told_s)},
                        {"turning", kv_.layers().turning()}});
      told = tokens;
      told_s = now_s;
    }
    const double seconds = watch_.seconds() - from_s;
    engine_.take_traffic();
    json out = result(before, engine_.stats(), seconds);
    if (lengths_) add_foresight(out, said, lengths_->counts(), seconds);
    out["series"] = std::move(series);
    return out;
  }

 private:
  struct AtWork {
    GenerationRequest request;  // what was predicted of it
    int64_t answer = 0, generated = 0;
    double due_s = 0, first_s = 0;
  };

  EngineOptions options_of(const Session& session, Runner& runner, KvStore* store,
                           int max_sequences) const {
    int at_once = max_sequences;
    if (cell_.admission == "whole") {
      const int64_t blocks = (context_ + kKvBlockTokens - 1) / kKvBlockTokens;
      at_once = static_cast<int>(std::clamp<int64_t>(kv_.device_blocks() / blocks, 1, at_once));
    }
    SPW_CHECK(cell_.order == "first" || cell_.order == "shortest", kInvalidArgument,
              "the order is {}; give first or shortest", cell_.order);
    const ServingEstimate estimate =
        estimate_serving(session, at_once, kUsualPrompt, kUsualAnswer, runner.decoder.max_tokens());
    return {.max_prompt_tokens = estimate.prompt_tokens,
            .admission = {.max_sequences = at_once},
            .scheduling = {.order = cell_.order == "first" ? OrderKind::kFirstCome
                                                           : OrderKind::kShortest,
                           .packs_predicted = cell_.admission == "predicted",
                           .spare = cell_.spare},
            .max_sequence_tokens = context_,
            .reuse_prefixes = true,
            .store = store,
            .adapts_turns = cell_.turning == "auto"};
  }

  void learn(int64_t vocabulary) {
    if (!lengths_) return;
    Arrivals before(cell_.learn, vocabulary, 0);
    for (size_t i = 0; i < before.size(); ++i) {
      GenerationRequest request = before.take().request;
      const int64_t answer = request.max_tokens;
      foresee(request, answer);
      lengths_->ended(request, answer, FinishReason::kStop);
      // Its queue has an end.
      while (lengths_->counts().waiting > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // All that the engine may know of it.
  void foresee(GenerationRequest& request, int64_t answer) const {
    request.max_tokens =
        static_cast<int>(std::max<int64_t>(1, context_ - std::ssize(request.prompt)));
    if (lengths_) lengths_->foresee(request);
    if (cell_.lengths == "oracle") {
      request.max_tokens = static_cast<int>(std::min<int64_t>(request.max_tokens, answer));
      request.foreseen = {.tokens = request.max_tokens};
    }
  }

  void submit_next() {
    Arrivals::Arrival arrival = arrivals_.take();
    ++submitted_;
    AtWork of{.request = {}, .answer = arrival.request.max_tokens};
    of.due_s = cell_.saturates ? watch_.seconds() : arrival.at_s;
    // The longest that fit, so that all are answered.
    if (std::ssize(arrival.request.prompt) + of.answer > context_)
      arrival.request.prompt.resize(
          static_cast<size_t>(std::max<int64_t>(1, context_ - std::min(of.answer, context_ - 1))));
    foresee(arrival.request, of.answer);
    of.request.foreseen = arrival.request.foreseen;
    const RequestId id = engine_.submit(std::move(arrival.request));
    at_work_.emplace(id, std::move(of));
  }

  void submit_those_due() {
    if (cell_.saturates) {
      while (engine_.state().waiting < kAlwaysWaiting) submit_next();
      return;
    }
    while (arrivals_.next_at_s() && *arrivals_.next_at_s() <= watch_.seconds()) submit_next();
  }

  void take(const GenerationEvent& event) {
    const auto found = at_work_.find(event.id);
    if (found == at_work_.end()) return;
    AtWork& of = found->second;
    SPW_CHECK(!event.finish || *event.finish != FinishReason::kError, kDevice, "{}", event.error);
    if (event.token && of.generated++ == 0) of.first_s = watch_.seconds();
    if (of.generated < of.answer && !event.finish) return;
    // The model's weights may be random: it ends where the answer does, and not before.
    if (!event.finish) engine_.cancel(event.id);
    latencies_s_.push_back(watch_.seconds() - of.due_s);
    first_s_.push_back(of.first_s - of.due_s);
    if (lengths_ && cell_.learns) lengths_->ended(of.request, of.answer, FinishReason::kStop);
    at_work_.erase(found);
  }

  void step() {
    submit_those_due();
    if (!engine_.has_requests()) {
      SPW_CHECK(arrivals_.next_at_s(), kInvalidArgument,
                "{}: the last request came at {:.1f} s, before the run's end", cell_.requests,
                watch_.seconds());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      return;
    }
    const double before_s = watch_.seconds();
    const EngineState state = engine_.state();
    const int64_t worked = engine_.stats().sequence_steps;
    const int64_t prompt_steps = engine_.stats().prompt_steps;
    engine_.step([this](const GenerationEvent& event) { take(event); });
    const double took_s = watch_.seconds() - before_s;
    if (engine_.stats().prompt_steps > prompt_steps) prompt_steps_s_ += took_s;
    const int64_t at_work = engine_.stats().sequence_steps - worked;
    running_s_ += took_s * static_cast<double>(at_work);
    waiting_s_ += took_s * static_cast<double>(state.waiting + state.running - at_work);
  }

  json result(const EngineStats& before, const EngineStats& after, double seconds) const {
    const auto grew = [](auto was, auto is) { return static_cast<double>(is - was); };
    const double steps = std::max(1.0, grew(before.steps, after.steps));
    const double prompt_steps = grew(before.prompt_steps, after.prompt_steps);
    const double tokens = std::max(1.0, grew(before.generated_tokens, after.generated_tokens));
    json out = {
        {"turning", kv_.layers().turning()},
        {"expansion", engine_.state().kv_expansion},
        {"blocks", kv_.layers().sizes().blocks},
        {"expanded_blocks", kv_.device_blocks()},
        {"seconds", seconds},
        {"tokens_per_s", tokens / seconds},
        {"requests", latencies_s_.size()},
        {"came_again", std::max<int64_t>(0, submitted_ - static_cast<int64_t>(arrivals_.size()))},
        {"step_ms", seconds / steps * 1e3},
        {"prompt_steps", prompt_steps},
        {"prompt_step_ms", prompt_steps_s_ / std::max(1.0, prompt_steps) * 1e3},
        {"waited_share", grew(before.turn_waited_s, after.turn_waited_s) / seconds},
        {"sequences", grew(before.sequence_steps, after.sequence_steps) / steps},
        {"preemptions", grew(before.preemptions, after.preemptions)},
        {"recomputed_tokens", grew(before.recomputed_tokens, after.recomputed_tokens)},
        {"prompt_tokens", grew(before.prompt_tokens, after.prompt_tokens)},
        {"outgrown", grew(before.outgrown, after.outgrown)},
        {"scheduling_share", grew(before.scheduling_s, after.scheduling_s) / seconds},
        {"changes", after.turn_changes},
        {"turn_bytes_per_s", grew(before.turn_bytes, after.turn_bytes) / seconds},
        {"queueing_ms_per_token", waiting_s_ / tokens * 1e3},
        {"compute_ms_per_token", running_s_ / tokens * 1e3},
        {"mean_latency_s", mean(latencies_s_)},
        {"p99_latency_s", quantile(latencies_s_, 0.99)},
        {"mean_first_token_s", mean(first_s_)}};
    return out;
  }

  static void add_foresight(json& out, const LengthCounts& before, const LengthCounts& after,
                            double seconds) {
    const uint64_t right = after.right - before.right;
    const uint64_t wrong = after.over + after.under - before.over - before.under;
    if (right + wrong > 0)  // only what is learned from is looked at
      out["accuracy"] = static_cast<double>(right) / static_cast<double>(right + wrong);
    out["predicting_share"] = (after.predicting_s - before.predicting_s) / seconds;
    out["learning_share"] = (after.learning_s - before.learning_s) / seconds;
  }

  const Cell& cell_;
  int64_t context_;
  KvCache& kv_;
  std::unique_ptr<AnswerLengths> lengths_;
  Arrivals arrivals_;
  Engine engine_;
  int64_t submitted_ = 0;
  Stopwatch watch_;
  std::unordered_map<RequestId, AtWork> at_work_;
  std::vector<double> latencies_s_, first_s_;  // of those that ended
  double waiting_s_ = 0, running_s_ = 0;       // of requests
  double prompt_steps_s_ = 0;                  // all steps that had prompts
};

// As a server does it, with room for so much KV.
ExpectedRun run_with(const Options& options, const Session& session) {
  const ModelSpec& spec = session.loaded->model.spec;
  const KvShape kv{spec.layers, spec.kv_heads, spec.head_dim, session.settings.kv_type};
  const auto bytes = static_cast<int64_t>(parse_memory(options.kv_budget, "--kv-budget"));
  const int64_t blocks = bytes / kv.block_bytes();
  const int64_t wanted = session.context_tokens(options.context) / kKvBlockTokens;
  SPW_CHECK(blocks > 0 && wanted > 0, kInvalidArgument, "--kv-budget {}: a block has {} bytes",
            options.kv_budget, kv.block_bytes());
  const int64_t sequences = std::max<int64_t>(1, blocks / wanted);
  return {.tokens = blocks / sequences * kKvBlockTokens,
          .sequences = sequences,
          .prompt = kUsualPrompt,
          .generated = kUsualAnswer,
          .requests = 1000};
}

void sweep(Options& options) {
  options.session.placement.kv_expansion = "auto";  // there is room for all of them
  Session session(options.session, terminal_services());
  session.choose_plan(run_with(options, session));
  fmt::print(stderr, "{}\n", session.describe_plan());
  session.load();
  Runner runner =
      session.make_runner_that_fits(session.planned_tokens(), session.plan.sequences.value_or(1));
  const int rows =
      with_rows(runner.decoder, session.plan.sequences.value_or(1), options.max_sequences);
  fmt::print(stderr, "{} blocks of KV, {} sequences at most\n", runner.kv.device_blocks(), rows);
  for (std::string line; std::getline(std::cin, line);) {
    const Cell cell = read_cell(json::parse(line));
    const std::unique_ptr<KvStore> store =
        cell.recomputes ? nullptr
                        : session.make_kv_store(runner.kv, session.planned_tokens(),
                                                Session::KvStoreHost::kWhereApart);
    Measurement measurement(cell, session, runner, store.get(), rows);
    fmt::print("{}\n", measurement.run().dump());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("requests that KV memory limits, by many ways to schedule them; lines of JSON");
  spillway::add_session_flags(app, options.session);
  spillway::add_kv_store_flags(app, options.session.kv_store);
  app.add_option("--kv-budget", options.kv_budget, "KV memory on the device, such as 3GB")
      ->capture_default_str();
  app.add_option("-c,--ctx", options.context, "tokens of a request and its answer at most")
      ->capture_default_str();
  app.add_option("--max-sequences", options.max_sequences, "at work at once")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    spillway::sweep(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_sweep: {}\n", error.what());
    return 1;
  }
  return 0;
}
