// SPDX-License-Identifier: Apache-2.0
// A step divided into micro-batches: the tokens that go through a layer together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/ops.h"
#include "kv/block_id.h"
#include "runtime/kv_partitions.h"
#include "tensor/state_rule.h"

namespace spillway {

// One sequence's share of a step: tokens of its prompt, or the newest tokens of its answer. Linear
// layers see the tokens of all sequences together, attention sees each sequence by itself
// (selective batching).
struct StepSequence {
  std::span<const int32_t> tokens;  // at positions [start, start + tokens.size())
  int32_t start = 0;                // tokens already in the KV cache
  // Covers start + tokens.size() tokens. All blocks are in one memory, or they change to a later
  // memory (in the order of Tier) at multiples of kPartitionBlocks.
  std::span<const BlockId> block_table;
  int32_t logit_rows = 1;  // logits wanted for this many of the last tokens; 0 inside a prompt
  bool generates = false;  // the tokens belong to an answer that is being generated
  // The block tables of the other layer groups, in order; block_table is the first group's. Entry i
  // has the same tier in all tables, even if it is a released one.
  std::array<std::span<const BlockId>, kMostStateGroups - 1> other_tables = {};

  std::span<const BlockId> table(int group) const {
    return group == 0 ? block_table : other_tables[static_cast<size_t>(group - 1)];
  }
};

// How a row's attention reaches its KV.
enum class KvPath : uint8_t {
  kResident,  // the KV is on the device
  kSwapped,   // its pages come to the device for a layer, and what changed goes back
  // The KV is in several memories, or larger than a partition may be: the device attends to it
  // partition by partition.
  kPartitioned,
  kSharedPartitions,  // as kPartitioned, but the host attends to partitions in host memory
                      // meanwhile
  kHost,              // the host appends and attends where the pages are
};

// Rows [first_row, first_row + rows) of a micro-batch that take the same path to their KV. Spans
// count rows from first_row. Their block tables hold ids of the device's planes, of staging planes,
// or of the host's planes.
struct PathRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  std::vector<SequenceSpan> spans;
};

// Rows that the host attends to. The first shared_rows of them are those of kSharedPartitions; the
// others are attended to by the host alone, and `spans` has them.
struct HostRows : PathRows {
  int32_t shared_rows = 0;
  std::vector<SequenceSpan> shared;   // the partitions in host memory
  std::vector<SequenceSpan> written;  // where k and v of all rows are appended in host memory
};

// Rows [first_row, first_row + rows) of a micro-batch whose KV is partitioned. The last of them,
// those of kSharedPartitions, are also the first of HostRows. Spans here and in swap groups with
// `partitioned` count rows from first_row; the spans of HostRows count from the host's first row.
struct PartitionedRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  std::vector<SequenceSpan> written;  // where k and v are appended on the device
  // Partitions on the device, as lists that are attended to one after the other. No list has a row
  // twice.
  std::vector<std::vector<SequenceSpan>> resident;
};

// A block that a swap moves: where it lives, and its number in the staging buffer.
struct BlockMove {
  BlockId home;
  int32_t staging = 0;
};

// Swapped rows whose pages are in a staging buffer at the same time.
struct SwapGroup : PathRows {
  Tier tier = Tier::kHost;               // where the pages live
  std::vector<BlockMove> loads, stores;  // copied before and after attention
  // Loads of K alone: V is read in host memory (SequenceSpan::home).
  std::vector<BlockMove> key_loads;
  int32_t staging_blocks = 0;
  bool continues = false;  // reads what the previous group writes
  // Whether this group holds KV partitions. Its spans then count rows from the first row with
  // partitioned KV, and `written` has those that k and v are appended to.
  bool partitioned = false;
  std::vector<SequenceSpan> written;
};

// KvRows says where the rows of a micro-batch find their KV in the layers of one layer group. All
// layer groups have the same rows in the same order and equally many swap groups, each with its own
// tables and blocks.
struct KvRows {
  PathRows resident;
  std::vector<SwapGroup> swaps;
  PartitionedRows partitioned;
  HostRows on_host;
};

// Tokens that go through the matrices of a layer together. The inherited KvRows are those of the
// first layer group; most models have no other.
struct MicroBatch : KvRows {
  int64_t first_row = 0;  // its first row in the step
  int32_t tokens = 0;
  std::vector<int32_t> ids, positions;  // [tokens]
  std::vector<int32_t> table_rows;      // positions + offset, for the learned table
  std::vector<int32_t> logit_rows;      // rows whose logits are wanted
  int64_t first_logit = 0;              // number of its first logits row in the step
  std::vector<KvRows> other_groups;     // of the other layer groups, in order
  std::vector<std::span<const SequenceSpan>> other_spans;  // taken by ops besides `resident`

  const KvRows& of(int group) const {
    return group == 0 ? *this : other_groups[static_cast<size_t>(group - 1)];
  }
  KvRows& of(int group) {
    return group == 0 ? *this : other_groups[static_cast<size_t>(group - 1)];
  }

 private:
  friend struct MicroBatchCutter;
  std::vector<std::vector<int32_t>> tables_;  // block tables with other ids than the cache's
};

inline constexpr StateRule kOneFullGroup[] = {{}};

struct MicroBatchLimits {
  int64_t tokens = 0;
  // By layer group: the KV that it keeps. Each sequence has a block table for each.
  std::span<const StateRule> rules = kOneFullGroup;
  int64_t sequences = 0;       // 0: any number
  int64_t staging_blocks = 0;  // of a swap group; larger KV is partitioned
  int64_t fixed_blocks = 0;    // PartitionLimits
  int32_t position_offset = 0;
  // The share of the decoding sequences in host memory whose attention the host computes, evenly
  // spread over the sequences. The others, and prompts, are swapped. For a sequence that does not
  // fit into staging it is the share of its blocks that the host attends to.
  double host_share = 1;
  // For decoding sequences swapped from host memory only K is copied to the device, and V of the
  // one block that is written to, so that this block goes back as a whole.
  bool values_stay = false;
  // Decoding rows attend to a share of their positions. These rows have no partitions, so the host
  // attends to a sequence in host memory that does not fit into staging.
  bool sparse = false;
};

struct CutStep {
  std::vector<MicroBatch> batches;
  int64_t logits = 0;  // rows of logits, in the order of the sequences
};

// Fills micro-batches with sequences in their order. A prompt is split where a micro-batch is full,
// and where its blocks change from one memory to the next. Inside a micro-batch rows are ordered by
// path.
CutStep cut_step(std::span<const StepSequence> sequences, const MicroBatchLimits& limits);

}  // namespace spillway
