// SPDX-License-Identifier: Apache-2.0
// Simulates serving without a GPU: Spillway's scheduler, with step times from a model of the
// machine. It is used for the tables of S3 (section 4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

// A model of table 1 of S3, with the widths of GPT-J and LLAMA 13B exchanged: the table's batch
// sizes follow from these widths and not from those printed.
struct PaperModel {
  std::string name;
  double parameters = 0;
  int layers = 0;
  int width = 0;
  double kv_bytes() const { return 4.0 * layers * width; }  // bytes of a token in 16 bits
  double weight_bytes() const { return 2 * parameters; }
};
std::vector<PaperModel> paper_models();  // table 1; the last model needs several GPUs

// GPUs in a pipeline, each an A100 with 80 GB.
struct PaperMachine {
  int gpus = 1;
  double memory_bytes = 80e9;    // per GPU
  double reserved_share = 0.02;  // neither weights nor KV; follows from the paper's batch sizes
  double bytes_per_s = 2.039e12;
  double bandwidth_share = 0.8;  // the part that a real kernel reaches
  double flop_per_s = 312e12 * 0.8;
  double link_bytes_per_s = 16e9;  // PCIe 4.0 x8
  // Time of one sequence's attention in one layer, where sequences are computed one after another:
  // table 2 divided by table 3 gives 12 to 15 us. 0: all together, as fast as their KV is read.
  double attention_s = 13.4e-6;

  double kv_tokens(const PaperModel& model) const;
  // Returns the time of a step with one new token for each of `sequences`, which have `kv_tokens`
  // of context together, and `prompt_tokens` of prompts.
  double step_s(const PaperModel& model, int64_t sequences, int64_t kv_tokens,
                int64_t prompt_tokens) const;
};

struct TraceRequest {
  int32_t prompt = 1;
  int32_t answer = 1;
  int64_t predicted = 0;  // tokens of the answer to be reserved; 0: no prediction
  double arrival_s = 0;   // ascending
};

enum class Order { kFirstCome, kLongestFirst, kShortestFirst };
enum class Room { kOnDemand, kSum, kPeak };  // how much KV memory must be free for an admission

struct Policy {
  Order order = Order::kFirstCome;
  Room room = Room::kOnDemand;
  bool preempts_exceeded = false;
  bool swaps = false;  // preempted sequences are swapped to the host and back; else recomputed
  double token_s = 0;  // time per token to keep; 0: no limit
  int max_sequences = 1 << 20;
  int32_t most_tokens = 2048;  // limit for the length of a sequence
};

struct SimulationResult {
  int64_t iterations = 0;
  int64_t answer_tokens = 0;
  double mean_batch = 0;  // tokens generated in an iteration
  double generation_s = 0, penalty_s = 0;
  double scheduler_s = 0;  // measured on the simulating machine
  double seconds() const { return generation_s + penalty_s + scheduler_s; }
  double tokens_per_s() const { return static_cast<double>(answer_tokens) / seconds(); }
  int64_t requests = 0;
  int64_t preemptions = 0, extensions = 0;
  int64_t recomputed_tokens = 0;
  // The largest values of any step: running sequences, and the share of KV memory taken by their
  // tokens.
  int64_t most_sequences = 0;
  double most_memory_share = 0;
  double mean_latency_s = 0, p99_latency_s = 0;
  double slowest_step_s = 0;
  double steps_in_pace = 0;  // share of the steps without prompts that took at most token_s
};

SimulationResult simulate_serving(const PaperModel& model, const PaperMachine& machine,
                                  const Policy& policy, const std::vector<TraceRequest>& trace);

}  // namespace spillway
