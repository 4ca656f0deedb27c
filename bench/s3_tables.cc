// SPDX-License-Identifier: Apache-2.0
// Computes what S3's evaluation shows (tables 2, 3, 4 and 5, figures 1, 4d, 5 and 6), with
// Spillway's scheduler and predictor and a model of the paper's machine, as JSON. s3_tables.py
// prints it beside the paper's figures.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/s3_simulator.h"
#include "engine/vocabulary_from_files.h"
#include "predict/predictor_training.h"
#include "predict/simple_predictors.h"
#include "storage/model_files.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr int kFolds = 5;
constexpr int32_t kMostTokens = 2048;      // limit of a sequence (S3, section 2.2)
constexpr int64_t kPaperTokens = 558'700;  // table 3: batch size times iterations
constexpr int kFigure1Tokens = 60;

struct Arguments {
  std::string data, model;
  std::string arrivals;  // file of a trace; empty: random arrivals
  double quantile = kReservedQuantile;
  uint32_t seed = 4;         // for the order of arrival
  size_t first_arrival = 0;  // index in the trace
  bool serial_attention = true;
};

// A request with what each predictor says about its answer.
struct Request {
  int32_t prompt = 1, answer = 1;
  int64_t paper = 0;    // the end of the likeliest of ten equal buckets up to 2048
  int64_t ngram = 0;    // a quantile, with buckets of equal frequency
  int64_t running = 0;  // the same, from a predictor that ignores the prompt
};

std::vector<Request> predicted_requests(const Arguments& arguments, PredictorScore& score) {
  const Tokenizer tokenizer(vocabulary_from_files(open_tokenizer(arguments.model)));
  const LengthData data = read_length_data(arguments.data, tokenizer);
  score = cross_validate(data.examples, {});
  std::vector<Request> requests;
  const LengthBuckets paper_buckets = LengthBuckets::linear(kMostTokens);
  for (int fold = 0; fold < kFolds; ++fold) {
    std::vector<LengthExample> training, tests;
    for (const LengthExample& example : data.examples)
      (fold_of(example, kFolds) == fold ? tests : training).push_back(example);
    const LengthBuckets equal = LengthBuckets::equal_frequency(lengths_of(training));
    const NgramPredictor paper = train_predictor(training, paper_buckets);
    const NgramPredictor ngram = train_predictor(training, equal);
    RunningMeanPredictor running(equal);
    for (const LengthExample& example : training) running.learn({}, example.tokens);
    for (const LengthExample& test : tests) {
      const auto prompt = static_cast<int32_t>(tokenizer.encode(test.prompt).size());
      const int32_t most = kMostTokens - prompt;
      if (most < 1) continue;
      const LengthQuery query{.text = test.prompt, .most_tokens = most};
      requests.push_back({.prompt = prompt,
                          .answer = static_cast<int32_t>(std::min<int64_t>(test.tokens, most)),
                          .paper = static_cast<int64_t>(
                              std::ceil(paper_buckets.end_of(paper.predict(query).likeliest()))),
                          .ngram = ngram.predict(query).quantile(arguments.quantile),
                          .running = running.predict(query).quantile(arguments.quantile)});
    }
  }
  return requests;
}

// Repeats the requests until they have the paper's number of tokens, and shuffles them.
std::vector<Request> repeated(const std::vector<Request>& requests, uint32_t seed) {
  std::vector<Request> all;
  int64_t tokens = 0;
  for (size_t i = 0; tokens < kPaperTokens; i = (i + 1) % requests.size()) {
    all.push_back(requests[i]);
    tokens += requests[i].answer;
  }
  std::mt19937 random(seed);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
  return all;
}

// A way to serve, and the length of answer that it assumes.
struct System {
  std::string name;
  Policy policy;
  int64_t (*predicted)(const Request&);
};

std::vector<System> systems() {
  const Policy s3{
      .order = Order::kLongestFirst, .room = Room::kSum, .preempts_exceeded = true, .swaps = true};
  Policy peak = s3, recomputing = s3;
  peak.room = recomputing.room = Room::kPeak;
  recomputing.swaps = false;
  return {{"orca", {.room = Room::kSum}, [](const Request&) { return int64_t{kMostTokens}; }},
          {"s3", s3, [](const Request& r) { return r.paper; }},
          {"oracle", s3, [](const Request& r) { return int64_t{r.answer}; }},
          {"paging", {}, [](const Request&) { return int64_t{0}; }},
          {"spillway", recomputing, [](const Request& r) { return r.ngram; }},
          {"spillway_swap", peak, [](const Request& r) { return r.ngram; }},
          {"spillway_mean", recomputing, [](const Request& r) { return r.running; }},
          {"spillway_oracle", recomputing, [](const Request& r) { return int64_t{r.answer}; }}};
}

