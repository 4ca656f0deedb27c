// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_lengths.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "cli/attention_report.h"
#include "cli/bench_report.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "engine/engine.h"

namespace spillway {
namespace {

using nlohmann::json;

struct LengthsRun {
  double seconds = 0;
  EngineStats engine;
  DecoderStats before, after;
  // Of each request that ended, since the run began: all of them are there from the beginning.
  std::vector<double> first_token_s, end_s;
};

// How the schedules take requests from the queue.
EngineOptions engine_options(const Plan& plan, int batch, double mean_answer) {
  EngineOptions options;
  options.max_sequences = sequences_at_once(plan, batch);
  if (plan.schedule == ScheduleKind::kDiagonal) {
    options.max_admissions = staggered_admissions(options.max_sequences, mean_answer);
  } else {
    options.admit_in_blocks = true;
  }
  return options;
}

GenerationRequest make_request(const RequestLengths& lengths, size_t index, int64_t vocab) {
  GenerationRequest request;
  request.max_tokens = lengths.answer;
  request.ignore_end = true;
  request.sampling.temperature = 0;
  for (int i = 0; i < lengths.prompt; ++i) {
    const double uniform = counter_uniform(index, static_cast<uint64_t>(i));
    request.prompt.push_back(static_cast<TokenId>(uniform * static_cast<double>(vocab)));
  }
  return request;
}

// nullopt when interrupted.
std::optional<LengthsRun> run_once(Runner& runner, const EngineOptions& options,
                                   std::span<const RequestLengths> requests) {
  Engine engine(runner.decoder, runner.kv, nullptr, options);
  const int64_t vocab = runner.decoder.spec().vocab_size;
  // A block more than runs: what the queue holds is never what the schedule waits for.
  const size_t most_outstanding = 2 * static_cast<size_t>(options.max_sequences);
  std::map<RequestId, size_t> outstanding;
  std::vector<int> answered(requests.size());
  size_t next = 0;
  LengthsRun run;
  run.before = runner.decoder.take_stats();
  ProgressBar bar("bench");
  const Stopwatch watch;
  const auto sink = [&](const GenerationEvent& event) {
    const size_t index = outstanding.at(event.id);
    if (event.token && answered[index]++ == 0) run.first_token_s.push_back(watch.seconds());
    if (!event.finish) return;
    SPW_CHECK(event.error.empty(), kInternal, "request {}: {}", index + 1, event.error);
    SPW_ASSERT(answered[index] == requests[index].answer);
    run.end_s.push_back(watch.seconds());
    outstanding.erase(event.id);
  };
  do {
    if (interrupted()) return std::nullopt;
    for (; next < requests.size() && outstanding.size() < most_outstanding; ++next)
      outstanding.emplace(engine.submit(make_request(requests[next], next, vocab)), next);
    bar.update(run.end_s.size(), requests.size(),
               fmt::format("{} of {} requests", run.end_s.size(), requests.size()));
  } while (engine.step(sink) || next < requests.size());
  run.after = runner.decoder.take_stats();
  run.seconds = watch.seconds();
  run.engine = engine.stats();
  return run;
}

json mean_and_max(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"mean", sum / static_cast<double>(values.size())}, {"max", std::ranges::max(values)}};
}

// Tokens a second, as they are and as if padded.
json rates_json(std::span<const RequestLengths> requests, size_t block, double seconds) {
  const TokenCounts actual = count_tokens(requests), padded = count_padded_tokens(requests, block);
  const auto generated = static_cast<double>(actual.answer);
  const auto total = static_cast<double>(actual.prompt + actual.answer);
  const auto padded_generated = static_cast<double>(padded.answer);
  const auto padded_total = static_cast<double>(padded.prompt + padded.answer);
  return {{"prompt_tokens", actual.prompt},
          {"generated_tokens", actual.answer},
          {"padded_prompt_tokens", padded.prompt},
          {"padded_generated_tokens", padded.answer},
          {"generated_tokens_per_s", generated / seconds},
          {"total_tokens_per_s", total / seconds},
          {"padded_generated_tokens_per_s", padded_generated / seconds},
          {"padded_total_tokens_per_s", padded_total / seconds},
          // Of the tokens that a padding engine computes, those that anyone asked for.
          {"padding_efficiency", total / padded_total}};
}

}  // namespace

