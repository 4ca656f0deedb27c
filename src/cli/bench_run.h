// SPDX-License-Identifier: Apache-2.0
// The measurements of spillway bench: requests of given lengths go through the engine as those of
// run and batch do. The times are those of a client that waits for the tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/request_lengths.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "runtime/timeline.h"

namespace spillway {

// The steps of one kind and the time between them.
struct BenchPhase {
  int64_t steps = 0;
  double seconds = 0;
  DecoderStats moved;
};

struct BenchRun {
  // Steps with prompt tokens, and steps without. If the phases are not told apart, all steps are in
  // `decode`.
  BenchPhase prefill, decode;
  EngineStats engine;
  // One interval of a phase, in seconds since the run began.
  struct Stretch {
    bool has_prompts = false;
    double begin_s = 0, end_s = 0;
  };
  std::vector<Stretch> stretches;
  // Times of each request since the run began, when all requests are submitted.
  std::vector<double> first_token_s, end_s;

  double seconds() const { return prefill.seconds + decode.seconds; }
};

struct BenchOrder {
  EngineOptions engine;
  std::span<const RequestLengths> requests;  // generated greedily, past end tokens
  bool separates_phases = true;              // if set, the device is drained between phases
  int warm_up = 0;  // number of runs of a few steps before those that count
  int repeat = 1;
};

// Returns the median run by its seconds, with only that run's figures; of an even number of runs,
// it is the slower of the two in the middle. Throws kCancelled when interrupted, kInternal for a
// request that did not end as it should.
BenchRun run_median(Runner& runner, const BenchOrder& order);
// Does one more run, with few decode steps and not counted, and records it in `timeline`. The times
// of its stretches are on the timeline's clock.
BenchRun run_drawn(Runner& runner, const BenchOrder& order, Timeline& timeline);

}  // namespace spillway
