// SPDX-License-Identifier: Apache-2.0
#include "runtime/micro_batch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kv/block_allocator.h"

namespace spillway {
namespace {

// Some tokens of a sequence, in one micro-batch.
struct Part {
  size_t sequence;
  int32_t first = 0;  // of the sequence's tokens in this step
  int32_t count = 0;
  KvPath path = KvPath::kResident;
};

int64_t blocks_after(const StepSequence& sequence, const Part& part) {
  return blocks_for_tokens(int64_t{sequence.start} + part.first + part.count);
}

}  // namespace

struct MicroBatchCutter {
  const KvCache& kv;
  std::span<const StepSequence> sequences;
  const MicroBatchLimits& limits;
  CutStep step;
  std::vector<std::vector<int32_t>> logit_rows;  // by sequence

  KvPath path_of(const StepSequence& sequence, double& turn) const {
    const Tier tier = kv.tier_of(sequence.block_table.front());
    if (tier == Tier::kDevice) return KvPath::kResident;
    const auto blocks = blocks_for_tokens(sequence.start + int64_t(sequence.tokens.size()));
    if (tier == Tier::kDisk) {
      SPW_CHECK(blocks <= limits.staging_blocks, kOutOfMemory,
                "the KV of a sequence of {} tokens lives on disk, and there is room for {} of a "
                "layer where it is computed; leave more memory free, or shorten the sequence",
                sequence.start + sequence.tokens.size(), limits.staging_blocks * kKvBlockTokens);
      return KvPath::kSwapped;
    }
    if (blocks > limits.staging_blocks) return KvPath::kHost;
    if (sequence.tokens.size() > 1) return KvPath::kSwapped;
    // As many of each kind in every micro-batch: both sides are busy all the time.
    turn += limits.host_share;
    if (turn < 1 - 1e-9) return KvPath::kSwapped;
    turn -= 1;
    return KvPath::kHost;
  }

  void cut() {
    logit_rows.resize(sequences.size());
    std::vector<Part> parts;
    int64_t room = limits.tokens;
    double turn = 0;
    const auto flush = [&] {
      if (!parts.empty()) add(parts);
      parts.clear();
      room = limits.tokens;
    };
    for (size_t i = 0; i < sequences.size(); ++i) {
      const StepSequence& sequence = sequences[i];
      const KvPath path = path_of(sequence, turn);
      const auto total = static_cast<int32_t>(sequence.tokens.size());
      for (int32_t first = 0; first < total;) {
        Part part{i, first, 0, path};
        part.count = static_cast<int32_t>(std::min<int64_t>(room, total - first));
        const bool full =
            part.count == 0 ||
            (limits.sequences > 0 && static_cast<int64_t>(parts.size()) >= limits.sequences);
        if (full && !parts.empty()) {
          flush();
          continue;
        }
        parts.push_back(part);
        room -= part.count;
        first += part.count;
      }
    }
    flush();
    // Sequences are in the order of the micro-batches, so are the rows.
    auto batch = step.batches.begin();
    for (const auto& rows : logit_rows) {
      for (const int32_t row : rows) {
        while (row >= batch->first_row + batch->tokens) (++batch)->first_logit = step.logits;
        SPW_ASSERT(row >= batch->first_row);
        batch->logit_rows.push_back(static_cast<int32_t>(row - batch->first_row));
        ++step.logits;
      }
    }
  }