json bench_lengths(const SessionOptions& options, Session& session,
                   std::span<const RequestLengths> lengths, int64_t longest_total, int batch,
                   int repeat) {
  ModelSpec& spec = session.loaded->model.spec;
  if (has_any_context(options.model, spec))
    spec.max_context = std::max(spec.max_context, longest_total);
  std::vector<RequestLengths> requests;
  std::ranges::copy_if(lengths, std::back_inserter(requests), [&](const RequestLengths& request) {
    return request.total() <= spec.max_context;
  });
  SPW_CHECK(!requests.empty(), kInvalidArgument,
            "all {} requests exceed the model's context of {} tokens", lengths.size(),
            spec.max_context);
  const int64_t longest = std::ranges::max(requests, {}, &RequestLengths::total).total();
  const double mean_answer =
      static_cast<double>(count_tokens(requests).answer) / static_cast<double>(requests.size());
  const EngineOptions engine = engine_options(session.plan, batch, mean_answer);
  Runner runner = session.make_runner(longest, engine.max_sequences);

  std::vector<LengthsRun> runs;
  for (int i = 0; i < repeat; ++i) {
    auto run = run_once(runner, engine, requests);
    SPW_CHECK(run.has_value(), kCancelled, "stopped after {} of {} runs", i, repeat);
    runs.push_back(std::move(*run));
  }
  const auto median = runs.begin() + static_cast<ptrdiff_t>(runs.size() / 2);
  std::ranges::nth_element(runs, median, {}, &LengthsRun::seconds);

  const EngineStats& stats = median->engine;
  const double at_work =
      static_cast<double>(stats.sequence_steps) / static_cast<double>(stats.steps);
  json out = session_json(options, session);
  out.update({{"requests", requests.size()},
              {"left_out", lengths.size() - requests.size()},
              {"batch", batch},
              {"block", engine.max_sequences},
              {"max_admissions", engine.max_admissions},
              {"repeat", repeat},
              {"longest_prompt", std::ranges::max(requests, {}, &RequestLengths::prompt).prompt},
              {"longest_answer", std::ranges::max(requests, {}, &RequestLengths::answer).answer},
              {"seconds", median->seconds},
              {"steps", stats.steps},
              {"preemptions", stats.preemptions},
              {"mean_sequences", at_work},
              {"occupancy", at_work / batch},
              {"latency_s", mean_and_max(median->end_s)},
              {"first_token_s", mean_and_max(median->first_token_s)},
              {"run", phase_json(median->before, median->after, median->seconds)}});
  out.update(rates_json(requests, static_cast<size_t>(engine.max_sequences), median->seconds));
  AttentionTraffic traffic = runner.decoder.attention_traffic();
  traffic.v_bytes /= static_cast<uint64_t>(repeat);  // runs are alike
  traffic.dense_v_bytes /= static_cast<uint64_t>(repeat);
  report_attention(out, session.attention_topk, traffic);
  return out;
}

void print_lengths_report(const json& out) {
  const auto number = [&](const char* field) { return out[field].get<double>(); };
  const auto count = [&](const char* field) { return out[field].get<int64_t>(); };
  print_now(
      fmt::format("{} on {}, {} threads; {} requests, {} at once, {} schedule; median of {}\n",
                  out["model"].get<std::string>(), out["device"].get<std::string>(),
                  count("threads"), count("requests"), count("block"),
                  out["plan"]["schedule"].get<std::string>(), count("repeat")));
  if (count("left_out") > 0)
    print_now(fmt::format("left out  {} requests beyond the context\n", count("left_out")));
  print_now(
      fmt::format("lengths   prompts of up to {} tokens, {} in all; answers of up to {}, {}\n",
                  count("longest_prompt"), count("prompt_tokens"), count("longest_answer"),
                  count("generated_tokens")));
  print_now(fmt::format("actual    {:8.1f} tokens/s generated, {:.1f} with prompts\n",
                        number("generated_tokens_per_s"), number("total_tokens_per_s")));
  print_now(fmt::format(
      "padded    {:8.1f} tokens/s generated, {:.1f} with prompts; {:.0f}% are no padding\n",
      number("padded_generated_tokens_per_s"), number("padded_total_tokens_per_s"),
      number("padding_efficiency") * 100));
  print_now(fmt::format(
      "steps     {} in {:.3f} s, {:.1f} sequences at work ({:.0f}% of {}); {} preempted\n",
      count("steps"), number("seconds"), number("mean_sequences"), number("occupancy") * 100,
      count("batch"), count("preemptions")));
  print_now(fmt::format("latency   {:.3f} s on average, {:.3f} s at most; first token {:.3f} s\n",
                        out["latency_s"]["mean"].get<double>(),
                        out["latency_s"]["max"].get<double>(),
                        out["first_token_s"]["mean"].get<double>()));
  print_phase("run", out["run"]);
  print_tiers_and_tuning(out);
}

}  // namespace spillway
