// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_lengths.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/plain_numbers.h"
#include "cli/attention_report.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/predicted_json.h"
#include "cli/terminal.h"
#include "engine/model_run.h"

namespace spillway {
namespace {

using nlohmann::json;

int64_t longest_of(std::span<const RequestLengths> requests) {
  return std::ranges::max(requests, {}, &RequestLengths::total).total();
}

// Returns tokens per second, actual and as if requests were padded.
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
          // The requested share of the tokens that a padding engine computes.
          {"padding_efficiency", total / padded_total}};
}

}  // namespace

json bench_lengths(const SessionOptions& options, Session& session,
                   const LengthsWorkload& workload) {
  const std::span<const RequestLengths> lengths = workload.lengths;
  const int batch = workload.batch;
  ModelSpec& spec = session.loaded->model.spec;
  if (has_any_context(options.model, spec))
    spec.max_context = std::max(spec.max_context, longest_of(lengths));
  std::vector<RequestLengths> requests;
  std::ranges::copy_if(lengths, std::back_inserter(requests), [&](const RequestLengths& request) {
    return request.total() <= spec.max_context;
  });
  SPW_CHECK(!requests.empty(), kInvalidArgument,
            "all {} requests exceed the model's context of {} tokens", lengths.size(),
            spec.max_context);
  const double mean_answer =
      static_cast<double>(count_tokens(requests).answer) / static_cast<double>(requests.size());
  ModelRun model(session,
                 {.admission = RunOrder::Admission::kByPlan,
                  .mean_answer = mean_answer,
                  .drafts = options.drafts},
                 longest_of(requests), batch);
  const AdmissionPolicy& admission = model.options.admission;

  const BenchRun run = run_median(model.runner, {.engine = model.options,
                                                 .requests = requests,
                                                 .separates_phases = false,
                                                 .warm_up = workload.warm_up,
                                                 .repeat = workload.repeat});
  const EngineStats& stats = run.engine;
  const double at_work =
      static_cast<double>(stats.sequence_steps) / static_cast<double>(stats.steps);
  json out = session_json(options, session);
  out["memory"] = memory_json(session, longest_of(requests), admission.max_sequences);
  out.update({{"requests", requests.size()},
              {"left_out", lengths.size() - requests.size()},
              {"batch", batch},
              {"block", admission.max_sequences},
              {"max_admissions", admission.max_admissions},
              {"repeat", workload.repeat},
              {"warm_up", workload.warm_up},
              {"longest_prompt", std::ranges::max(requests, {}, &RequestLengths::prompt).prompt},
              {"longest_answer", std::ranges::max(requests, {}, &RequestLengths::answer).answer},
              {"seconds", run.seconds()},
              {"steps", stats.steps},
              {"preemptions", stats.preemptions},
              {"draft_proposed", stats.draft_proposed},
              {"draft_accepted", stats.draft_accepted},
              {"mean_sequences", at_work},
              {"occupancy", at_work / batch},
              {"latency_s", mean_and_max(run.end_s)},
              {"first_token_s", mean_and_max(run.first_token_s)},
              {"run", phase_json(run.decode)}});
  out.update(rates_json(requests, static_cast<size_t>(admission.max_sequences), run.seconds()));
  out["predicted"] =
      predicted_json(session.predict_run(workload_of(requests), admission.max_sequences),
                     out["generated_tokens_per_s"].get<double>());
  report_attention(out, session.settings.attention_topk, run.decode.moved.attention);
  return out;
}

void print_lengths_report(const json& out) {
  const auto number = [&](const char* field) { return out[field].get<double>(); };
  const auto count = [&](const char* field) { return out[field].get<int64_t>(); };
  print_now(fmt::format("{} on {}, {}; {}, {} at once, {} schedule; median of {}\n",
                        out["model"].get<std::string>(), out["device"].get<std::string>(),
                        format_count(count("threads"), "thread"),
                        format_count(count("requests"), "request"), count("block"),
                        out["plan"]["schedule"].get<std::string>(), count("repeat")));
  if (count("left_out") > 0)
    print_now(fmt::format("left out  {} beyond the context\n",
                          format_count(count("left_out"), "request")));
  print_now(
      fmt::format("lengths   prompts of up to {} tokens, {} in all; answers of up to {}, {}\n",
                  count("longest_prompt"), count("prompt_tokens"), count("longest_answer"),
                  count("generated_tokens")));
  print_now(fmt::format("actual    {:8.1f} tokens/s generated, {:.1f} with prompts\n",
                        number("generated_tokens_per_s"), number("total_tokens_per_s")));
  const json& predicted = out["predicted"];
  print_now(fmt::format("predicted {:8.1f} tokens/s generated; bound by {}\n",
                        predicted["generated_tokens_per_s"].get<double>(),
                        predicted["bottleneck"].get<std::string>()));
  print_now(fmt::format(
      "padded    {:8.1f} tokens/s generated, {:.1f} with prompts; {:.0f}% are no padding\n",
      number("padded_generated_tokens_per_s"), number("padded_total_tokens_per_s"),
      number("padding_efficiency") * 100));
  print_now(fmt::format(
      "steps     {} in {:.3f} s, {:.1f} sequences running ({:.0f}% of {}); {} preempted\n",
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
