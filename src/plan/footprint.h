// SPDX-License-Identifier: Apache-2.0
// Computes how many bytes of each memory a run of a model takes by a plan, before anything is
// allocated. This is the only place that computes them. The runtime allocates what the layout says;
// tests check it against these bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/memory_usage.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/plan.h"
#include "plan/streaming_schedule.h"
#include "plan/weight_homes.h"
#include "tensor/kv_shape.h"
#include "tensor/layer_swap_sizes.h"

namespace spillway {

// The size of a run.
struct RunSize {
  int64_t tokens = 0;      // in a sequence: prompt and answer
  int64_t sequences = 1;   // concurrent sequences for which there is room at full length
  int micro_tokens = 512;  // the most tokens that go through a layer together
  KvType kv_type = KvType::kF16;
  bool may_map = true;  // weights may be mapped pages of the model's files
  // Partitions of a sequence's KV begin at the same positions in every memory, at multiples of
  // kFixedPartitionBlocks, because results must not depend on where the KV is.
  bool same_partitions = false;
  // Sequences are never attended to in partitions: rows that attend to few of their positions
  // (AttentionParams::top_k) cannot be.
  bool whole_sequences = false;
  // The most sequences that may run concurrently in the KV memory of `sequences`, if they turn out
  // shorter; 0: no more than those.
  int64_t max_concurrent = 0;
  // The most layers that may be swapped: their KV lives in host memory and is on the device only
  // for their part of a step (tensor/layer_swap_sizes.h).
  int most_swapped = 0;
  int swapped_layers = 0;  // layers that are swapped from the first step on
  // The most draft tokens that a step computes for a sequence besides its newest token.
  int draft_tokens = 0;

  int64_t max_running() const { return std::max(sequences, max_concurrent); }
};
// Returns the most rows of logits of a step in which `sequences` sequences generate. Drafts are for
// small batches: they add no rows beyond kMostDraftRows.
inline constexpr int kMostDraftRows = 32;
int rows_with_drafts(int sequences, int draft_tokens);
// The size of a fixed partition, 4096 tokens: a context of 128K has few partitions, and staging
// planes are still small.
inline constexpr int64_t kFixedPartitionBlocks = 256;

// Staging planes on the device for KV whose home, the memory in which it lives, is elsewhere
// (runtime/kv_swap.h): while attention reads a group in one plane, the pages of the next group are
// loaded into the other.
inline constexpr int kKvStagingBuffers = 2;

// The sizes of everything that the runtime allocates for a run, as plan and run size decide them.
struct RunLayout {
  KvShapes kv;
  // The capacity of each memory in blocks of tokens, and the blocks of one sequence. A group whose
  // layers keep only a part of a sequence, such as a window, has fewer blocks (group_blocks()).
  int32_t device_blocks = 0, host_blocks = 0, disk_blocks = 0;
  int64_t sequence_blocks = 0;
  // Sequences that may share this capacity; 0: as many as fit at full length.
  int64_t max_concurrent = 0;
  // Blocks of each staging plane. If they are fewer than a sequence has, it is loaded in
  // partitions. If they are fewer than least_staging(), the CPU computes the attention of prompts.
  int32_t staging_blocks = 0;
  bool partitioned = false;  // some sequence may be attended to in partitions (docs/kv-cache.md)
  int64_t fixed_blocks = 0;  // of a partition; 0: a partition is as large as fits
  int max_tokens = 0;        // in a step
  int micro_tokens = 0;      // in a micro-batch
  int logit_rows = 0;        // in a step that generates
  int draft_tokens = 0;      // RunSize::draft_tokens
  // The contents of a slot for streamed weights, and the number of slots.
  SlotContent slots = SlotContent::kLayers;
  int weight_slots = 0;
  int weight_stages = 0;  // staging buffers for weights read from disk
  TierShares activations;
  LayerSwapSizes swap_sizes;  // division of the device's KV memory among swapped layers
  int swapped_layers = 0;     // assumed when steps are priced; a run may choose another number

  int32_t blocks_away() const { return host_blocks + disk_blocks; }
  // Returns whether no memory alone holds one sequence.
  bool spans() const {
    return sequence_blocks > device_blocks && sequence_blocks > host_blocks &&
           sequence_blocks > disk_blocks;
  }
  // Returns the fewest blocks of a staging plane through which a sequence of any length can be
  // loaded in partitions, each with the new rows of a micro-batch beside it.
  int64_t least_staging() const;
  // Returns the blocks of a group in a memory with capacity for `blocks` blocks of tokens.
  int32_t group_blocks(int group, int64_t blocks) const;
  // Returns the bytes of `blocks` blocks of tokens in all groups.
  uint64_t kv_bytes(int64_t blocks) const;
  uint64_t kv_file_bytes() const;
};

struct Footprint {
  RunLayout layout;
  WeightBytes weights;
  // The bytes that are allocated in each memory while the model runs. Their peaks include loading.
  MemoryUsage device;  // the host's if there is no device memory
  MemoryUsage host;
  MemoryUsage disk;
  uint64_t mapped = 0;  // bytes of mapped file pages, in addition to `host`
  // An estimate of the workspace on the device that kernels and libraries use while they run.
  uint64_t workspace = 0;
  // The same for the host beside a device, if the CPU attends or multiplies.
  uint64_t host_workspace = 0;
  // An estimate of the host memory that loading takes besides the weights, before anything else is
  // allocated.
  uint64_t loading = 0;

  const MemoryUsage& of_host(bool has_device) const { return has_device ? host : device; }
};
// Throws kInvalidArgument if a KV cache of that size cannot be made.
Footprint footprint(const Model& model, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits);
// The same for many plans of one model: what they share is computed once.
class PlacedWeights;
Footprint footprint(PlacedWeights& placed, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits);

}  // namespace spillway
