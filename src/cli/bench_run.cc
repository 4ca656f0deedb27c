// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "engine/engine_loop.h"

namespace spillway {
namespace {

// Assigns steps, seconds and bytes to the phases of a run.
class PhaseCounters {
 public:
  PhaseCounters(BenchRun& run, Engine& engine, Decoder& decoder, bool separates_phases)
      : run_(run),
        engine_(engine),
        decoder_(decoder),
        phase_(separates_phases ? &run.prefill : &run.decode) {
    decoder.take_stats();  // drops the counts of earlier runs
    if (!separates_phases) return;
    engine.observe_phases([this](bool has_prompts) {
      close();
      phase_ = has_prompts ? &run_.prefill : &run_.decode;
    });
  }
  PhaseCounters(const PhaseCounters&) = delete;
  PhaseCounters& operator=(const PhaseCounters&) = delete;

  double now_s() const { return watch_.seconds(); }
  // Assigns everything since the last call to the current phase.
  void close() {
    phase_->moved += decoder_.take_stats();
    const double now = now_s();
    if (now > closed_s_) run_.stretches.push_back({phase_ == &run_.prefill, closed_s_, now});
    phase_->seconds += now - std::exchange(closed_s_, now);
    const int64_t steps = engine_.stats().steps;
    phase_->steps += steps - std::exchange(closed_steps_, steps);
  }

 private:
  BenchRun& run_;
  const Engine& engine_;
  Decoder& decoder_;
  BenchPhase* phase_;
  double closed_s_ = 0;
  int64_t closed_steps_ = 0;
  const Stopwatch watch_;
};

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

// Shows the progress over all runs.
class BenchProgress {
 public:
  explicit BenchProgress(const BenchOrder& order)
      : runs_(order.warm_up + order.repeat),
        tokens_(static_cast<uint64_t>(count_tokens(order.requests).answer)),
        bar_("bench") {}

  void update(int run, int64_t tokens) {
    bar_.update(static_cast<uint64_t>(run) * tokens_ + static_cast<uint64_t>(tokens),
                static_cast<uint64_t>(runs_) * tokens_,
                fmt::format("run {} of {}, {} of {} tokens", run + 1, runs_, tokens, tokens_));
  }
  int runs() const { return runs_; }

 private:
  int runs_;
  uint64_t tokens_;  // generated in one run
  ProgressBar bar_;
};

// Receives a run's events on the engine's thread, as soon as they come.
class BenchListener {
 public:
  BenchListener(BenchRun& run, const PhaseCounters& counters,
                std::span<const RequestLengths> requests)
      : run_(run), counters_(counters), requests_(requests), answered_(requests.size()) {}

  void on_step(const StepReport& report) noexcept {
    for (const GenerationEvent& event : report.events) {
      try {
        on_event(event);
      } catch (...) {
        if (!error_) error_ = std::current_exception();
        failed_ = true;
      }
    }
    generated_ = report.stats.generated_tokens;
  }
  // Number of generated tokens so far, for the waiting thread.
  int64_t generated() const { return generated_; }
  bool failed() const { return failed_; }
  // Call after the last event: rethrows the first error.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void on_event(const GenerationEvent& event) {
    // Ids count up in the order of submission.
    const size_t index = static_cast<size_t>(event.id) - 1;
    if (event.token && answered_[index]++ == 0) run_.first_token_s.push_back(counters_.now_s());
    if (!event.finish) return;
    if (event.step_failed) throw Error(event.error_code, event.error);
    SPW_CHECK(event.error.empty(), kInternal, "request {}: {}", index + 1, event.error);
    SPW_ASSERT(answered_[index] == requests_[index].answer);
    run_.end_s.push_back(counters_.now_s());
  }

  BenchRun& run_;
  const PhaseCounters& counters_;
  std::span<const RequestLengths> requests_;
  std::vector<int> answered_;
  std::atomic<int64_t> generated_ = 0;
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;
};

BenchRun run_once(Runner& runner, const BenchOrder& order, int number, BenchProgress& progress) {
  const int64_t vocab = runner.decoder.spec().vocab_size;
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < order.requests.size(); ++i)
    requests.push_back(make_request(order.requests[i], i, vocab));
  Engine engine(runner.decoder, runner.kv, nullptr, order.engine);
  BenchRun run;
  PhaseCounters counters(run, engine, runner.decoder, order.separates_phases);
  BenchListener listener(run, counters, order.requests);
  {
    EngineLoop loop(engine, [&](const StepReport& report) { listener.on_step(report); });
    const bool sent = loop.try_submit(std::move(requests)).has_value();
    SPW_ASSERT(sent);
    do {
      SPW_CHECK(!interrupted(), kCancelled, "stopped after {} of {} runs", number, progress.runs());
      progress.update(number, listener.generated());
    } while (!listener.failed() && !loop.wait_for(std::chrono::milliseconds(20)));
  }
  listener.check();
  counters.close();
  run.engine = engine.stats();
  return run;
}

}  // namespace

namespace {

std::vector<RequestLengths> with_short_answers(std::span<const RequestLengths> requests) {
  constexpr int kShortAnswer = 9;
  std::vector<RequestLengths> few(requests.begin(), requests.end());
  for (RequestLengths& request : few) request.answer = std::min(request.answer, kShortAnswer);
  return few;
}

}  // namespace

BenchRun run_median(Runner& runner, const BenchOrder& order) {
  SPW_ASSERT(order.repeat > 0);
  BenchProgress progress(order);
  std::vector<BenchRun> runs;
  // Warm-up runs stop after a few tokens: they only need to have run once.
  const std::vector<RequestLengths> short_requests = with_short_answers(order.requests);
  BenchOrder warming = order;
  warming.requests = short_requests;
  for (int i = 0; i < progress.runs(); ++i) {
    BenchRun run = run_once(runner, i < order.warm_up ? warming : order, i, progress);
    if (i >= order.warm_up) runs.push_back(std::move(run));
  }
  const auto median = runs.begin() + static_cast<ptrdiff_t>(runs.size() / 2);
  std::ranges::nth_element(runs, median, {}, &BenchRun::seconds);
  return std::move(*median);
}

BenchRun run_drawn(Runner& runner, const BenchOrder& order, Timeline& timeline) {
  const std::vector<RequestLengths> requests = with_short_answers(order.requests);
  BenchOrder drawn = order;
  drawn.requests = requests;
  drawn.warm_up = 0;
  drawn.repeat = 1;
  BenchProgress progress(drawn);
  runner.decoder.record(&timeline);
  const double begin_s = timeline.now_s();
  BenchRun run;
  try {
    run = run_once(runner, drawn, 0, progress);
    timeline.drain();
  } catch (...) {
    runner.decoder.record(nullptr);
    throw;
  }
  runner.decoder.record(nullptr);
  for (BenchRun::Stretch& stretch : run.stretches) {
    stretch.begin_s += begin_s;
    stretch.end_s += begin_s;
  }
  return run;
}

}  // namespace spillway
