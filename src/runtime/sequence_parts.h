// SPDX-License-Identifier: Apache-2.0
// Where a sequence is cut that is attended to in parts (device/attention_parts.h): where its blocks
// go from one memory to the next, and where more of them would not fit into staging.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/attention_parts.h"
#include "kv/block_id.h"

namespace spillway {

struct PartLimits {
  int64_t staging_blocks = 0;  // most of a part that comes to the device
  // Every part ends at a multiple of this, wherever it lies, so that results do not depend on where
  // that is; 0: parts are as large as they can be.
  int64_t fixed_blocks = 0;
};

// Blocks [begin, end) of a table, all in one memory.
struct SequencePart {
  Tier tier = Tier::kDevice;
  int64_t begin = 0, end = 0;
  bool stays = false;       // in host memory, where the host attends to it
  bool holds_rows = false;  // the last one: what the step's rows write is in it
  bool operator==(const SequencePart&) const = default;
};

// Of rows in one part: as many as find room in staging beside what comes before them in their part.
// 0: none do.
int64_t most_staged_rows(const PartLimits& limits);

// The table's memories must follow each other as Tier has them, from multiples of
// kAttentionPartBlocks on. `first_written`: the block of the first row that is written; all rows
// are in one memory and, with fixed parts, in one of them. `host_share`: of what is in host memory,
// so much stays there, however large: the end of it. The rest comes to the device as the others do.
std::vector<SequencePart> cut_sequence(std::span<const BlockId> table, int64_t first_written,
                                       double host_share, const PartLimits& limits);

}  // namespace spillway
