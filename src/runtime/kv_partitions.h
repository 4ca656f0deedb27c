// SPDX-License-Identifier: Apache-2.0
// Divides a sequence into KV partitions (device/partitioned_attention.h): where its blocks change
// from one memory to the next, and where more blocks would not fit into staging.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/partitioned_attention.h"
#include "kv/block_id.h"

namespace spillway {

struct PartitionLimits {
  int64_t staging_blocks = 0;  // most blocks of a partition that comes to the device
  // Every partition ends at a multiple of this many blocks, in whatever memory it is, so that
  // results do not depend on the placement. 0: partitions are as large as possible.
  int64_t fixed_blocks = 0;
};

// Blocks [begin, end) of a table, all in one memory.
struct KvPartition {
  Tier tier = Tier::kDevice;
  int64_t begin = 0, end = 0;
  bool stays = false;       // in host memory, where the host attends to it
  bool holds_rows = false;  // the last one: the step's rows are written to it
  bool operator==(const KvPartition&) const = default;
};

// Returns how many rows can be written to one staged partition, beside the blocks that precede them
// in it. 0: none can.
int64_t most_staged_rows(const PartitionLimits& limits);

// Divides a table into partitions. Its tiers must follow each other in the order of Tier and change
// at multiples of kPartitionBlocks. `first_written` is the block of the first row that is
// written; all written rows are in one memory and, with fixed partitions, in one partition. Of the
// blocks in host memory the last `host_share` stay there, however many that is; the others come to
// the device like those on disk.
std::vector<KvPartition> partition_sequence(std::span<const BlockId> table, int64_t first_written,
                                            double host_share, const PartitionLimits& limits);

}  // namespace spillway
