// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_load.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr int kAlwaysWaiting = 64;  // waiting requests kept up if `saturates`
constexpr double kTellEvery = 0.5;  // seconds between two entries of the series
// The time between two looks at the clock while there is nothing to do; short compared with a step.
constexpr std::chrono::microseconds kLook{200};

}  // namespace

LoadClock machine_clock() {
  return {.now_s = [watch = Stopwatch()] { return watch.seconds(); },
          .pass_until = [](double) { std::this_thread::sleep_for(kLook); }};
}

EngineLoad::EngineLoad(Engine& engine, const KvCache& kv, int64_t vocabulary,
                       const LoadOptions& options, LoadClock clock, LoadHooks hooks)
    : engine_(engine),
      kv_(kv),
      options_(options),
      clock_(std::move(clock)),
      hooks_(std::move(hooks)),
      arrivals_(options.requests, vocabulary, options.seed) {
  if (!hooks_.submit)
    hooks_.submit = [&engine](Arrivals::Arrival of) { engine.submit(std::move(of.request)); };
  if (!hooks_.event) hooks_.event = [](const GenerationEvent&) {};
  if (!hooks_.before_step) hooks_.before_step = [](double) {};
}

void EngineLoad::warm_up() {
  if (!options_.adapts_swapped_layers())
    engine_.change_swapped_layers(std::stoi(options_.swapped_layers));
  begun_s_ = clock_.now_s();
  while (passed_s() < options_.warm_up_s) step();
}

LoadFigures EngineLoad::measure() {
  engine_.take_traffic();
  figures_ = {};
  figures_.before = engine_.stats();
  const int64_t last_step = figures_.before.steps + options_.steps;
  const double from_s = passed_s();
  double now_s = from_s, told_s = from_s;
  int64_t told = figures_.before.generated_tokens;
  while (options_.steps > 0 ? engine_.stats().steps < last_step
                            : now_s < from_s + options_.seconds) {
    hooks_.before_step(now_s - from_s);
    step();
    now_s = passed_s();
    if (now_s - told_s < kTellEvery) continue;
    const int64_t tokens = engine_.stats().generated_tokens;
    figures_.series.push_back(
        {{"s", now_s - from_s},
         {"tokens_per_s", static_cast<double>(tokens - told) / (now_s - told_s)},
         {"turning", kv_.layers().swapped_count()}});
    told = tokens;
    told_s = now_s;
  }
  figures_.seconds = passed_s() - from_s;
  engine_.take_traffic();
  figures_.after = engine_.stats();
  return std::exchange(figures_, {});
}

void EngineLoad::submit_those_due() {
  if (options_.saturates) {
    while (engine_.state().waiting < kAlwaysWaiting) hooks_.submit(arrivals_.take());
    return;
  }
  while (arrivals_.next_at_s() && *arrivals_.next_at_s() <= passed_s())
    hooks_.submit(arrivals_.take());
}

void EngineLoad::step() {
  submit_those_due();
  if (!engine_.has_requests()) {
    SPW_CHECK(arrivals_.next_at_s(), kInvalidArgument,
              "{}: the last request came at {:.1f} s, before the run's end", options_.requests,
              passed_s());
    clock_.pass_until(begun_s_ + *arrivals_.next_at_s());
    return;
  }
  const double before_s = clock_.now_s();
  const EngineState state = engine_.state();
  const int64_t worked = engine_.stats().sequence_steps;
  const int64_t prompt_steps = engine_.stats().prompt_steps;
  engine_.step(hooks_.event);
  const double took_s = clock_.now_s() - before_s;
  figures_.step_s.push_back(took_s);
  if (engine_.stats().prompt_steps > prompt_steps) figures_.prompt_steps_s += took_s;
  const int64_t at_work = engine_.stats().sequence_steps - worked;
  figures_.running_s += took_s * static_cast<double>(at_work);
  figures_.waiting_s += took_s * static_cast<double>(state.waiting + state.running - at_work);
}

json EngineLoad::report(const LoadFigures& figures) const {
  const EngineStats& before = figures.before;
  const EngineStats& after = figures.after;
  const double seconds = figures.seconds;
  const double steps = std::max(1.0, static_cast<double>(after.steps - before.steps));
  const auto generated = static_cast<double>(after.generated_tokens - before.generated_tokens);
  const double tokens = std::max(1.0, generated);
  return {{"turning", kv_.layers().swapped_count()},
          {"expansion", engine_.state().kv_expansion},
          {"blocks", kv_.layers().sizes().blocks},
          {"expanded_blocks", kv_.device_blocks()},
          {"seconds", seconds},
          {"tokens_per_s", generated / seconds},
          {"step_ms", seconds / steps * 1e3},
          {"waited_share", (after.layer_swap_waited_s - before.layer_swap_waited_s) / seconds},
          {"sequences", static_cast<double>(after.sequence_steps - before.sequence_steps) / steps},
          {"preemptions", after.preemptions - before.preemptions},
          {"changes", after.layer_swap_changes},
          {"changes_s", after.layer_swap_changes_s},
          {"turn_bytes_per_s",
           static_cast<double>(after.layer_swap_bytes - before.layer_swap_bytes) / seconds},
          // Pie (section 5.1) defines these: the total time that requests wait, or run, divided by
          // tokens.
          {"queueing_ms_per_token", figures.waiting_s / tokens * 1e3},
          {"compute_ms_per_token", figures.running_s / tokens * 1e3}};
}

}  // namespace spillway
