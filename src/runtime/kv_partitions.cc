// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_partitions.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

int64_t rounded_down(int64_t blocks) { return blocks / kPartitionBlocks * kPartitionBlocks; }

// Returns the size of staged partitions that no rows are written to.
int64_t staged_partition(const PartitionLimits& limits) {
  return limits.fixed_blocks > 0 ? limits.fixed_blocks : rounded_down(limits.staging_blocks);
}

// Adds partitions of `each` blocks; fixed ones are counted from the sequence's beginning.
void add_partitions(Tier tier, int64_t begin, int64_t end, int64_t each,
                    const PartitionLimits& limits, std::vector<KvPartition>& partitions) {
  while (begin < end) {
    int64_t to = begin + each;
    if (limits.fixed_blocks > 0) to = (begin / limits.fixed_blocks + 1) * limits.fixed_blocks;
    partitions.push_back({tier, begin, std::min(to, end)});
    begin = partitions.back().end;
  }
}

}  // namespace

int64_t most_staged_rows(const PartitionLimits& limits) {
  if (limits.fixed_blocks > 0)
    return limits.fixed_blocks <= limits.staging_blocks ? limits.fixed_blocks * kKvBlockTokens : 0;
  // Rows may begin anywhere in a block, and that block anywhere after a place where a partition may
  // begin.
  const int64_t blocks = limits.staging_blocks - 1 - kPartitionBlocks;
  return blocks < kPartitionBlocks ? 0 : blocks * kKvBlockTokens;
}

std::vector<KvPartition> partition_sequence(std::span<const BlockId> table, int64_t first_written,
                                            double host_share, const PartitionLimits& limits) {
  const auto blocks = static_cast<int64_t>(table.size());
  SPW_ASSERT(first_written < blocks);
  std::vector<KvPartition> partitions;
  for (int64_t begin = 0; begin < blocks;) {
    const Tier tier = table[static_cast<size_t>(begin)].tier;
    SPW_ASSERT(partitions.empty() || partitions.back().tier < tier);
    SPW_ASSERT(begin % kPartitionBlocks == 0);
    int64_t end = begin + 1;
    while (end < blocks && table[static_cast<size_t>(end)].tier == tier) ++end;
    const bool last = end == blocks;
    if (tier == Tier::kHost && host_share > 0) {
      auto stays_from =
          begin +
          rounded_down(static_cast<int64_t>((1 - host_share) * static_cast<double>(end - begin)));
      if (last) stays_from = std::min(stays_from, rounded_down(first_written));
      add_partitions(tier, begin, stays_from, staged_partition(limits), limits, partitions);
      partitions.push_back({tier, stays_from, end, /*stays=*/true});
    } else if (tier == Tier::kDevice) {
      add_partitions(tier, begin, end, end - begin, limits, partitions);
    } else if (!last || limits.fixed_blocks > 0) {
      add_partitions(tier, begin, end, staged_partition(limits), limits, partitions);
    } else {
      // The last partition has the rows, and as many blocks before them as fit into staging.
      const int64_t rows_from = std::max(begin, rounded_down(first_written));
      const int64_t before = rounded_down(limits.staging_blocks - (end - rows_from));
      SPW_ASSERT(before >= 0);
      const int64_t last_from = std::max(begin, rows_from - before);
      add_partitions(tier, begin, last_from, staged_partition(limits), limits, partitions);
      partitions.push_back({tier, last_from, end});
    }
    begin = end;
  }
  SPW_ASSERT(partitions.back().begin <= first_written);
  partitions.back().holds_rows = true;
  return partitions;
}

}  // namespace spillway
