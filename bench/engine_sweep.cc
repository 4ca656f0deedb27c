// SPDX-License-Identifier: Apache-2.0
// Measures ways to schedule requests that are limited by KV memory, on a real device. A model is
// loaded once; then each line of the input describes a measurement (a JSON object, see
// read_cell()), and each line of the output has its result. It is a server's engine without HTTP:
// device, plan, cache, scheduler, predictor and controller are the product's, except that the
// controller gets no predicted demand. bench/pie_figures.py and bench/s3_engine.py define the
// measurements.
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
#include "bench/engine_load.h"
#include "cli/command_line.h"
#include "cli/session_flags.h"
#include "cli/terminal_services.h"
#include "engine/answer_lengths.h"
#include "engine/engine.h"
#include "engine/model_run.h"
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

// The lengths that a server expects; pauses for prompts follow from them.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;

// One measurement.
struct Cell {
  LoadOptions load;                // it saturates unless the cell says otherwise
  std::string admission = "room";  // predicted, room or whole, as --kv-admission
  std::string lengths = "off";     // built-in, mean, oracle or off
  std::string learn;               // a file of requests that were answered before
  bool learns = true;              // also from answers of this measurement
  std::string order = "first";     // first or shortest
  bool recomputes = false;         // preempted sequences are recomputed, not kept in host memory
  std::optional<double> spare;  // room reserved for answers that grow; unset: the engine's default
  int64_t context = 0;          // limit for prompt and answer; 0: as long as there is room for
};

