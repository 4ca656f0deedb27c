// SPDX-License-Identifier: Apache-2.0
#include "engine/layer_swap_control.h"

#include <algorithm>
#include <utility>

#include "schedule/predicted_policies.h"

namespace spillway {
namespace {

// If waiting for weights takes more than this share of a step, the link counts as saturated.
constexpr double kSaturatedLink = 0.05;

bool has_prompt_chunks(const StepPlan& plan) {
  return std::ranges::any_of(plan.chunks,
                             [](const ScheduledChunk& chunk) { return !chunk.generates; });
}

bool is_on_device(const SequenceView& sequence) {
  return sequence.pool.value_or(Tier::kDevice) == Tier::kDevice;
}

}  // namespace

LayerSwapControl::LayerSwapControl(Decoder& decoder, KvCache& kv, BlockAllocator& allocator,
                                   Scheduler& scheduler, PrefixReuse& prefixes,
                                   const EngineRequests& requests, const StepClock& clock,
                                   const EngineOptions& options, std::function<void()> lose_all)
    : decoder_(decoder),
      kv_(kv),
      allocator_(allocator),
      scheduler_(scheduler),
      prefixes_(prefixes),
      requests_(requests),
      clock_(clock),
      lose_all_(std::move(lose_all)),
      predicts_lengths_(options.lengths != nullptr),
      max_sequences_(options.admission.max_sequences) {
  if (options.adapts_swapped_layers && kv.layers().sizes().most > 0)
    expansion_.emplace(kv.layers().sizes(), kv.swapped().shape().layer_block_bytes());
}

DecoderStats LayerSwapControl::count_step() {
  const DecoderStats stats = decoder_.take_stats();
  taken_ += stats;
  counts_.bytes += stats.layer_swaps.to_device_bytes + stats.layer_swaps.to_host_bytes;
  counts_.ahead += stats.layer_swaps.ahead;
  counts_.early += stats.layer_swaps.early;
  counts_.waits += stats.layer_swaps.waits;
  counts_.waited_s += stats.layer_swaps.waited_s;
  return stats;
}

DecoderStats LayerSwapControl::take_decoder_stats() {
  count_step();
  return std::exchange(taken_, {});
}

int64_t LayerSwapControl::predicted_blocks() const {
  return peak_blocks(scheduler_.at_work_and_next(max_sequences_));
}

int32_t LayerSwapControl::blocks_for_another() const {
  if (allocator_.pools().size() == 1) return 0;
  int64_t elsewhere = 0, blocks_elsewhere = 0;
  for (const SequenceView& sequence : scheduler_.at_work_and_next(0)) {
    if (is_on_device(sequence)) continue;
    ++elsewhere;
    blocks_elsewhere += sequence.blocks;
  }
  if (elsewhere == 0) return 0;
  const int64_t promised = device_blocks() - allocator_.unpromised(Tier::kDevice, group());
  const int64_t mean_blocks = (blocks_elsewhere + elsewhere - 1) / elsewhere;
  const int64_t blocks = promised + mean_blocks;
  return blocks <= kv_.layers().sizes().most_blocks() ? static_cast<int32_t>(blocks) : 0;
}

bool LayerSwapControl::has_memory_pressure(const StepPlan& plan, int32_t enough_blocks) const {
  if (plan.is_full || !plan.preempted.empty()) return true;
  if (enough_blocks > device_blocks()) return true;
  if (!predicts_lengths_) return false;
  // Predicted lengths show the pressure before a request has to wait.
  std::vector<SequenceView> on_device = scheduler_.at_work_and_next(max_sequences_);
  std::erase_if(on_device, [](const SequenceView& sequence) { return !is_on_device(sequence); });
  return peak_blocks(on_device) > allocator_.total(Tier::kDevice, allocator_.forecast_group());
}

void LayerSwapControl::step_done(const StepPlan& plan, double seconds, int64_t tokens) {
  if (!expansion_) return;
  const DecoderStats step = count_step();
  const double weights_s = step.stall_s[static_cast<size_t>(StallCause::kWeights)];
  const int32_t enough_blocks = blocks_for_another();
  const int layers =
      expansion_->next({.seconds = seconds,
                        .waited_s = step.layer_swaps.waited_s,
                        .copied_s = step.layer_swaps.copied_s,
                        .copied_bytes = step.layer_swaps.copied_bytes,
                        .ahead = step.layer_swaps.ahead,
                        .early = step.layer_swaps.early,
                        .tokens = tokens,
                        .has_prompts = has_prompt_chunks(plan),
                        .memory_pressure = has_memory_pressure(plan, enough_blocks),
                        .link_is_busy = weights_s > kSaturatedLink * seconds,
                        .used_blocks = device_blocks() - allocator_.free(Tier::kDevice, group()),
                        .enough_blocks = enough_blocks,
                        .changed_s = std::exchange(changed_s_, 0)});
  if (layers == kv_.layers().swapped_count()) return;
  const double begun_s = clock_.now_s();
  change(layers);
  changed_s_ = clock_.now_s() - begun_s;
  counts_.changes_s += changed_s_;
}

std::vector<KvCache::BlockCopy> LayerSwapControl::shrink_pool(int32_t blocks) {
  const std::vector<RequestId> losing = scheduler_.choose_preempted(Tier::kDevice, blocks, group());
  for (const RequestId id : losing)
    prefixes_.on_preempt(*requests_.at(id), scheduler_.computed_of(id));
  scheduler_.preempt(losing);
  const std::vector<BlockAllocator::Move> moves = allocator_.resize(Tier::kDevice, blocks, group());
  scheduler_.rename(moves);
  std::vector<KvCache::BlockCopy> copies;
  for (const auto& [from, to] : moves)
    copies.push_back({from.in<Tier::kDevice>(), to.in<Tier::kDevice>()});
  return copies;
}

void LayerSwapControl::change(int layers) {
  if (layers == kv_.layers().swapped_count()) return;
  const int32_t blocks = kv_.layers().sizes().blocks_with(layers);
  std::vector<KvCache::BlockCopy> moves;
  if (blocks < device_blocks()) moves = shrink_pool(blocks);
  try {
    prefixes_.store_all_evicted();
    decoder_.change_swapped_layers(kv_, layers, moves);
  } catch (...) {
    lose_all_();
    allocator_.resize(Tier::kDevice, kv_.swapped().device_blocks(), group());
    throw;
  }
  allocator_.resize(Tier::kDevice, kv_.swapped().device_blocks(), group());
  ++counts_.changes;
}

}  // namespace spillway
