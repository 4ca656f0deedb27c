// SPDX-License-Identifier: Apache-2.0
#include "plan/predict.h"

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

template <class F>
double sum_over(const Workload& workload, F f) {
  double sum = 0;
  for (const RequestGroup& group : workload.groups)
    sum += f(group) * static_cast<double>(group.count);
  return sum;
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

Prediction predict(const Hardware& hardware, const Model& model, const Plan& plan,
                   const Footprint& needs, const RunSize& size, const Workload& workload,
                   PriceBy by) {
  Prediction result;
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
  // The first of each answer comes out of its prompt.
  const double steps_of_one = static_cast<double>(workload.generated_tokens()) / requests - 1;
  if (steps_of_one > 0) {
    const StepSize decode{.sequences = static_cast<int64_t>(at_once),
                          .tokens_each = 1,
                          .keys = std::max(1.0, workload.decode_keys())};
    result.decode_step = price(StepPrices(hardware, model, homes, plan, needs.layout, decode), by);
    result.step_s = result.decode_step.seconds;
    result.decode_s = result.step_s * steps_of_one * std::ceil(requests / at_once);
  }
  result.latency_s = result.first_token_s + result.step_s * std::max(0.0, steps_of_one);
  const auto generated = static_cast<double>(workload.generated_tokens());
  if (result.total_s() > 0) result.generated_tokens_per_s = generated / result.total_s();
  if (result.decode_s > 0) result.decode_tokens_per_s = requests * steps_of_one / result.decode_s;
  return result;
}

}  // namespace spillway
