// SPDX-License-Identifier: Apache-2.0
#include "runtime/sequence_parts.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

int64_t rounded_down(int64_t blocks) {
  return blocks / kAttentionPartBlocks * kAttentionPartBlocks;
}

// Returns the size of staged partitions that no rows are written to.
int64_t staged_part(const PartLimits& limits) {
  return limits.fixed_blocks > 0 ? limits.fixed_blocks : rounded_down(limits.staging_blocks);
}

// Adds partitions of `each` blocks; fixed ones are counted from the sequence's beginning.
void add_parts(Tier tier, int64_t begin, int64_t end, int64_t each, const PartLimits& limits,
               std::vector<SequencePart>& parts) {
  while (begin < end) {
    int64_t to = begin + each;
    if (limits.fixed_blocks > 0) to = (begin / limits.fixed_blocks + 1) * limits.fixed_blocks;
    parts.push_back({tier, begin, std::min(to, end)});
    begin = parts.back().end;
  }
}

}  // namespace

int64_t most_staged_rows(const PartLimits& limits) {
  if (limits.fixed_blocks > 0)
    return limits.fixed_blocks <= limits.staging_blocks ? limits.fixed_blocks * kKvBlockTokens : 0;
  // Rows may begin anywhere in a block, and that block anywhere behind where a partition may begin.
  const int64_t blocks = limits.staging_blocks - 1 - kAttentionPartBlocks;
  return blocks < kAttentionPartBlocks ? 0 : blocks * kKvBlockTokens;
}

std::vector<SequencePart> cut_sequence(std::span<const BlockId> table, int64_t first_written,
                                       double host_share, const PartLimits& limits) {
  const auto blocks = static_cast<int64_t>(table.size());
  SPW_ASSERT(first_written < blocks);
  std::vector<SequencePart> parts;
  for (int64_t begin = 0; begin < blocks;) {
    const Tier tier = table[static_cast<size_t>(begin)].tier;
    SPW_ASSERT(parts.empty() || parts.back().tier < tier);
    SPW_ASSERT(begin % kAttentionPartBlocks == 0);
    int64_t end = begin + 1;
    while (end < blocks && table[static_cast<size_t>(end)].tier == tier) ++end;
    const bool last = end == blocks;
    if (tier == Tier::kHost && host_share > 0) {
      auto stays_from =
          begin +
          rounded_down(static_cast<int64_t>((1 - host_share) * static_cast<double>(end - begin)));
      if (last) stays_from = std::min(stays_from, rounded_down(first_written));
      add_parts(tier, begin, stays_from, staged_part(limits), limits, parts);
      parts.push_back({tier, stays_from, end, /*stays=*/true});
    } else if (tier == Tier::kDevice) {
      add_parts(tier, begin, end, end - begin, limits, parts);
    } else if (!last || limits.fixed_blocks > 0) {
      add_parts(tier, begin, end, staged_part(limits), limits, parts);
    } else {
      // The last partition has the rows, and as many blocks before them as fit into staging.
      const int64_t rows_from = std::max(begin, rounded_down(first_written));
      const int64_t before = rounded_down(limits.staging_blocks - (end - rows_from));
      SPW_ASSERT(before >= 0);
      const int64_t last_from = std::max(begin, rows_from - before);
      add_parts(tier, begin, last_from, staged_part(limits), limits, parts);
      parts.push_back({tier, last_from, end});
    }
    begin = end;
  }
  SPW_ASSERT(parts.back().begin <= first_written);
  parts.back().holds_rows = true;
  return parts;
}

}  // namespace spillway