std::vector<TraceRequest> trace_for(const System& system, const std::vector<Request>& requests) {
  std::vector<TraceRequest> trace;
  for (const Request& request : requests)
    trace.push_back({.prompt = request.prompt,
                     .answer = request.answer,
                     .predicted = system.predicted(request)});
  return trace;
}

json result_json(const SimulationResult& result) {
  return {{"batch", result.mean_batch},
          {"iterations", result.iterations},
          {"tokens_per_s", result.tokens_per_s()},
          {"sequences_per_s", static_cast<double>(result.requests) / result.seconds()},
          {"preemptions", result.preemptions},
          {"extensions", result.extensions},
          {"recomputed_tokens", result.recomputed_tokens},
          {"most_sequences", result.most_sequences},
          {"most_memory_share", result.most_memory_share},
          {"generation_s", result.generation_s},
          {"penalty_s", result.penalty_s},
          {"scheduler_s", result.scheduler_s},
          {"mean_latency_s", result.mean_latency_s},
          {"p99_latency_s", result.p99_latency_s},
          {"steps_in_pace", result.steps_in_pace},
          {"slowest_step_s", result.slowest_step_s}};
}

json serve_all(const PaperModel& model, const PaperMachine& machine,
               const std::vector<Request>& requests, double token_s) {
  json results;
  for (const System& system : systems()) {
    Policy policy = system.policy;
    policy.token_s = token_s;
    results[system.name] =
        result_json(simulate_serving(model, machine, policy, trace_for(system, requests)));
  }
  return results;
}

// Computes latency and throughput by batch size, for sequences that reach 60 tokens.
json figure1(const PaperModel& model, const PaperMachine& machine) {
  json curve = json::array();
  const double tokens = machine.kv_tokens(model);
  const auto vanilla = static_cast<int64_t>(tokens / kMostTokens);
  const auto exact = static_cast<int64_t>(tokens / kFigure1Tokens);
  for (int64_t batch = 1;; batch *= 2) {
    batch = std::min(batch, exact);
    double seconds = 0;
    for (int64_t t = 1; t <= kFigure1Tokens; ++t)
      seconds += machine.step_s(model, batch, batch * t, 0);
    curve.push_back({{"batch", batch},
                     {"latency_s", seconds},
                     {"tokens_per_s", static_cast<double>(batch * kFigure1Tokens) / seconds},
                     {"vanilla", batch <= vanilla}});
    if (batch == exact) break;
  }
  return {{"vanilla_batch", vanilla}, {"exact_batch", exact}, {"curve", curve}};
}

// Returns arrival times in seconds since the first, from an Azure trace (day and time in the first
// column, below a header line).
std::vector<double> trace_times(const std::string& path, size_t first_arrival) {
  std::ifstream file(path);
  std::string line;
  std::vector<double> times;
  std::getline(file, line);
  while (std::getline(file, line)) {
    int day = 0, hour = 0, minute = 0;
    double second = 0;
    SPW_CHECK(std::sscanf(line.c_str(), "%*d-%*d-%d %d:%d:%lf", &day, &hour, &minute, &second) == 4,
              kInvalidArgument, "{}: no time in '{}'", path, line);
    times.push_back(((day * 24.0 + hour) * 60 + minute) * 60 + second);
  }
  SPW_CHECK(times.size() > first_arrival + 1, kInvalidArgument, "{}: only {} times", path,
            times.size());
  std::ranges::sort(times);
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(first_arrival));
  const double first = times.front();
  for (double& time : times) time -= first;
  return times;
}

