// SPDX-License-Identifier: Apache-2.0
#include "plan/predict.h"

#include <algorithm>
#include <cmath>
#include <map>
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

int64_t steps_of(const RequestGroup& group) { return std::max<int64_t>(0, group.generate - 1); }

// Returns the decoding steps in batch blocks, each of which ends with its longest answer.
int64_t steps_in_blocks(const std::vector<RequestGroup>& groups, int64_t block) {
  int64_t steps = 0, longest = 0, room = block;
  for (const RequestGroup& group : groups) {
    const int64_t of = steps_of(group);
    int64_t left = group.count;
    // First fills the block that has begun, then counts whole blocks of this group alone.
    if (const int64_t together = std::min(left, room); room < block || left < block) {
      longest = std::max(longest, of);
      left -= together;
      room -= together;
      if (room > 0) continue;
      steps += std::exchange(longest, 0);
      room = block;
    }
    steps += left / block * of;
    left %= block;
    if (left > 0) longest = of;
    room -= left;
  }
  return steps + longest;
}

// Returns the decoding steps if a request that ends is replaced in the next step. Places that
// become free in the same step are counted together.
int64_t steps_without_gaps(const std::vector<RequestGroup>& groups, int64_t concurrent) {
  std::map<int64_t, int64_t> ends;  // by step: how many places become free
  ends[0] = concurrent;
  int64_t last = 0;
  for (const RequestGroup& group : groups) {
    const int64_t steps = steps_of(group);
    if (steps == 0) continue;
    for (int64_t left = group.count; left > 0;) {
      const auto first = ends.begin();
      const int64_t begin = first->first, together = std::min(left, first->second);
      if (together == first->second) {
        ends.erase(first);
      } else {
        first->second -= together;
      }
      ends[begin + steps] += together;
      last = std::max(last, begin + steps);
      left -= together;
    }
  }
  return last;
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
  DeviceTraits traits;
  traits.host_visible = !hardware.has_device();
  PlacedWeights placed(model, traits);
  PricedSteps steps(hardware, placed);
  return Predictor(steps, workload).predict(plan, needs, size, by);
}

Predictor::Predictor(PricedSteps& steps, const Workload& workload)
    : steps_(steps),
      requests_(workload.requests()),
      prompt_tokens_(workload.prompt_tokens()),
      generated_tokens_(workload.generated_tokens()),
      longest_answer_(workload.longest_answer()),
      decode_keys_(workload.decode_keys()),
      prompt_keys_(workload.prompt_keys()) {
  // Only the lengths of answers matter for the order of requests.
  for (const RequestGroup& group : workload.groups) {
    if (groups_.empty() || groups_.back().generate != group.generate)
      groups_.push_back({0, 0, group.generate});
    groups_.back().count += group.count;
  }
}

const Predictor::DecodeSteps& Predictor::decode_steps(ScheduleKind schedule, int64_t concurrent) {
  const bool in_blocks = schedule == ScheduleKind::kZigzag || schedule == ScheduleKind::kRow;
  const auto [found, added] = decode_steps_.try_emplace({in_blocks, concurrent});
  DecodeSteps& decoding = found->second;
  if (!added) return decoding;
  const auto most = static_cast<double>(concurrent);
  // With equal answers, all requests that begin together end together.
  if (groups_.size() == 1) {
    const double blocks = std::ceil(static_cast<double>(requests_) / most);
    decoding = {blocks * static_cast<double>(std::max<int64_t>(0, longest_answer_ - 1)), most};
    return decoding;
  }
  decoding.steps = static_cast<double>(in_blocks ? steps_in_blocks(groups_, concurrent)
                                                 : steps_without_gaps(groups_, concurrent));
  double tokens = 0;
  for (const RequestGroup& group : groups_)
    tokens += static_cast<double>(group.count) * static_cast<double>(steps_of(group));
  decoding.at_work = std::clamp(tokens / std::max(1.0, decoding.steps), 1.0, most);
  return decoding;
}

Prediction Predictor::predict(const Plan& plan, const Footprint& needs, const RunSize& size,
                              PriceBy by) {
  Prediction result;
  result.has_device = steps_.hardware().gpu.has_value();
  const auto concurrent = static_cast<double>(
      std::min<int64_t>(concurrent_sequences(plan, static_cast<int>(size.sequences)), requests_));
  const auto requests = static_cast<double>(requests_);
  const auto method =
      by == PriceBy::kSimulator ? PricedSteps::Method::kSimulated : PricedSteps::Method::kSums;
  const auto estimate = [&](const PricedSteps::Priced& step) {
    StepEstimate of = step.estimate;
    if (by == PriceBy::kBusiest) of.seconds = *std::ranges::max_element(of.busy);
    return of;
  };

  // A step has as many whole prompts as its tokens allow, otherwise a chunk of one prompt.
  const double prompt = static_cast<double>(prompt_tokens_) / requests;
  const auto step_tokens = static_cast<double>(needs.layout.max_tokens);
  const double pieces = std::max(1.0, std::ceil(prompt / step_tokens));
  const double whole = std::clamp(std::floor(step_tokens / std::max(1.0, prompt)), 1.0, concurrent);
  if (prompt > 0) {
    const auto step_of = [&](double sequences) {
      const int64_t each = std::max<int64_t>(1, std::llround(prompt / pieces));
      // A prompt of one token is computed like a token of an answer.
      const StepSize prefill{.sequences = static_cast<int64_t>(sequences),
                             .tokens_each = each,
                             .keys = prompt_keys_,
                             .logits = pieces == 1,
                             .generates = each == 1};
      return estimate(steps_.price(plan, needs.layout, prefill, method));
    };
    result.prefill_step = step_of(whole);
    // The prompts of a batch block are computed in equal steps, and a last one with the sequences
    // that are left over.
    const double steps = std::floor(concurrent / whole), rest = concurrent - steps * whole;
    const double block_s =
        steps * result.prefill_step.seconds + (rest > 0 ? step_of(rest).seconds : 0);
    result.first_token_s = block_s * pieces;
    result.prefill_s = result.first_token_s * requests / concurrent;
  }
  const DecodeSteps& decoding = decode_steps(plan.schedule, static_cast<int64_t>(concurrent));
  if (decoding.steps > 0) {
    const StepSize decode{.sequences = std::llround(decoding.at_work),
                          .tokens_each = 1,
                          .keys = std::max(1.0, decode_keys_)};
    const PricedSteps::Priced& step = steps_.price(plan, needs.layout, decode, method);
    result.cpu_attention = step.cpu_attention;
    result.decode_step = estimate(step);
    result.step_s = result.decode_step.seconds;
    result.decode_s = result.step_s * decoding.steps;
  }
  result.latency_s = result.first_token_s +
                     result.step_s * static_cast<double>(std::max<int64_t>(0, longest_answer_ - 1));
  const auto generated = static_cast<double>(generated_tokens_);
  if (result.total_s() > 0) result.generated_tokens_per_s = generated / result.total_s();
  if (result.decode_s > 0) result.decode_tokens_per_s = (generated - requests) / result.decode_s;
  return result;
}

}  // namespace spillway