Cell read_cell(const json& of) {
  Cell cell;
  LoadOptions& load = cell.load;
  load.requests = of.at("requests");
  load.saturates = of.value("saturates", true);
  load.swapped_layers = of.value("turning", load.swapped_layers);
  load.warm_up_s = of.value("warm_up_s", load.warm_up_s);
  load.seconds = of.value("seconds", load.seconds);
  load.seed = of.value("seed", load.seed);
  cell.admission = of.value("admission", cell.admission);
  cell.lengths = of.value("lengths", cell.lengths);
  cell.learn = of.value("learn", cell.learn);
  cell.learns = of.value("learns", cell.learns);
  cell.order = of.value("order", cell.order);
  cell.recomputes = of.value("recomputes", cell.recomputes);
  if (of.contains("spare")) cell.spare = of.at("spare").get<double>();
  cell.context = of.value("context", cell.context);
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

// Returns the predictor of answer lengths; nullptr if there is none.
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

// Holds the engine of one measurement and reports to its predictor.
class Measurement {
 public:
  Measurement(const Cell& cell, Session& session, Runner& runner, const KvStores& stores,
              int max_sequences)
      : cell_(cell),
        context_(cell.context > 0 ? cell.context : session.planned_tokens()),
        lengths_(lengths_of(cell, context_)),
        engine_(runner.decoder, runner.kv, nullptr,
                options_of(session, runner, stores, max_sequences)),
        load_(engine_, runner.kv, session.loaded->model.spec.vocab_size, cell.load, machine_clock(),
              {.submit = [this](Arrivals::Arrival arrival) { submit(std::move(arrival)); },
               .event = [this](const GenerationEvent& event) { take(event); }}) {
    if (!cell.learn.empty()) learn(session.loaded->model.spec.vocab_size);
  }
  ~Measurement() {
    engine_.cancel_all([](const GenerationEvent&) {});
    try {
      engine_.change_swapped_layers(0);
    } catch (const Error&) {
      // A device error has come before; it will be reported and says more.
    }
  }

  json run() {
    load_.warm_up();
    const LengthCounts said = lengths_ ? lengths_->counts() : LengthCounts{};
    latencies_s_.clear();
    first_s_.clear();
    const LoadFigures figures = load_.measure();
    json out = load_.report(figures);
    add_requests(out);
    add_work(out, figures);
    if (lengths_) add_foresight(out, said, lengths_->counts(), figures.seconds);
    out["series"] = figures.series;
    return out;
  }

 private:
  struct AtWork {
    GenerationRequest request;  // what was predicted of it
    int64_t answer = 0, generated = 0;
    double due_s = 0, first_s = 0;
  };

  EngineOptions options_of(const Session& session, Runner& runner, const KvStores& stores,
                           int max_sequences) const {
    int concurrent = max_sequences;
    if (cell_.admission == "whole") {
      const int64_t blocks = (context_ + kKvBlockTokens - 1) / kKvBlockTokens;
      concurrent =
          static_cast<int>(std::clamp<int64_t>(runner.kv.device_blocks() / blocks, 1, concurrent));
    }
    SPW_CHECK(cell_.order == "first" || cell_.order == "shortest", kInvalidArgument,
              "the order is {}; give first or shortest", cell_.order);
    const ServingEstimate estimate = estimate_serving(session, concurrent, kUsualPrompt,
                                                      kUsualAnswer, runner.decoder.max_tokens());
    return {.max_prompt_tokens = estimate.prompt_tokens,
            .admission = {.max_sequences = concurrent},
            .scheduling = {.order = cell_.order == "first" ? OrderKind::kFirstCome
                                                           : OrderKind::kShortest,
                           .packs_predicted = cell_.admission == "predicted",
                           .spare = cell_.spare},
            .max_sequence_tokens = context_,
            .reuse_prefixes = true,
            .store = stores,
            .adapts_swapped_layers = cell_.load.adapts_swapped_layers()};
  }

  void learn(int64_t vocabulary) {
    if (!lengths_) return;
    Arrivals before(cell_.learn, vocabulary, 0);
    for (size_t i = 0; i < before.size(); ++i) {
      GenerationRequest request = before.take().request;
      const int64_t answer = request.max_tokens;
      predict(request, answer);
      lengths_->ended(request, answer, FinishReason::kStop);
      // The queue of the predictor is limited, so wait until it is empty.
      while (lengths_->counts().waiting > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // Sets all that the engine may know of a request.
  void predict(GenerationRequest& request, int64_t answer) const {
    request.max_tokens =
        static_cast<int>(std::max<int64_t>(1, context_ - std::ssize(request.prompt)));
    if (lengths_) lengths_->predict(request);
    if (cell_.lengths == "oracle") {
      request.max_tokens = static_cast<int>(std::min<int64_t>(request.max_tokens, answer));
      request.prediction = {.tokens = request.max_tokens};
    }
  }

  void submit(Arrivals::Arrival arrival) {
    AtWork of{.request = {}, .answer = arrival.request.max_tokens};
    of.due_s = cell_.load.saturates ? load_.passed_s() : arrival.at_s;
    // The prompt is cut to the longest that fits, so that every request is answered.
    if (std::ssize(arrival.request.prompt) + of.answer > context_)
      arrival.request.prompt.resize(
          static_cast<size_t>(std::max<int64_t>(1, context_ - std::min(of.answer, context_ - 1))));
    predict(arrival.request, of.answer);
    of.request.prediction = arrival.request.prediction;
    const RequestId id = engine_.submit(std::move(arrival.request));
    at_work_.emplace(id, std::move(of));
  }

  void take(const GenerationEvent& event) {
    const auto found = at_work_.find(event.id);
    if (found == at_work_.end()) return;
    AtWork& of = found->second;
    SPW_CHECK(!event.finish || *event.finish != FinishReason::kError, kDevice, "{}", event.error);
    if (event.token && of.generated++ == 0) of.first_s = load_.passed_s();
    if (of.generated < of.answer && !event.finish) return;
    // With random weights the end of an answer means nothing, so it ends at its given length.
    if (!event.finish) engine_.cancel(event.id);
    latencies_s_.push_back(load_.passed_s() - of.due_s);
    first_s_.push_back(of.first_s - of.due_s);
    if (lengths_ && cell_.learns) lengths_->ended(of.request, of.answer, FinishReason::kStop);
    at_work_.erase(found);
  }

  // Adds the figures of requests that ended.
  void add_requests(json& out) const {
    out["requests"] = latencies_s_.size();
    out["came_again"] = load_.arrivals().came_again();
    out["mean_latency_s"] = mean(latencies_s_);
    out["p99_latency_s"] = quantile(latencies_s_, 0.99);
    out["mean_first_token_s"] = mean(first_s_);
  }

  static void add_work(json& out, const LoadFigures& figures) {
    const EngineStats& before = figures.before;
    const EngineStats& after = figures.after;
    const int64_t prompt_steps = after.prompt_steps - before.prompt_steps;
    out["prompt_steps"] = prompt_steps;
    out["prompt_step_ms"] =
        figures.prompt_steps_s / static_cast<double>(std::max<int64_t>(1, prompt_steps)) * 1e3;
    out["recomputed_tokens"] = after.recomputed_tokens - before.recomputed_tokens;
    out["prompt_tokens"] = after.prompt_tokens - before.prompt_tokens;
    out["outgrown"] = after.predictions_exceeded - before.predictions_exceeded;
    out["scheduling_share"] = (after.scheduling_s - before.scheduling_s) / figures.seconds;
  }

  static void add_foresight(json& out, const LengthCounts& before, const LengthCounts& after,
                            double seconds) {
    const uint64_t right = after.right - before.right;
    const uint64_t wrong = after.over + after.under - before.over - before.under;
    if (right + wrong > 0)  // only answers that are learned from are compared
      out["accuracy"] = static_cast<double>(right) / static_cast<double>(right + wrong);
    out["predicting_share"] = (after.predicting_s - before.predicting_s) / seconds;
    out["learning_share"] = (after.learning_s - before.learning_s) / seconds;
  }

  const Cell& cell_;
  int64_t context_;
  std::unique_ptr<AnswerLengths> lengths_;
  Engine engine_;
  EngineLoad load_;
  std::unordered_map<RequestId, AtWork> at_work_;
  std::vector<double> latencies_s_, first_s_;  // of requests that ended
};

// Returns the run that a server with this KV budget would plan for.
ExpectedRun run_with(const Options& options, const Session& session) {
  const ModelSpec& spec = session.loaded->model.spec;
  const KvShapes kv = kv_shapes(spec.states, session.settings.kv_type);
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
  options.session.placement.kv_expansion = "auto";  // any number of layers may be swapped
  Session session(options.session, terminal_services());
  session.choose_plan(run_with(options, session));
  fmt::print(stderr, "{}\n", session.describe_plan());
  session.load();
  const int64_t planned = session.plan().sequences.value_or(1);
  ModelRun model(session, {.fits_fewer = true}, session.planned_tokens(), planned);
  Runner& runner = model.runner;
  const int rows = with_rows(runner.decoder, planned, options.max_sequences);
  fmt::print(stderr, "{} blocks of KV, {} sequences at most\n", runner.kv.device_blocks(), rows);
  for (std::string line; std::getline(std::cin, line);) {
    const Cell cell = read_cell(json::parse(line));
    const std::vector<std::unique_ptr<KvStore>> stores =
        cell.recomputes ? std::vector<std::unique_ptr<KvStore>>()
                        : session.make_kv_stores(runner.kv, session.planned_tokens(),
                                                 Session::KvStoreHost::kWhereDiscrete);
    Measurement measurement(cell, session, runner, stores, rows);
    fmt::print("{}\n", measurement.run().dump());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  spillway::Options options;
  CLI::App app("requests that KV memory limits, by many ways to schedule them; lines of JSON");
  spillway::Command command(&app, nullptr);
  spillway::add_session_flags(command, options.session);
  spillway::add_kv_store_flags(command, options.session.kv_store);
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