  void add(std::vector<Part>& parts) {
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return a.path < b.path; });
    const int64_t first_row =
        step.batches.empty() ? 0 : step.batches.back().first_row + step.batches.back().tokens;
    MicroBatch& batch = step.batches.emplace_back();
    batch.first_row = first_row;
    for (const Part& part : parts) add_part(batch, part);
    for (const SwapGroup& group : batch.swaps) batch.swap_spans.push_back(group.spans);
  }

  // Where a part's rows go.
  PathRows& rows_for(MicroBatch& batch, const Part& part) {
    if (part.path == KvPath::kResident) return batch.resident;
    if (part.path == KvPath::kHost) return batch.on_host;
    const int64_t blocks = blocks_after(sequences[part.sequence], part);
    const Tier tier = kv.tier_of(sequences[part.sequence].block_table.front());
    if (batch.swaps.empty() || batch.swaps.back().tier != tier ||
        batch.swaps.back().staging_blocks + blocks > limits.staging_blocks) {
      batch.swaps.emplace_back().tier = tier;
    }
    batch.swaps.back().continues = batch.swaps.back().continues || part.first > 0;
    return batch.swaps.back();
  }

  void add_part(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    const auto total = static_cast<int32_t>(sequence.tokens.size());
    PathRows& path = rows_for(batch, part);
    if (path.spans.empty()) path.first_row = batch.tokens;
    for (int32_t i = 0; i < part.count; ++i) {
      const int32_t token = part.first + i;
      batch.ids.push_back(sequence.tokens[static_cast<size_t>(token)]);
      batch.positions.push_back(sequence.start + token);
      batch.table_rows.push_back(batch.positions.back() + limits.position_offset);
      if (token >= total - sequence.logit_rows) {
        logit_rows[part.sequence].push_back(
            static_cast<int32_t>(batch.first_row + batch.tokens + i));
      }
    }
    const int64_t blocks = blocks_after(sequence, part);
    const std::span<const int32_t> home = home_of(batch, part, blocks);
    path.spans.push_back({path.rows, part.count, sequence.start + part.first,
                          table_of(batch, part, blocks, home.size()), home});
    path.rows += part.count;
    batch.tokens += part.count;
  }

  // The blocks whose V stays where it is: full ones, of earlier steps.
  std::span<const int32_t> home_of(MicroBatch& batch, const Part& part, int64_t blocks) {
    const StepSequence& sequence = sequences[part.sequence];
    if (!limits.values_stay || part.path != KvPath::kSwapped || part.count > 1 || blocks < 2 ||
        kv.tier_of(sequence.block_table.front()) != Tier::kHost) {
      return {};
    }
    std::vector<int32_t>& home = batch.tables_.emplace_back();
    for (const int32_t block : sequence.block_table.first(static_cast<size_t>(blocks - 1)))
      home.push_back(kv.local_id(block));
    return home;
  }

  // `at_home`: of this many first blocks only K moves.
  std::span<const int32_t> table_of(MicroBatch& batch, const Part& part, int64_t blocks,
                                    size_t at_home) {
    const StepSequence& sequence = sequences[part.sequence];
    const auto count = static_cast<size_t>(blocks);
    if (part.path == KvPath::kResident) return sequence.block_table.first(count);
    std::vector<int32_t>& table = batch.tables_.emplace_back(count);
    const int32_t first_new = sequence.start + part.first;  // the first position that is written
    SwapGroup* const group = part.path == KvPath::kSwapped ? &batch.swaps.back() : nullptr;
    for (size_t i = 0; i < count; ++i) {
      const int32_t home = kv.local_id(sequence.block_table[i]);
      if (group == nullptr) {
        table[i] = home;
        continue;
      }
      table[i] = group->staging_blocks++;
      const auto end = static_cast<int32_t>(i + 1) * kKvBlockTokens;
      // Blocks with something in them come in; those that are written to go back.
      if (static_cast<int32_t>(i) * kKvBlockTokens < first_new)
        (i < at_home ? group->key_loads : group->loads).push_back({home, table[i]});
      if (end > first_new) group->stores.push_back({home, table[i]});
    }
    return table;
  }
};

CutStep cut_step(const KvCache& kv, std::span<const StepSequence> sequences,
                 const MicroBatchLimits& limits) {
  SPW_ASSERT(limits.tokens > 0);
  MicroBatchCutter cutter{kv, sequences, limits, {}, {}};
  cutter.cut();
  return std::move(cutter.step);
}

}  // namespace spillway
