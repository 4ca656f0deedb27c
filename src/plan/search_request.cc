// SPDX-License-Identifier: Apache-2.0
#include "plan/search_request.h"

namespace spillway {

void GivenFields::apply_to(Plan& plan) const {
  if (weights) plan.weights = *weights;
  if (kv) plan.kv = *kv;
  if (activations) plan.activations = *activations;
  if (embeddings) plan.embeddings = *embeddings;
  if (schedule) plan.schedule = *schedule;
  if (attention) plan.attention = *attention;
  if (cpu_attention) plan.cpu_attention = cpu_attention;
  if (cpu_linear) plan.cpu_linear = *cpu_linear;
  if (micro_batch) plan.micro_batch = *micro_batch;
  if (micro_batches) plan.micro_batches = *micro_batches;
  if (!overlap) plan.overlap = false;
}

}  // namespace spillway
