// SPDX-License-Identifier: Apache-2.0
// How many bytes of each memory a run of a model takes by a plan, before anything is taken: the one
// place that knows. The runtime makes what the layout says; tests hold it to these bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/memory_usage.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/plan.h"
#include "plan/stream_order.h"
#include "plan/weight_homes.h"
#include "tensor/kv_shape.h"
#include "tensor/turn_sizes.h"

namespace spillway {

// How much is to be run.
struct RunSize {
  int64_t tokens = 0;      // of a sequence: prompt and answer
  int64_t sequences = 1;   // at once
  int micro_tokens = 512;  // most tokens that go through a layer together
  KvType kv_type = KvType::kF16;
  bool may_map = true;  // weights may be pages of the model's files
  // Sequences that are attended to in parts are cut at the same positions wherever they lie, at
  // multiples of kFixedPartBlocks: results must not depend on that.
  bool same_parts = false;
  // They never are: rows that attend to few of their positions (AttentionParams::top_k) have no
  // parts.
  bool whole_sequences = false;
  // Sequences that may share the KV of those, where they turn out shorter; 0: no others.
  int64_t at_once = 0;
  int most_turning = 0;    // layers whose KV may take turns on the device (tensor/turn_sizes.h)
  int swapped_layers = 0;  // of these, those that are swapped from the first step on
  int draft_tokens = 0;    // of a sequence, computed in a step besides its newest token, at most

  int64_t at_work() const { return std::max(sequences, at_once); }
};
// Rows of logits of a step in which so many sequences generate, at most: drafts are for small
// batches, and take no rows beyond kMostDraftRows.
inline constexpr int kMostDraftRows = 32;
int rows_with_drafts(int sequences, int draft_tokens);
// 4096 tokens: as few parts as a context of 128K can have and staging planes still be small.
inline constexpr int64_t kFixedPartBlocks = 256;

// Staging planes on the device for KV that lives elsewhere (runtime/kv_swap.h): while a group is
// attended to in one, the pages of the next arrive in the other.
inline constexpr int kKvStagingBuffers = 2;

// The parts of a run that plan and size decide.
struct RunLayout {
  KvShapes kv;
  // Room for so many blocks of tokens in each memory, and the blocks of one sequence. A group whose
  // layers keep a part of a sequence has fewer blocks (group_blocks()).
  int32_t device_blocks = 0, host_blocks = 0, disk_blocks = 0;
  int64_t sequence_blocks = 0;
  int64_t max_concurrent = 0;  // sequences that may share this room; 0: as many as fit when full
  // In each staging plane. Less than a sequence has: it comes in parts, or where there is not even
  // room for those (least_staging) prompts are attended to on the CPU.
  int32_t staging_blocks = 0;
  bool parts = false;        // some sequence may be attended to in parts (docs/kv-cache.md)
  int64_t fixed_blocks = 0;  // of such a part; 0: it is as large as it can be
  int max_tokens = 0;        // of a step: of a block, in FlexGen's words
  int micro_tokens = 0;      // of a micro-batch
  int logit_rows = 0;        // of a step that generates
  int draft_tokens = 0;      // RunSize's
  // What weights that stream come into, and how many of them.
  SlotContent slots = SlotContent::kLayers;
  int weight_slots = 0;
  int weight_stages = 0;  // staging buffers for those from disk
  TierShares activations;
  TurnSizes turns;         // of KV on the device
  int swapped_layers = 0;  // in steps as they are priced; a run may find another number

  int32_t blocks_away() const { return host_blocks + disk_blocks; }
  // No memory holds one sequence.
  bool spans() const {
    return sequence_blocks > device_blocks && sequence_blocks > host_blocks &&
           sequence_blocks > disk_blocks;
  }
  // Blocks of a staging plane through which a sequence of any length comes in parts, each with as
  // many rows as go through a layer together.
  int64_t least_staging() const;
  // The blocks of a group in a memory that has room for so many blocks of tokens.
  int32_t group_blocks(int group, int64_t blocks) const;
  // The bytes of so many blocks of tokens in all groups.
  uint64_t kv_bytes(int64_t blocks) const;
  uint64_t kv_file_bytes() const;
};

struct Footprint {
  RunLayout layout;
  WeightBytes weights;
  // What is allocated in each memory while it runs; peaks: while it is loaded, too.
  MemoryUsage device;  // of the host where that is the device
  MemoryUsage host;
  MemoryUsage disk;
  uint64_t mapped = 0;  // of the host's memory, beside that: pages of files
  // About, of the device: what kernels and libraries take while they run.
  uint64_t workspace = 0;
  // The same of the host beside a device, where it attends or multiplies.
  uint64_t host_workspace = 0;
  // About, of the host: what loading takes beside the weights, before there is anything else.
  uint64_t loading = 0;

  const MemoryUsage& of_host(bool has_device) const { return has_device ? host : device; }
};
// Throws kInvalidArgument for a KV cache that cannot be.
Footprint footprint(const Model& model, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits);
// The same for many plans of one model: what they share is computed once.
class PlacedWeights;
Footprint footprint(PlacedWeights& placed, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits);

}  // namespace spillway