// Sets arrivals at a rate of 80% of the capacity.
void set_arrivals(std::vector<TraceRequest>& trace, double capacity_s,
                  const std::vector<double>& times) {
  const double span = capacity_s / 0.8;
  std::mt19937 random(9);
  std::exponential_distribution<double> gap(static_cast<double>(trace.size()) / span);
  const size_t last = std::min(times.size(), trace.size()) - (times.empty() ? 0 : 1);
  double at = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (times.empty()) {
      trace[i].arrival_s = at += gap(random);
    } else {  // repeats the trace if it has fewer
      const auto round = static_cast<double>(i / (last + 1));
      const double share = times[i % (last + 1)] / times[last] + round;
      trace[i].arrival_s =
          share * span * static_cast<double>(last + 1) / static_cast<double>(trace.size());
    }
  }
}

// Compares orders of admission when only `slots` requests run together.
json shortest_first(const PaperModel& model, const PaperMachine& machine,
                    const std::vector<Request>& requests, int slots,
                    const std::vector<double>& times) {
  Policy policy{.room = Room::kPeak, .preempts_exceeded = true, .max_sequences = slots};
  const System served{"", policy, [](const Request& r) { return r.ngram; }};
  std::vector<TraceRequest> trace = trace_for(served, requests);
  set_arrivals(trace, simulate_serving(model, machine, policy, trace).seconds(), times);
  json results;
  results["first_come"] = result_json(simulate_serving(model, machine, policy, trace));
  policy.order = Order::kShortestFirst;
  results["shortest"] = result_json(simulate_serving(model, machine, policy, trace));
  for (TraceRequest& request : trace) request.predicted = request.answer;
  results["shortest_oracle"] = result_json(simulate_serving(model, machine, policy, trace));
  return results;
}

json tables(const Arguments& arguments) {
  const std::vector<double> times = arguments.arrivals.empty()
                                        ? std::vector<double>{}
                                        : trace_times(arguments.arrivals, arguments.first_arrival);
  PredictorScore score;
  const std::vector<Request> few = predicted_requests(arguments, score);
  const std::vector<Request> requests = repeated(few, arguments.seed);
  PaperMachine machine;
  if (!arguments.serial_attention) machine.attention_s = 0;
  json result = {{"requests", requests.size()},
                 {"distinct_requests", few.size()},
                 {"quantile", arguments.quantile},
                 {"seed", arguments.seed},
                 {"first_arrival", arguments.first_arrival},
                 {"serial_attention", arguments.serial_attention},
                 {"predictor",
                  {{"paper_accuracy", score.paper.accuracy},
                   {"paper_majority_accuracy", score.paper.majority_accuracy},
                   {"us_per_prediction", score.us_per_prediction}}}};
  for (const PaperModel& model : paper_models()) {
    if (model.weight_bytes() < machine.memory_bytes) {
      json& of = result["models"][model.name];
      of["offline"] = serve_all(model, machine, requests, 0);
      of["online"] = serve_all(model, machine, requests, 0.1875);
      of["figure1"] = figure1(model, machine);
      for (const int slots : {4, 16, 64})
        of["shortest_first"][std::to_string(slots)] =
            shortest_first(model, machine, requests, slots, times);
      continue;
    }
    for (const int gpus : {6, 8, 10}) {
      PaperMachine several = machine;
      several.gpus = gpus;
      result["gpt3"][std::to_string(gpus)] = serve_all(model, several, requests, 0);
      result["gpt3_figure1"][std::to_string(gpus)] = figure1(model, several);
    }
  }
  return result;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  CLI::App app{"The evaluation of S3, simulated with Spillway's scheduler and predictor."};
  spillway::Arguments arguments;
  app.add_option("DATA", arguments.data, "Alpaca's answers (as spillway predictor takes them)")
      ->required();
  app.add_option("-m,--model", arguments.model, "whose tokens are counted")->required();
  app.add_option("--quantile", arguments.quantile, "of predicted answers, to be reserved")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--arrivals", arguments.arrivals,
                 "a trace of Azure's, for when requests come; without it, at random");
  app.add_option("--seed", arguments.seed, "of the order in which requests come")
      ->capture_default_str();
  app.add_option("--first-arrival", arguments.first_arrival, "of the trace, from 0")
      ->capture_default_str();
  bool batched = false;
  app.add_flag("--batched-attention", batched,
               "attention of all sequences at once; without it they wait for each other, as in "
               "the paper's system");
  CLI11_PARSE(app, argc, argv);
  arguments.serial_attention = !batched;
  try {
    fmt::print("{}\n", spillway::tables(arguments).dump(1));
  } catch (const spillway::Error& error) {
    fmt::print(stderr, "s3_tables: {}\n", error.what());
    return 1;
  }
  return 0;
}
