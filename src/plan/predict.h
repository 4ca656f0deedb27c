// SPDX-License-Identifier: Apache-2.0
// Estimates how long a workload takes by a plan on a machine, before anything is loaded (FlexGen,
// A.3).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/priced_steps.h"
#include "plan/step_prices.h"

namespace spillway {

// `count` consecutive requests with these lengths.
struct RequestGroup {
  int64_t count = 1;
  int64_t prompt = 512;
  int64_t generate = 32;
};
struct Workload {
  std::vector<RequestGroup> groups;  // in order of arrival

  int64_t requests() const;
  int64_t prompt_tokens() const;  // of all requests
  int64_t generated_tokens() const;
  int64_t longest() const;  // the longest sequence, prompt and answer
  int64_t longest_answer() const;
  // The average number of keys to which a generated token, and one of a prompt, attends.
  double decode_keys() const;
  double prompt_keys() const;
};

struct Prediction {
  double prefill_s = 0, decode_s = 0;  // for the whole workload
  // The time until a batch block (sequences that begin together) has its first tokens, after all of
  // its prompts.
  double first_token_s = 0;
  double step_s = 0;     // the average decoding step
  double latency_s = 0;  // for a batch block: its prompts, then all tokens of its longest answer
  double generated_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
  StepEstimate decode_step, prefill_step;
  bool has_device = true;  // the processor that computes is a GPU
  // The CPU's share of attention in decoding: the plan's, or the one with which CPU and link finish
  // together.
  double cpu_attention = 1;

  double total_s() const { return prefill_s + decode_s; }
  Worker bottleneck() const;
  const char* bottleneck_name() const { return name_of(bottleneck()); }
  // Without a GPU, the device is the CPU, and there is no link.
  const char* name_of(Worker worker) const;
  bool has_worker(Worker worker) const;
};

enum class PriceBy : uint8_t {
  kBusiest,    // the busiest worker of a step: fast, and a lower bound of the plan's time
  kSums,       // the sum over layers of each one's busiest worker: as fast, and closer
  kSimulator,  // every event of a step with its waits
};
// Estimates the times of a workload. If answers differ in length, a continuous schedule gives a
// place that becomes free to the next request; in batch blocks (zigzag, row) it stays empty until
// the block's longest answer has ended. Steps are priced with the average number of running
// sequences and of keys. `size` is the one for which the footprint was made.
Prediction predict(const Hardware& hardware, const Model& model, const Plan& plan,
                   const Footprint& needs, const RunSize& size, const Workload& workload,
                   PriceBy by = PriceBy::kSimulator);

// The same for many plans: steps that were priced before are not priced again, and equal requests
// are counted once. Keeps a reference to `steps`, which must outlive it. Not thread-safe.
class Predictor {
 public:
  Predictor(PricedSteps& steps, const Workload& workload);

  // `needs` and `size` are as for predict().
  Prediction predict(const Plan& plan, const Footprint& needs, const RunSize& size, PriceBy by);

 private:
  // Steps of decoding. The first token of each answer is sampled in its prompt's step and does not
  // count.
  struct DecodeSteps {
    double steps = 0;
    double at_work = 0;  // running sequences, on average
  };
  const DecodeSteps& decode_steps(ScheduleKind schedule, int64_t concurrent);

  PricedSteps& steps_;
  // The requests of the workload; neighbours whose answers have the same length are one group.
  std::vector<RequestGroup> groups_;
  int64_t requests_, prompt_tokens_, generated_tokens_, longest_answer_;
  double decode_keys_, prompt_keys_;
  // Keys: whether the schedule has batch blocks, and the concurrent sequences.
  std::map<std::pair<bool, int64_t>, DecodeSteps> decode_steps_;
};

}  // namespace spillway
