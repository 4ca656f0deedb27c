// SPDX-License-Identifier: Apache-2.0
#include "plan/priced_steps.h"

#include "plan/byte_key.h"

namespace spillway {

const PricedSteps::Priced& PricedSteps::price(const Plan& plan, const RunLayout& layout,
                                              const StepSize& size, Method method) {
  const StreamSplit split = StepPrices::cut_of(hardware_, plan, layout, size);
  // The key has everything that StepPrices reads of its arguments.
  ByteKey key;
  key.add(split.cpu);
  key.add_all(weights_.homes(plan).number, method, split.slots, split.segment_bytes, plan.overlap,
              plan.attention_topk.value_or(0));
  key.add_all(layout.kv.group(0).type, layout.device_blocks, layout.host_blocks, layout.disk_blocks,
              layout.sequence_blocks, layout.staging_blocks, layout.partitioned,
              layout.fixed_blocks, layout.max_tokens, layout.micro_tokens, layout.weight_slots,
              layout.weight_stages, layout.swapped_layers);
  key.add(layout.activations);
  key.add_all(layout.swap_sizes.layers, layout.swap_sizes.blocks, layout.swap_sizes.spare,
              size.sequences, size.tokens_each, size.keys, size.logits, size.generates);
  // The prices of prompts do not depend on these.
  if (size.generates)
    key.add_all(plan.micro_batch, plan.attention, plan.cpu_attention.value_or(-1));
  if (steps_.size() >= kMost) steps_.clear();
  const auto [found, added] = steps_.try_emplace(key.take());
  Priced& step = found->second;
  if (!added) return step;
  const StepPrices prices(hardware_, weights_.model().spec, weights_.of_step(plan, split), plan,
                          layout, size);
  step.cpu_attention = prices.cpu_attention();
  step.estimate = method == Method::kSimulated ? simulate_step(prices) : prices.sums();
  return step;
}

}  // namespace spillway
