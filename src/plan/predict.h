// SPDX-License-Identifier: Apache-2.0
// How long a workload takes by a plan on a machine, before anything is loaded (FlexGen, A.3).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/priced_steps.h"
#include "plan/step_prices.h"

namespace spillway {

// So many requests of these lengths, one behind the other.
struct RequestGroup {
  int64_t count = 1;
  int64_t prompt = 512;
  int64_t generate = 32;
};
struct Workload {
  std::vector<RequestGroup> groups;  // in the order in which they come

  int64_t requests() const;
  int64_t prompt_tokens() const;  // of all
  int64_t generated_tokens() const;
  int64_t longest() const;  // prompt and answer
  int64_t longest_answer() const;
  // Keys that a generated token, and one of a prompt, sees on average.
  double decode_keys() const;
  double prompt_keys() const;
};

struct Prediction {
  double prefill_s = 0, decode_s = 0;  // of the whole workload
  double first_token_s = 0;            // of a block's first tokens: all prompts of it come before
  double step_s = 0;                   // of decoding, on average
  double latency_s = 0;                // of a block: prompts, then all tokens of its longest
  double generated_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
  StepEstimate decode_step, prefill_step;
  bool has_device = true;  // apart from the host
  double cpu_attention =
      1;  // in decoding: as the plan has it, or so that CPU and link end together

  double total_s() const { return prefill_s + decode_s; }
  Worker bottleneck() const;
  const char* bottleneck_name() const { return name_of(bottleneck()); }
  // Without a GPU, what computes is the CPU, and there is no link.
  const char* name_of(Worker worker) const;
  bool has_worker(Worker worker) const;
};

enum class PriceBy : uint8_t {
  kBusiest,    // the busiest worker of a step: fast, and no plan is faster
  kSums,       // the busiest worker of each layer: as fast, and closer
  kSimulator,  // event by event
};
// Where answers differ in length, a continuous schedule gives a place that is left to the next
// request; in blocks (zigzag, row) it stays empty until the block's longest answer has ended. Steps
// are priced with as many sequences as are at work in one on average, and as many keys.
// `size` is the one that the footprint was made for.
Prediction predict(const Hardware& hardware, const Model& model, const Plan& plan,
                   const Footprint& needs, const RunSize& size, const Workload& workload,
                   PriceBy by = PriceBy::kSimulator);

// The same for many plans: steps that were priced before are not priced again, and equal requests
// are counted once. Refers to `steps`, which must outlive it. Not thread-safe.
class Predictor {
 public:
  Predictor(PricedSteps& steps, const Workload& workload);

  // `needs` and `size` as above.
  Prediction predict(const Plan& plan, const Footprint& needs, const RunSize& size, PriceBy by);

 private:
  // Steps of decoding: the first token of each answer comes out of its prompt.
  struct DecodeSteps {
    double steps = 0;
    double at_work = 0;  // sequences, on average
  };
  const DecodeSteps& decode_steps(ScheduleKind schedule, int64_t at_once);

  PricedSteps& steps_;
  // Requests of the workload, those of the same lengths one behind the other as one group.
  std::vector<RequestGroup> groups_;
  int64_t requests_, prompt_tokens_, generated_tokens_, longest_answer_;
  double decode_keys_, prompt_keys_;
  std::map<std::pair<bool, int64_t>, DecodeSteps> decode_steps_;  // in blocks, at once
};

}  // namespace spillway
