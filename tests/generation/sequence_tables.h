// SPDX-License-Identifier: Apache-2.0
// The block tables of a sequence in all layer groups, for tests that call a decoder directly.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "runtime/micro_batch.h"

namespace spillway::testing_models {

// The sequence's blocks have the same numbers in all layer groups. Blocks behind a window are
// released before each step, as an engine does it.
class SequenceTables {
 public:
  SequenceTables(const KvCache& kv, const std::vector<BlockId>& first) : kv_(&kv) {
    for (int group = 0; group < kv.groups(); ++group) {
      tables_.push_back(first);
      for (BlockId& block : tables_.back()) block.group = static_cast<uint8_t>(group);
    }
  }

  // Returns the sequence's share of a step. It points into this object.
  StepSequence sequence(std::span<const int32_t> tokens, int64_t start, int32_t logit_rows,
                        bool generates = false) {
    StepSequence made{tokens, static_cast<int32_t>(start), tables_[0], logit_rows, generates};
    for (int group = 0; group < kv_->groups(); ++group) {
      std::vector<BlockId>& table = tables_[static_cast<size_t>(group)];
      const int64_t released = kv_->shape(group).rule.releasable(start);
      for (int64_t i = 0; i < released; ++i)
        table[static_cast<size_t>(i)] =
            BlockId::released(table[static_cast<size_t>(i)].tier, group);
      if (group > 0) made.other_tables[static_cast<size_t>(group - 1)] = table;
    }
    return made;
  }

 private:
  const KvCache* kv_;
  std::vector<std::vector<BlockId>> tables_;  // [group]
};

}  // namespace spillway::testing_models
