// SPDX-License-Identifier: Apache-2.0
// An engine under the requests of a file, and what is measured of it: the loop of every sweep.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/arrivals.h"
#include "engine/engine.h"

namespace spillway {

struct LoadOptions {
  std::string requests = {};  // a file, see Arrivals
  bool saturates = false;     // some always wait, whatever the times say
  std::string turning = "0";  // layers whose KV takes turns, or "auto"
  double warm_up_s = 10, seconds = 30;
  int steps = 0;      // that count, instead of these seconds
  uint32_t seed = 1;  // of the tokens

  bool adapts_turns() const { return turning == "auto"; }
};

// The time by which it is measured.
struct LoadClock {
  std::function<double()> now_s;
  // There is nothing to do before that. It may come back earlier, and is called again then.
  std::function<void(double at_s)> pass_until;
};
LoadClock machine_clock();

// What is particular to a measurement; each may be null.
struct LoadHooks {
  // Submits a request that is due; null: as it is.
  std::function<void(Arrivals::Arrival)> submit = {};
  Engine::Sink event = {};
  // Before each step that counts: so many seconds after they began to.
  std::function<void(double counted_s)> before_step = {};
};

// Of the time that counts.
struct LoadFigures {
  EngineStats before, after;  // all that the engine has counted until it began, and until its end
  double seconds = 0;
  std::vector<double> step_s;                       // each step
  double prompt_steps_s = 0;                        // of these, those that had prompts
  double waiting_s = 0, running_s = 0;              // of requests
  nlohmann::json series = nlohmann::json::array();  // tokens_per_s and turning, twice a second
};

// Submits what is due, lets the engine step, and looks at its time. Single-threaded; engine and
// cache must outlive it. Throws what the engine and its hooks throw, and kInvalidArgument where the
// last request was answered before the end.
class EngineLoad {
 public:
  EngineLoad(Engine& engine, const KvCache& kv, int64_t vocabulary, const LoadOptions& options,
             LoadClock clock, LoadHooks hooks);

  // First, and once: from now on requests are due. Layers take turns as the options say.
  void warm_up();
  LoadFigures measure();
  // What every sweep says of its figures, but for the series.
  nlohmann::json report(const LoadFigures& figures) const;

  double passed_s() const { return clock_.now_s() - begun_s_; }  // since it began to warm up
  const Arrivals& arrivals() const { return arrivals_; }

 private:
  void submit_those_due();
  void step();

  Engine& engine_;
  const KvCache& kv_;
  LoadOptions options_;
  LoadClock clock_;
  LoadHooks hooks_;
  Arrivals arrivals_;
  double begun_s_ = 0;
  LoadFigures figures_;  // as far as they are known
};

}  // namespace spillway
