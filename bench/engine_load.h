// SPDX-License-Identifier: Apache-2.0
// Runs an engine under the requests of a file and measures it; every sweep uses this loop.
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
  std::string requests = {};         // path of a file, see Arrivals
  bool saturates = false;            // some requests always wait, whatever their arrival times
  std::string swapped_layers = "0";  // number of swapped layers, or "auto"
  double warm_up_s = 10, seconds = 30;
  int steps = 0;      // if not 0, the number of measured steps, instead of `seconds`
  uint32_t seed = 1;  // for the token ids

  bool adapts_swapped_layers() const { return swapped_layers == "auto"; }
};

// The clock of a measurement.
struct LoadClock {
  std::function<double()> now_s;
  // Lets time pass when there is nothing to do before `at_s`. It may return earlier and is then
  // called again.
  std::function<void(double at_s)> pass_until;
};
LoadClock machine_clock();

// The parts that differ between measurements; each may be null.
struct LoadHooks {
  // Submits a request that is due; if null, it is submitted unchanged.
  std::function<void(Arrivals::Arrival)> submit = {};
  Engine::Sink event = {};
  // Called before each measured step, with the seconds since measuring began.
  std::function<void(double counted_s)> before_step = {};
};

// The figures of the measured time.
struct LoadFigures {
  EngineStats before, after;  // the engine's counters at its begin and end
  double seconds = 0;
  std::vector<double> step_s;                       // duration of each step
  double prompt_steps_s = 0;                        // the part of these in steps that had prompts
  double waiting_s = 0, running_s = 0;              // summed over requests
  nlohmann::json series = nlohmann::json::array();  // tokens/s and swapped layers, every half
                                                    // second
};

// Submits requests that are due, runs steps, and measures them. Single-threaded; engine and cache
// must outlive it. Throws what the engine and the hooks throw, and kInvalidArgument if the last
// request was answered before the end.
class EngineLoad {
 public:
  EngineLoad(Engine& engine, const KvCache& kv, int64_t vocabulary, const LoadOptions& options,
             LoadClock clock, LoadHooks hooks);

  // Called once, before measure(): starts the arrivals and swaps the layers that the options say.
  void warm_up();
  LoadFigures measure();
  // Returns the figures that every sweep reports, without the series.
  nlohmann::json report(const LoadFigures& figures) const;

  double passed_s() const { return clock_.now_s() - begun_s_; }  // seconds since the warm-up began
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
  LoadFigures figures_;  // the figures so far
};

}  // namespace spillway
