// SPDX-License-Identifier: Apache-2.0
// A step cut into micro-batches: the sequences that go through a layer together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/ops.h"
#include "kv/block_id.h"
#include "runtime/sequence_parts.h"
#include "tensor/state_rule.h"

namespace spillway {

// One sequence's part of a step: some of its prompt, or the newest tokens of its answer. Linear
// layers see the tokens of all sequences together, attention sees each sequence (selective
// batching).
struct StepSequence {
  std::span<const int32_t> tokens;  // at positions [start, start + tokens.size())
  int32_t start = 0;                // tokens already in the KV cache
  // Covers start + tokens.size() tokens. Of one memory, or of several, one behind the other in the
  // order of Tier and beginning at multiples of kAttentionPartBlocks.
  std::span<const BlockId> block_table;
  int32_t logit_rows = 1;  // logits wanted for this many of the last tokens; 0 inside a prompt
  bool generates = false;  // the tokens belong to an answer that is being generated
  // As block_table, which is the first group's: those of the other groups of layers, in order.
  // Entry i of all tables is in the same memory, be it released.
  std::array<std::span<const BlockId>, kMostStateGroups - 1> other_tables = {};

  std::span<const BlockId> table(int group) const {
    return group == 0 ? block_table : other_tables[static_cast<size_t>(group - 1)];
  }
};

// How rows get to their KV.
enum class KvPath : uint8_t {
  kResident,  // it is on the device
  kSwapped,   // its pages come to the device for a layer, and what changed goes back
  // It is in several memories, or is larger than what comes to the device at once: part by part, on
  // the device.
  kParts,
  kSharedParts,  // as kParts, but for what is in host memory: the host attends to that meanwhile
  kHost,         // the host appends and attends where the pages lie
};

// Rows [first_row, first_row + rows) of a micro-batch that get to their KV together. Spans count
// from first_row; their tables hold ids of the device's planes, of staging planes, or of the
// host's.
struct PathRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  std::vector<SequenceSpan> spans;
};

// Rows that the host attends to: first those of kSharedParts, then those that are all its own,
// which `spans` has.
struct HostRows : PathRows {
  int32_t shared_rows = 0;
  std::vector<SequenceSpan> shared;   // the parts in host memory
  std::vector<SequenceSpan> written;  // of all rows, where k and v are appended here
};

// Rows [first_row, first_row + rows) of a micro-batch whose sequences are attended to in parts; the
// last of them are the host's first ones. Spans count from first_row, those of the host's part and
// of swap groups, too (but for HostRows, which count from the host's first).
struct PartedRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  std::vector<SequenceSpan> written;  // where k and v are appended on the device
  // What is on the device: lists in which no row is twice, one after the other.
  std::vector<std::vector<SequenceSpan>> resident;
};

// A block that a swap moves: where it lives, and its number in staging.
struct BlockMove {
  BlockId home;
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
  // Parts of sequences: its spans count from the first parted row, and these of them are written.
  bool parts = false;
  std::vector<SequenceSpan> written;
};

// Where the rows of a micro-batch find their KV in the layers of one group. All groups have the
// same rows in the same order and as many swap groups; tables and blocks are their own.
struct KvRows {
  PathRows resident;
  std::vector<SwapGroup> swaps;
  PartedRows parted;
  HostRows on_host;
};

// Tokens that go through the matrices of a layer together. What it has of KvRows is about the first
// group of layers; most models have no other.
struct MicroBatch : KvRows {
  int64_t first_row = 0;  // of the step
  int32_t tokens = 0;
  std::vector<int32_t> ids, positions;  // [tokens]
  std::vector<int32_t> table_rows;      // positions + offset, for the learned table
  std::vector<int32_t> logit_rows;      // of these rows, whose logits are wanted
  int64_t first_logit = 0;              // in the step
  std::vector<KvRows> other_groups;     // of layers, in order
  std::vector<std::span<const SequenceSpan>> other_spans;  // that ops take, beside `resident`

  const KvRows& of(int group) const {
    return group == 0 ? *this : other_groups[static_cast<size_t>(group - 1)];
  }
  KvRows& of(int group) {
    return group == 0 ? *this : other_groups[static_cast<size_t>(group - 1)];
  }

 private:
  friend struct MicroBatchCutter;
  std::vector<std::vector<int32_t>> tables_;  // of spans whose ids are not those of the cache
};

inline constexpr StateRule kOneFullGroup[] = {{}};

struct MicroBatchLimits {
  int64_t tokens = 0;
  // By group of layers: what they keep. Each sequence has a table for each.
  std::span<const StateRule> rules = kOneFullGroup;
  int64_t sequences = 0;       // 0: any number
  int64_t staging_blocks = 0;  // of a swap group; a sequence that needs more comes in parts
  int64_t fixed_blocks = 0;    // PartLimits
  int32_t position_offset = 0;
  // Of the decoding sequences in host memory, the share whose attention is the host's: the first
  // ones. The others, and prompts, are swapped. Of one that does not fit into staging, the share of
  // its blocks there.
  double host_share = 1;
  // Of the decoding sequences that are swapped from host memory, only K moves; and V of the block
  // that is written to, so that it goes back as a whole.
  bool values_stay = false;
  // Rows that generate attend to few of their positions: they have no parts, and a sequence in host
  // memory that needs more than staging is then the host's.
  bool sparse = false;
};

struct CutStep {
  std::vector<MicroBatch> batches;
  int64_t logits = 0;  // in the order of the sequences
};

// Fills micro-batches with sequences in their order, cutting prompts where one is full, and where
// their blocks go from one memory to the next; inside each, rows are ordered by path.
CutStep cut_step(std::span<const StepSequence> sequences, const MicroBatchLimits& limits);

}  // namespace spillway
