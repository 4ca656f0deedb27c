// SPDX-License-Identifier: Apache-2.0
#include "bench/s3_simulator.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/stopwatch.h"
#include "bench/s3_policies.h"
#include "schedule/predicted_policies.h"
#include "schedule/scheduler.h"
#include "tensor/kv_format.h"

namespace spillway {

std::vector<PaperModel> paper_models() {
  return {{"GPT-J", 6.05e9, 28, 4096},
          {"LLAMA 13B", 13.02e9, 40, 5120},
          {"GPT-NEOX", 20.55e9, 44, 6144},
          {"LLAMA 33B", 32.53e9, 60, 6656},
          {"GPT3 175B", 175e9, 96, 12288}};
}

double PaperMachine::kv_tokens(const PaperModel& model) const {
  const double usable = gpus * memory_bytes * (1 - reserved_share) - model.weight_bytes();
  SPW_CHECK(usable > 0, kInvalidArgument, "{} does not fit into {} GPUs", model.name, gpus);
  return usable / model.kv_bytes();
}

// A pipeline of G GPUs has G parts of the batch in flight. Each part needs all weights, and the
// attention of the G parts runs in parallel (S3, section 4.2).
double PaperMachine::step_s(const PaperModel& model, int64_t sequences, int64_t kv_tokens,
                            int64_t prompt_tokens) const {
  const double speed = bytes_per_s * bandwidth_share;
  const auto rows = static_cast<double>(sequences + prompt_tokens);
  const double of_weights =
      std::max(model.weight_bytes() / speed, 2 * model.parameters * rows / flop_per_s / gpus);
  const double of_kv = static_cast<double>(kv_tokens) * model.kv_bytes() / speed / gpus;
  const double in_turn = static_cast<double>(sequences) * model.layers * attention_s / gpus;
  return of_weights + std::max(of_kv, in_turn);
}

namespace {

class Simulation {
 public:
  Simulation(const PaperModel& model, const PaperMachine& machine, const Policy& policy,
             const std::vector<TraceRequest>& trace)
      : model_(model),
        machine_(machine),
        policy_(policy),
        trace_(trace),
        allocator_(static_cast<int32_t>(machine.kv_tokens(model) / kKvBlockTokens)),
        scheduler_(
            allocator_,
            {.max_step_tokens = 1 << 24, .admission = {.max_sequences = policy.max_sequences}},
            nullptr, policies()),
        generated_(trace.size()) {}

  SimulationResult run() {
    size_t ended = 0;
    while (ended < trace_.size()) {
      arrive();
      const Stopwatch watch;
      StepPlan plan = scheduler_.next_step();
      result_.scheduler_s += watch.seconds();
      SPW_CHECK(plan.exhausted.empty(), kInvalidArgument,
                "a request of the trace is larger than all memory");
      if (plan.chunks.empty() && plan.preempted.empty()) {
        SPW_ASSERT(next_ < trace_.size());
        now_ = std::max(now_, trace_[next_].arrival_s);  // idle until the next arrival
        continue;
      }
      pass_time(plan);
      const Stopwatch after;
      for (const ScheduledChunk& chunk : plan.chunks) ended += accept(chunk) ? 1 : 0;
      result_.scheduler_s += after.seconds();
    }
    return finish();
  }

 private:
  SchedulingPolicies policies() {
    SchedulingPolicies all;
    if (policy_.order == Order::kLongestFirst)
      all.order = std::make_unique<LongestPredictedFirst>();
    if (policy_.order == Order::kShortestFirst)
      all.order = std::make_unique<ShortestPredictedFirst>();
    if (policy_.preempts_exceeded) all.preemption = std::make_unique<PreemptExceeded>();
    const AdmissionPolicy limits{.max_sequences = policy_.max_sequences};
    if (policy_.room == Room::kOnDemand) {
      all.admission = std::make_unique<PlannedAdmission>(limits);
    } else {
      all.admission = std::make_unique<PredictedAdmission>(PredictedAdmissionOptions{
          .policy = limits,
          .packing = policy_.room == Room::kSum ? Packing::kSum : Packing::kPeak});
    }
    if (policy_.token_s > 0) {
      auto paced = std::make_unique<PacedAdmission>(std::move(all.admission), policy_.token_s);
      paced_ = paced.get();
      all.admission = std::move(paced);
    }
    return all;
  }

