// SPDX-License-Identifier: Apache-2.0
#include "plan/predict.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace spillway {
namespace {

template <class F>
double sum_over(const Workload& workload, F f) {
  double sum = 0;
  for (const RequestGroup& group : workload.groups)
    sum += f(group) * static_cast<double>(group.count);
  return sum;
}

// Of decoding: the first token of each answer comes out of its prompt.
struct DecodeSteps {
  double steps = 0;
  double at_work = 0;  // sequences, on average
};

int64_t steps_of(const RequestGroup& group) { return std::max<int64_t>(0, group.generate - 1); }

// A block ends with its longest answer.
int64_t steps_in_blocks(const Workload& workload, int64_t block) {
  int64_t steps = 0, longest = 0, room = block;
  for (const RequestGroup& group : workload.groups) {
    for (int64_t left = group.count; left > 0;) {
      const int64_t together = std::min(left, room);
      longest = std::max(longest, steps_of(group));
      left -= together;
      room -= together;
      if (room > 0) continue;
      steps += std::exchange(longest, 0);
      room = block;
    }
  }
  return steps + longest;
}

// Whoever ends is replaced at once.
int64_t steps_without_gaps(const Workload& workload, int64_t at_once) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  int64_t last = 0;
  for (const RequestGroup& group : workload.groups) {
    for (int64_t i = 0; i < group.count; ++i) {
      int64_t begin = 0;
      if (static_cast<int64_t>(ends.size()) == at_once) {
        begin = ends.top();
        ends.pop();
      }
      ends.push(begin + steps_of(group));
      last = std::max(last, begin + steps_of(group));
    }
  }
  return last;
}

DecodeSteps decode_steps(const Workload& workload, ScheduleKind schedule, int64_t at_once) {
  const int64_t longest = workload.longest_answer();
  const bool alike = std::ranges::all_of(
      workload.groups, [&](const RequestGroup& group) { return group.generate == longest; });
  const auto most = static_cast<double>(at_once);
  // All that begin together end together.
  if (alike) {
    const double blocks = std::ceil(static_cast<double>(workload.requests()) / most);
    return {blocks * static_cast<double>(std::max<int64_t>(0, longest - 1)), most};
  }
  const bool in_blocks = schedule == ScheduleKind::kZigzag || schedule == ScheduleKind::kRow;
  const auto steps = static_cast<double>(in_blocks ? steps_in_blocks(workload, at_once)
                                                   : steps_without_gaps(workload, at_once));
  const double tokens =
      sum_over(workload, [](const RequestGroup& g) { return static_cast<double>(steps_of(g)); });
  return {steps, std::clamp(tokens / std::max(1.0, steps), 1.0, most)};
}

StepEstimate price(const StepPrices& prices, PriceBy by) {
  return by == PriceBy::kSums ? estimate_step(prices) : simulate_step(prices);
}

}  // namespace

int64_t Workload::requests() const {
  int64_t all = 0;
  for (const RequestGroup& group : groups) all += group.count;
  return all;
}
int64_t Workload::prompt_tokens() const {
  int64_t all = 0;
  for (const RequestGroup& group : groups) all += group.count * group.prompt;
  return all;
}
int64_t Workload::generated_tokens() const {
  int64_t all = 0;
  for (const RequestGroup& group : groups) all += group.count * group.generate;
  return all;
}
int64_t Workload::longest() const {
  int64_t most = 0;
  for (const RequestGroup& group : groups) most = std::max(most, group.prompt + group.generate);
  return most;
}
int64_t Workload::longest_answer() const {
  int64_t most = 0;
  for (const RequestGroup& group : groups) most = std::max(most, group.generate);
  return most;
}
double Workload::decode_keys() const {
  const auto generated = static_cast<double>(generated_tokens());
  if (generated <= 0) return 1;
  return sum_over(*this,
                  [](const RequestGroup& g) {
                    const auto n = static_cast<double>(g.generate);
                    return n * (static_cast<double>(g.prompt) + n / 2);
                  }) /
         generated;
}
double Workload::prompt_keys() const {
  const auto tokens = static_cast<double>(prompt_tokens());
  if (tokens <= 0) return 1;
  return sum_over(*this,
                  [](const RequestGroup& g) {
                    const auto n = static_cast<double>(g.prompt);
                    return n * (n + 1) / 2;
                  }) /
         tokens;
}

