// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace spillway {
namespace {

// Gives each phase of a run its steps, seconds and bytes.
class PhaseBooks {
 public:
  PhaseBooks(BenchRun& run, Engine& engine, Decoder& decoder, bool tells_apart)
      : run_(run),
        engine_(engine),
        decoder_(decoder),
        phase_(tells_apart ? &run.prefill : &run.decode) {
    decoder.take_stats();  // of whoever was before
    if (!tells_apart) return;
    engine.observe_phases([this](bool has_prompts) {
      close();
      phase_ = has_prompts ? &run_.prefill : &run_.decode;
    });
  }
  PhaseBooks(const PhaseBooks&) = delete;
  PhaseBooks& operator=(const PhaseBooks&) = delete;

  double now_s() const { return watch_.seconds(); }
  // What happened since the last call was this phase's.
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

// How far all runs have come.
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
  uint64_t tokens_;  // of a run
  ProgressBar bar_;
};

BenchRun run_once(Runner& runner, const BenchOrder& order, int number, BenchProgress& progress) {
  const std::span<const RequestLengths> requests = order.requests;
  Engine engine(runner.decoder, runner.kv, nullptr, order.engine);
  const int64_t vocab = runner.decoder.spec().vocab_size;
  // A block more than runs: what the queue holds is never what the schedule waits for.
  const size_t most_outstanding = 2 * static_cast<size_t>(order.engine.admission.max_sequences);
  std::map<RequestId, size_t> outstanding;
  std::vector<int> answered(requests.size());
  size_t next = 0;
  BenchRun run;
  PhaseBooks books(run, engine, runner.decoder, order.tells_phases_apart);
  const auto sink = [&](const GenerationEvent& event) {
    const size_t index = outstanding.at(event.id);
    if (event.token && answered[index]++ == 0) run.first_token_s.push_back(books.now_s());
    if (!event.finish) return;
    SPW_CHECK(event.error.empty(), kInternal, "request {}: {}", index + 1, event.error);
    SPW_ASSERT(answered[index] == requests[index].answer);
    run.end_s.push_back(books.now_s());
    outstanding.erase(event.id);
  };
  do {
    SPW_CHECK(!interrupted(), kCancelled, "stopped after {} of {} runs", number, progress.runs());
    for (; next < requests.size() && outstanding.size() < most_outstanding; ++next)
      outstanding.emplace(engine.submit(make_request(requests[next], next, vocab)), next);
    progress.update(number, engine.stats().generated_tokens);
  } while (engine.step(sink) || next < requests.size());
  books.close();
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

EngineOptions whole_blocks(const Plan& plan, int sequences) {
  Plan block = plan;
  if (plan.schedule != ScheduleKind::kRow) block.schedule = ScheduleKind::kZigzag;
  return {.admission = admission_policy(block, sequences)};
}

BenchRun run_median(Runner& runner, const BenchOrder& order) {
  SPW_ASSERT(order.repeat > 0);
  BenchProgress progress(order);
  std::vector<BenchRun> runs;
  // What is only there to be first need not go on for long.
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
    timeline.settle();
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