  void arrive() {
    for (; next_ < trace_.size() && trace_[next_].arrival_s <= now_; ++next_) {
      const TraceRequest& request = trace_[next_];
      scheduler_.add({.id = RequestId{next_},
                      .tokens = request.prompt,
                      .expected = policy_.room == Room::kOnDemand ? 0 : policy_.most_tokens,
                      .predicted = request.predicted > 0 ? request.prompt + request.predicted : 0});
    }
  }

  void pass_time(const StepPlan& plan) {
    int64_t sequences = 0, kv = 0, prompts = 0, again = 0, moved = 0;
    for (const ScheduledChunk& chunk : plan.chunks) {
      const auto i = static_cast<size_t>(chunk.id);
      const int64_t known = chunk.start + chunk.tokens;
      kv += known;
      if (chunk.tokens == 1 && generated_[i] > 0) {
        ++sequences;
      } else if (generated_[i] > 0 && policy_.swaps) {
        moved += 2 * known;  // to the host and back
        ++sequences;
      } else {
        (generated_[i] > 0 ? again : prompts) += chunk.tokens;
      }
    }
    const double step = machine_.step_s(model_, sequences, kv, prompts);
    const double computing = machine_.step_s(model_, sequences, kv, prompts + again) - step;
    result_.recomputed_tokens += again;
    // These follow from the length of each sequence, not from the allocator's counters.
    result_.most_sequences =
        std::max(result_.most_sequences, static_cast<int64_t>(plan.chunks.size()));
    result_.most_memory_share =
        std::max(result_.most_memory_share, static_cast<double>(kv) / machine_.kv_tokens(model_));
    const double moving =
        static_cast<double>(moved) * model_.kv_bytes() / machine_.link_bytes_per_s / machine_.gpus;
    result_.generation_s += step;
    result_.penalty_s += moving + computing;
    now_ += step + moving + computing;
    ++result_.iterations;
    if (prompts + again + moved > 0 || sequences == 0) return;
    ++plain_steps_;
    result_.slowest_step_s = std::max(result_.slowest_step_s, step);
    if (policy_.token_s <= 0 || step <= policy_.token_s) ++in_pace_;
    if (paced_ != nullptr) paced_->stepped(static_cast<int>(sequences), step);
  }

  // Returns whether the sequence has ended.
  bool accept(const ScheduledChunk& chunk) {
    if (!chunk.last) return false;
    const auto i = static_cast<size_t>(chunk.id);
    ++result_.answer_tokens;
    if (++generated_[i] >= trace_[i].answer) {
      scheduler_.remove(chunk.id, generated_[i]);
      latencies_.push_back(now_ - trace_[i].arrival_s);
      return true;
    }
    scheduler_.append(chunk.id);
    return false;
  }

  SimulationResult finish() {
    result_.requests = static_cast<int64_t>(trace_.size());
    result_.mean_batch = static_cast<double>(result_.answer_tokens) /
                         static_cast<double>(std::max<int64_t>(1, result_.iterations));
    result_.preemptions = scheduler_.preemptions();
    result_.extensions = scheduler_.extensions();
    std::ranges::sort(latencies_);
    result_.mean_latency_s = std::accumulate(latencies_.begin(), latencies_.end(), 0.0) /
                             static_cast<double>(latencies_.size());
    result_.p99_latency_s = latencies_[latencies_.size() * 99 / 100];
    result_.steps_in_pace = plain_steps_ > 0 ? in_pace_ / plain_steps_ : 1;
    return result_;
  }

  const PaperModel& model_;
  const PaperMachine& machine_;
  const Policy& policy_;
  const std::vector<TraceRequest>& trace_;
  PacedAdmission* paced_ = nullptr;  // owned by the scheduler
  BlockAllocator allocator_;
  Scheduler scheduler_;
  std::vector<int32_t> generated_;
  std::vector<double> latencies_;
  SimulationResult result_;
  double now_ = 0, plain_steps_ = 0, in_pace_ = 0;
  size_t next_ = 0;
};

}  // namespace

SimulationResult simulate_serving(const PaperModel& model, const PaperMachine& machine,
                                  const Policy& policy, const std::vector<TraceRequest>& trace) {
  SPW_CHECK(!trace.empty(), kInvalidArgument, "no requests to serve");
  return Simulation(model, machine, policy, trace).run();
}

}  // namespace spillway
