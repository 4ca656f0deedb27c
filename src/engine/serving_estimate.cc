// SPDX-License-Identifier: Apache-2.0
#include "engine/serving_estimate.h"

#include <algorithm>

#include "plan/link_prices.h"

namespace spillway {
namespace {

constexpr int kSmallestBudget = 64;
// How many times as long as without prompts a step may take, and how long it may take in any case.
constexpr double kMostSlower = 1.25, kUnnoticed_s = 0.1;

double prompt_pass_s(const Session& session, int tokens) {
  return session.predict_run({{{.count = 1, .prompt = tokens, .generate = 1}}}, 1).prefill_s;
}

}  // namespace

ServingEstimate estimate_serving(const Session& session, int64_t sequences, int64_t prompt,
                                 int64_t generated, int max_step_tokens) {
  ServingEstimate estimate;
  estimate.step_s =
      session
          .predict_run({{{.count = sequences, .prompt = prompt, .generate = generated}}}, sequences)
          .step_s;
  const double most_s = std::max(kMostSlower * estimate.step_s, kUnnoticed_s);
  int& tokens = estimate.prompt_tokens = std::min(kSmallestBudget, max_step_tokens);
  // Weights are read, or copied over a link, once for prompts and decoding: prompts add what their
  // pass takes beyond that.
  const double shared_s = prompt_pass_s(session, 1);
  while (tokens < max_step_tokens) {
    const int more = std::min(2 * tokens, max_step_tokens);
    const double added_s = prompt_pass_s(session, more) - shared_s;
    if (estimate.step_s + added_s > most_s) break;
    tokens = more;
  }
  const Hardware& hardware = session.hardware();
  const LinkPrices links(hardware);
  estimate.to_gpu = links.most_up_per_s();
  estimate.to_host = links.most_down_per_s();
  estimate.disk_read = hardware.disk_read;
  estimate.disk_write = hardware.disk_write;
  return estimate;
}

}  // namespace spillway
