// SPDX-License-Identifier: Apache-2.0
// Controls layer swapping while an engine serves: measures steps and changes how many layers' KV
// lives in host memory and is on the device only for the layer's part of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/engine_options.h"
#include "engine/engine_requests.h"
#include "engine/prefix_reuse.h"
#include "engine/step_clock.h"
#include "kv/block_allocator.h"
#include "kv/expansion_control.h"
#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "schedule/scheduler.h"

namespace spillway {

// Counts since the engine was made.
struct SwapCounts {
  uint64_t bytes = 0;  // copied in both directions
  int64_t ahead = 0;   // loads of a layer that were issued before the step that needed them
  int64_t early = 0;   // of these, loads that ended before the step before had ended
  int64_t waits = 0;   // how often compute waited for a swapped layer's KV
  double waited_s = 0;
  int64_t changes = 0;  // of the number of swapped layers
  double changes_s = 0;
};

// Decides nothing unless EngineOptions::adapts_swapped_layers is set and the cache allows swapping;
// change() works without. Used from the engine's thread.
class LayerSwapControl {
 public:
  // All references must outlive it. `lose_all` is called after copies failed: all sequences lose
  // their blocks.
  LayerSwapControl(Decoder& decoder, KvCache& kv, BlockAllocator& allocator, Scheduler& scheduler,
                   PrefixReuse& prefixes, const EngineRequests& requests, const StepClock& clock,
                   const EngineOptions& options, std::function<void()> lose_all);

  // Call after a step that took `seconds` and generated `tokens` tokens: changes the number of
  // swapped layers if the measurements say so. Throws what change() throws.
  void step_done(const StepPlan& plan, double seconds, int64_t tokens);
  // Swaps this many layers from now on, as far as the cache allows. Sequences whose blocks no
  // longer fit are preempted. Throws kDevice if copies fail: then all sequences are.
  void change(int layers);

  // Returns what the decoder did since the last call. Nothing else in the engine asks the decoder
  // for its stats, which counts() includes.
  DecoderStats take_decoder_stats();
  const SwapCounts& counts() const { return counts_; }
  // Returns the KV blocks at the peak of running sequences and of those that could run beside them,
  // by their predicted lengths.
  int64_t predicted_blocks() const;

 private:
  DecoderStats count_step();
  // The group whose layers may be swapped, and its blocks on the device.
  int group() const { return kv_.swapped_group(); }
  int32_t device_blocks() const { return allocator_.total(Tier::kDevice, group()); }
  // Shrinks the device's pool to `blocks`: sequences are preempted until the others fit, and their
  // blocks move to where the pool still is. Returns the copies that this takes.
  std::vector<KvCache::BlockCopy> shrink_pool(int32_t blocks);
  // Returns how many blocks the device would need for one more sequence beside those that it has,
  // if some sequences have their KV in other memory. 0: no sequence has, or the device can never
  // have that number of blocks.
  int32_t blocks_for_another() const;
  // Returns whether KV blocks on the device are short, or will be by predicted lengths.
  bool has_memory_pressure(const StepPlan& plan, int32_t enough_blocks) const;

  Decoder& decoder_;
  KvCache& kv_;
  BlockAllocator& allocator_;
  Scheduler& scheduler_;
  PrefixReuse& prefixes_;
  const EngineRequests& requests_;
  const StepClock& clock_;
  std::function<void()> lose_all_;
  bool predicts_lengths_;
  int max_sequences_;
  std::optional<ExpansionControl> expansion_;  // none: the number of layers is not adapted
  // Seconds that the last change took, until the next step reports them to the control.
  double changed_s_ = 0;
  DecoderStats taken_;  // from the decoder, since the last take_decoder_stats()
  SwapCounts counts_;
};

}  // namespace spillway
