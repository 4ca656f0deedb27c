// SPDX-License-Identifier: Apache-2.0
#include "cli/predicted_json.h"

#include <nlohmann/json.hpp>

namespace spillway {

using nlohmann::json;

json predicted_json(const Prediction& p) {
  json terms = json::object();
  for (int i = 0; i < kWorkerCount; ++i) {
    const auto worker = static_cast<Worker>(i);
    if (!p.has_worker(worker)) continue;
    terms[p.name_of(worker)] = {{"prefill_step_s", p.prefill_step.busy[static_cast<size_t>(i)]},
                                {"decode_step_s", p.decode_step.busy[static_cast<size_t>(i)]}};
  }
  return {{"generated_tokens_per_s", p.generated_tokens_per_s},
          {"decode_tokens_per_s", p.decode_tokens_per_s},
          {"prefill_s", p.prefill_s},
          {"decode_s", p.decode_s},
          {"first_token_s", p.first_token_s},
          {"latency_s", p.latency_s},
          {"bottleneck", p.bottleneck_name()},
          {"terms_s", terms}};
}

json predicted_json(const Prediction& predicted, double measured_tokens_per_s) {
  json out = predicted_json(predicted);
  out["of_measured"] = measured_tokens_per_s > 0
                           ? json(predicted.generated_tokens_per_s / measured_tokens_per_s)
                           : json(nullptr);
  return out;
}

}  // namespace spillway
