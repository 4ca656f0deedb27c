// SPDX-License-Identifier: Apache-2.0
// Serving without a GPU: Spillway's scheduler with steps that take as long as a model of the
// machine says. For the tables of S3 (section 4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

// Table 1 of S3, with the widths of GPT-J and LLAMA 13B the right way round: its batch sizes follow
// from these, and not from the table as it is printed.
struct PaperModel {
  std::string name;
  double parameters = 0;
  int layers = 0;
  int width = 0;
  double kv_bytes() const { return 4.0 * layers * width; }  // of a token, in 16 bits
  double weight_bytes() const { return 2 * parameters; }
};
std::vector<PaperModel> paper_models();  // table 1; the last needs several GPUs

// GPUs in a pipeline, an A100 of 80 GB each.
struct PaperMachine {
  int gpus = 1;
  double memory_bytes = 80e9;    // of a GPU
  double reserved_share = 0.02;  // what is neither weights nor KV: the paper's batch sizes say so
  double bytes_per_s = 2.039e12;
  double bandwidth_share = 0.8;  // of it that a real kernel gets
  double flop_per_s = 312e12 * 0.8;
  double link_bytes_per_s = 16e9;  // PCIe 4.0 x8
  // Attention of one sequence in one layer, where sequences wait for each other: table 2 divided by
  // table 3 gives 12 to 15 us. 0: all at once, as fast as their KV is read.
  double attention_s = 13.4e-6;

  double kv_tokens(const PaperModel& model) const;
  // A step: new tokens of `sequences` with `kv_tokens` behind them, and `prompt_tokens` of others.
  double step_s(const PaperModel& model, int64_t sequences, int64_t kv_tokens,
                int64_t prompt_tokens) const;
};

struct TraceRequest {
  int32_t prompt = 1;
  int32_t answer = 1;
  int64_t predicted = 0;  // tokens of the answer to be reserved; 0: nobody predicts
  double arrival_s = 0;   // ascending
};

enum class Order { kFirstCome, kLongestFirst, kShortestFirst };
enum class Room { kOnDemand, kSum, kPeak };  // what must be there before one begins

struct Policy {
  Order order = Order::kFirstCome;
  Room room = Room::kOnDemand;
  bool outgrown_gives_way = false;
  bool swaps = false;  // who gives way goes to the host and comes back; else it is computed again
  double token_s = 0;  // pace to be kept; 0: none
  int max_sequences = 1 << 20;
  int32_t most_tokens = 2048;  // of a sequence
};

struct SimulationResult {
  int64_t iterations = 0;
  int64_t answer_tokens = 0;
  double mean_batch = 0;  // tokens generated in an iteration
  double generation_s = 0, penalty_s = 0;
  double scheduler_s = 0;  // measured, on the machine that simulates
  double seconds() const { return generation_s + penalty_s + scheduler_s; }
  double tokens_per_s() const { return static_cast<double>(answer_tokens) / seconds(); }
  int64_t requests = 0;
  int64_t preemptions = 0, extensions = 0;
  int64_t recomputed_tokens = 0;
  // In any one step: sequences at work, and how much of all KV memory their tokens took.
  int64_t most_sequences = 0;
  double most_memory_share = 0;
  double mean_latency_s = 0, p99_latency_s = 0;
  double slowest_step_s = 0;
  double steps_in_pace = 0;  // share of the steps without prompts
};

SimulationResult simulate_serving(const PaperModel& model, const PaperMachine& machine,
                                  const Policy& policy, const std::vector<TraceRequest>& trace);

}  // namespace spillway
