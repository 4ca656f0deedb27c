// SPDX-License-Identifier: Apache-2.0
// What spillway bench measures: requests of given lengths through the engine, as run and batch send
// theirs, with the clock of whoever waits for the tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/request_lengths.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "runtime/timeline.h"

namespace spillway {

// Steps of one kind, and all that was between them.
struct BenchPhase {
  int64_t steps = 0;
  double seconds = 0;
  DecoderStats moved;
};

struct BenchRun {
  // Steps with prompts in them, and those without. Where these are not told apart, all are in
  // `decode`.
  BenchPhase prefill, decode;
  EngineStats engine;
  // When each phase began and ended, since the run began.
  struct Stretch {
    bool has_prompts = false;
    double begin_s = 0, end_s = 0;
  };
  std::vector<Stretch> stretches;
  // Of each request, since the run began: all of them are there from the beginning.
  std::vector<double> first_token_s, end_s;

  double seconds() const { return prefill.seconds + decode.seconds; }
};

struct BenchOrder {
  EngineOptions engine;
  std::span<const RequestLengths> requests;  // greedy, past end tokens
  bool tells_phases_apart = true;            // waits for the device between them
  int warm_up = 0;                           // runs of a few steps before those that count
  int repeat = 1;
};

// The median run by its seconds, as a whole: no figure of another run is mixed in. Of an even
// number it is the slower of the two in the middle. Throws kCancelled when interrupted, kInternal
// for a request that did not end as it should.
BenchRun run_median(Runner& runner, const BenchOrder& order);
// One more run, which does not count, with a few steps of decoding: drawn there. The times of its
// stretches are the drawing's.
BenchRun run_drawn(Runner& runner, const BenchOrder& order, Timeline& timeline);

}  // namespace spillway