Worker Prediction::bottleneck() const {
  return (decode_s >= prefill_s ? decode_step : prefill_step).bottleneck();
}

const char* Prediction::name_of(Worker worker) const {
  return worker_name(worker == Worker::kDevice && !has_device ? Worker::kCpu : worker);
}

bool Prediction::has_worker(Worker worker) const {
  if (has_device) return true;
  return worker == Worker::kDevice || worker == Worker::kDiskRead || worker == Worker::kDiskWrite;
}

Prediction predict(const Hardware& hardware, const Model& model, const Plan& plan,
                   const Footprint& needs, const RunSize& size, const Workload& workload,
                   PriceBy by) {
  Prediction result;
  result.has_device = hardware.gpu.has_value();
  const std::vector<Tier> homes = weight_homes(!hardware.has_device(), model, plan.weight_plan());
  const auto at_once = static_cast<double>(std::min<int64_t>(
      sequences_at_once(plan, static_cast<int>(size.sequences)), workload.requests()));
  const auto requests = static_cast<double>(workload.requests());

  // Prompts: whole ones in a step as far as its tokens go, otherwise a piece of one.
  const double prompt = static_cast<double>(workload.prompt_tokens()) / requests;
  const auto step_tokens = static_cast<double>(needs.layout.max_tokens);
  const double pieces = std::max(1.0, std::ceil(prompt / step_tokens));
  const double whole = std::clamp(std::floor(step_tokens / std::max(1.0, prompt)), 1.0, at_once);
  if (prompt > 0) {
    const auto step_of = [&](double sequences) {
      const StepSize prefill{.sequences = static_cast<int64_t>(sequences),
                             .tokens_each = std::max<int64_t>(1, std::llround(prompt / pieces)),
                             .keys = workload.prompt_keys(),
                             .logits = pieces == 1};
      return price(StepPrices(hardware, model, homes, plan, needs.layout, prefill), by);
    };
    result.prefill_step = step_of(whole);
    // Of a block, in whole steps and one with the sequences that are left over.
    const double steps = std::floor(at_once / whole), rest = at_once - steps * whole;
    const double block_s =
        steps * result.prefill_step.seconds + (rest > 0 ? step_of(rest).seconds : 0);
    result.first_token_s = block_s * pieces;
    result.prefill_s = result.first_token_s * requests / at_once;
  }
  const DecodeSteps decoding = decode_steps(workload, plan.schedule, static_cast<int64_t>(at_once));
  if (decoding.steps > 0) {
    const StepSize decode{.sequences = std::llround(decoding.at_work),
                          .tokens_each = 1,
                          .keys = std::max(1.0, workload.decode_keys())};
    const StepPrices prices(hardware, model, homes, plan, needs.layout, decode);
    result.cpu_attention = prices.cpu_attention();
    result.decode_step = price(prices, by);
    result.step_s = result.decode_step.seconds;
    result.decode_s = result.step_s * decoding.steps;
  }
  result.latency_s = result.first_token_s + result.step_s * static_cast<double>(std::max<int64_t>(
                                                                0, workload.longest_answer() - 1));
  const auto generated = static_cast<double>(workload.generated_tokens());
  if (result.total_s() > 0) result.generated_tokens_per_s = generated / result.total_s();
  if (result.decode_s > 0) result.decode_tokens_per_s = (generated - requests) / result.decode_s;
  return result;
}

}  // namespace spillway
