// SPDX-License-Identifier: Apache-2.0
// A step cut into micro-batches: the sequences that go through a layer together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/ops.h"
#include "kv/kv_cache.h"

namespace spillway {

// One sequence's part of a step: some of its prompt, or its last token. Linear layers see the
// tokens of all sequences together, attention sees each sequence (selective batching).
struct StepSequence {
  std::span<const int32_t> tokens;       // at positions [start, start + tokens.size())
  int32_t start = 0;                     // tokens already in the KV cache
  std::span<const int32_t> block_table;  // covers start + tokens.size() tokens
  int32_t logit_rows = 1;  // logits wanted for this many of the last tokens; 0 inside a prompt
};

// How rows get to their KV.
enum class KvPath : uint8_t {
  kResident,  // it is on the device
  kSwapped,   // its pages come to the device for a layer, and what changed goes back
  kHost,      // the host appends and attends where the pages lie
};

// Rows [first_row, first_row + rows) of a micro-batch that get to their KV together. Spans count
// from first_row; their tables hold ids of the device's planes, of staging planes, or of the
// host's.
struct PathRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  std::vector<SequenceSpan> spans;
};

// A block that a swap moves: its local id in the tier where it lives, and its id in staging.
struct BlockMove {
  int32_t home = 0;
  int32_t staging = 0;
};

// Swapped rows whose pages are on the device at the same time.
struct SwapGroup : PathRows {
  Tier tier = Tier::kHost;               // where the pages live
  std::vector<BlockMove> loads, stores;  // before and after their attention
  // Loads of K alone: V is read where it lives (SequenceSpan::home).
  std::vector<BlockMove> key_loads;
  int32_t staging_blocks = 0;
  bool continues = false;  // reads what the group before it writes
};

// Tokens that go through the matrices of a layer together.
struct MicroBatch {
  int64_t first_row = 0;  // of the step
  int32_t tokens = 0;
  std::vector<int32_t> ids, positions;  // [tokens]
  std::vector<int32_t> table_rows;      // positions + offset, for the learned table
  std::vector<int32_t> logit_rows;      // of these rows, whose logits are wanted
  int64_t first_logit = 0;              // in the step
  PathRows resident, on_host;
  std::vector<SwapGroup> swaps;
  std::vector<std::span<const SequenceSpan>> swap_spans;  // of `swaps`

 private:
  friend struct MicroBatchCutter;
  std::vector<std::vector<int32_t>> tables_;  // of spans whose ids are not those of the cache
};

struct MicroBatchLimits {
  int64_t tokens = 0;
  int64_t sequences = 0;       // 0: any number
  int64_t staging_blocks = 0;  // of a swap group; a sequence that needs more is the host's
  int32_t position_offset = 0;
  // Of the decoding sequences in host memory, the share whose attention is the host's: the first
  // ones. The others, and prompts, are swapped.
  double host_share = 1;
  // Of the decoding sequences that are swapped from host memory, only K moves; and V of the block
  // that is written to, so that it goes back as a whole.
  bool values_stay = false;
};

struct CutStep {
  std::vector<MicroBatch> batches;
  int64_t logits = 0;  // in the order of the sequences
};

// Fills micro-batches with sequences in their order, cutting prompts where one is full; inside
// each, rows are ordered by path.
CutStep cut_step(const KvCache& kv, std::span<const StepSequence> sequences,
                 const MicroBatchLimits& limits);

}  // namespace spillway
