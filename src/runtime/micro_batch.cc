// SPDX-License-Identifier: Apache-2.0
#include "runtime/micro_batch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kv/block_allocator.h"
#include "plan/footprint.h"

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

bool has_parts(KvPath path) { return path == KvPath::kParts || path == KvPath::kSharedParts; }

}  // namespace

struct MicroBatchCutter {
  std::span<const StepSequence> sequences;
  const MicroBatchLimits& limits;
  CutStep step;
  std::vector<std::vector<int32_t>> logit_rows;  // by sequence
  std::vector<int64_t> written_from;             // by sequence: by its rows that were added last

  PartLimits part_limits() const { return {limits.staging_blocks, limits.fixed_blocks}; }
  static Tier tier_at(const StepSequence& sequence, int64_t position) {
    return sequence.block_table[static_cast<size_t>(position / kKvBlockTokens)].tier;
  }

  // Of the rows from token `first` on: how many may be attended to together. Those that are written
  // to one memory and, where parts are fixed, to one of them.
  int32_t rows_together(const StepSequence& sequence, int32_t first) const {
    const auto total = static_cast<int64_t>(sequence.tokens.size());
    const int64_t from = int64_t{sequence.start} + first, to = sequence.start + total;
    int64_t end = to;
    if (tier_at(sequence, from) != tier_at(sequence, to - 1)) {
      end = (from / kKvBlockTokens + 1) * kKvBlockTokens;
      while (tier_at(sequence, end) == tier_at(sequence, from)) end += kKvBlockTokens;
    }
    if (const int64_t each = limits.fixed_blocks * kKvBlockTokens; each > 0)
      end = std::min(end, (from / each + 1) * each);
    return static_cast<int32_t>(end - from);
  }

  // Of rows up to position `end`.
  KvPath path_of(const StepSequence& sequence, int64_t end, double& turn) const {
    const Tier first = tier_at(sequence, 0), last = tier_at(sequence, end - 1);
    const int64_t blocks = blocks_for_tokens(end);
    const bool generates = sequence.generates;
    const bool one_part =
        first == last && (limits.fixed_blocks == 0 || blocks <= limits.fixed_blocks);
    if (one_part && last == Tier::kDevice) return KvPath::kResident;
    if (first == last && last == Tier::kDevice) return KvPath::kParts;
    const bool fits = one_part && blocks <= limits.staging_blocks;
    const bool can_stage = most_staged_rows(part_limits()) > 0 && !(limits.sparse && generates);
    SPW_CHECK(fits || can_stage || last == Tier::kHost, kOutOfMemory,
              "the KV of a sequence of {} tokens lives on disk, and there is room for {} of a "
              "layer where it is computed; leave more memory free, or shorten the sequence",
              end, limits.staging_blocks * kKvBlockTokens);
    SPW_ASSERT(first == last || !limits.sparse);
    const bool in_host = first == Tier::kHost || last == Tier::kHost ||
                         (first != last && touches_host(sequence, blocks));
    if (!in_host) return fits ? KvPath::kSwapped : KvPath::kParts;
    const KvPath on_device = fits ? KvPath::kSwapped : KvPath::kParts;
    const KvPath by_host = first == last ? KvPath::kHost : KvPath::kSharedParts;
    if (!fits && !can_stage) return by_host;
    if (!generates) return on_device;
    // One that does not fit is shared itself.
    if (!fits) {
      return limits.host_share <= 0  ? on_device
             : limits.host_share < 1 ? KvPath::kSharedParts
                                     : by_host;
    }
    // As many of each kind in every micro-batch: both sides are busy all the time.
    turn += limits.host_share;
    if (turn < 1 - 1e-9) return on_device;
    turn -= 1;
    return by_host;
  }
  static bool touches_host(const StepSequence& sequence, int64_t blocks) {
    const auto table = sequence.block_table.first(static_cast<size_t>(blocks));
    const auto at = std::partition_point(table.begin(), table.end(),
                                         [](BlockId block) { return block.tier < Tier::kHost; });
    return at != table.end() && at->tier == Tier::kHost;
  }

  void cut() {
    logit_rows.resize(sequences.size());
    written_from.resize(sequences.size());
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
      const auto total = static_cast<int32_t>(sequence.tokens.size());
      for (int32_t first = 0; first < total;) {
        const int32_t together = rows_together(sequence, first);
        const KvPath path = path_of(sequence, int64_t{sequence.start} + first + together, turn);
        const int64_t most = path == KvPath::kParts ? most_rows(sequence, first) : together;
        for (const int32_t end = first + together; first < end;) {
          Part part{i, first, 0, path};
          part.count = static_cast<int32_t>(std::min({room, int64_t{end} - first, most}));
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
  // Of rows that are attended to in parts: of those that come to the device, their own must fit.
  int64_t most_rows(const StepSequence& sequence, int32_t first) const {
    if (tier_at(sequence, int64_t{sequence.start} + first) == Tier::kDevice)
      return static_cast<int64_t>(sequence.tokens.size());
    return most_staged_rows(part_limits());
  }

  void add(std::vector<Part>& parts) {
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return a.path < b.path; });
    const int64_t first_row =
        step.batches.empty() ? 0 : step.batches.back().first_row + step.batches.back().tokens;
    MicroBatch& batch = step.batches.emplace_back();
    batch.first_row = first_row;
    for (const Part& part : parts) {
      if (has_parts(part.path)) {
        add_parted(batch, part);
      } else {
        add_part(batch, part);
      }
    }
    for (SwapGroup& group : batch.swaps) {
      if (group.parts) {
        group.first_row = batch.parted.first_row;
        group.rows = batch.parted.rows;
      }
      batch.other_spans.push_back(group.spans);
      if (!group.written.empty()) batch.other_spans.push_back(group.written);
    }
    if (!batch.parted.written.empty()) batch.other_spans.push_back(batch.parted.written);
    for (const auto& spans : batch.parted.resident) batch.other_spans.push_back(spans);
  }

  // Where a part's rows go.
  PathRows& rows_for(MicroBatch& batch, const Part& part) {
    if (part.path == KvPath::kResident) return batch.resident;
    if (part.path == KvPath::kHost) return batch.on_host;
    const int64_t blocks = blocks_after(sequences[part.sequence], part);
    const Tier tier = sequences[part.sequence].block_table.front().tier;
    if (batch.swaps.empty() || batch.swaps.back().tier != tier ||
        batch.swaps.back().staging_blocks + blocks > limits.staging_blocks) {
      batch.swaps.emplace_back().tier = tier;
    }
    batch.swaps.back().continues = batch.swaps.back().continues || part.first > 0;
    return batch.swaps.back();
  }

  // Its tokens are the micro-batch's next ones.
  void add_tokens(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    const auto total = static_cast<int32_t>(sequence.tokens.size());
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
    batch.tokens += part.count;
  }

  void add_part(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    PathRows& path = rows_for(batch, part);
    if (path.rows == 0) path.first_row = batch.tokens;
    add_tokens(batch, part);
    const int64_t blocks = blocks_after(sequence, part);
    const std::span<const int32_t> home = home_of(batch, part);
    const SequenceSpan all{path.rows,
                           part.count,
                           sequence.start + part.first,
                           table_of(batch, part, blocks, home.size()),
                           home,
                           sequence.generates};
    for (const SequenceSpan& span : attended_together(all)) {
      path.spans.push_back(span);
      if (part.path == KvPath::kHost) batch.on_host.written.push_back(span);
    }
    path.rows += part.count;
    written_from[part.sequence] = sequence.start + part.first;
  }

  // Rows that attend to few of their positions choose them one by one.
  std::vector<SequenceSpan> attended_together(const SequenceSpan& all) const {
    if (!limits.sparse || !all.generates) return {all};
    std::vector<SequenceSpan> spans;
    for (int32_t row = 0; row < all.rows; ++row) {
      SequenceSpan& span = spans.emplace_back(all);
      span.first_row += row;
      span.start += row;
      span.rows = 1;
    }
    return spans;
  }

  // Rows whose sequence is attended to in parts.
  void add_parted(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    PartedRows& parted = batch.parted;
    if (parted.rows == 0) parted.first_row = batch.tokens;
    const bool shared = part.path == KvPath::kSharedParts;
    if (shared && batch.on_host.rows == 0) batch.on_host.first_row = batch.tokens;
    const int32_t start = sequence.start + part.first;
    SequenceSpan span{parted.rows, part.count, start, {}};
    span.generates = sequence.generates;
    const auto table =
        sequence.block_table.first(static_cast<size_t>(blocks_after(sequence, part)));
    size_t resident = 0;
    for (const SequencePart& piece :
         cut_sequence(table, start / kKvBlockTokens, shared ? host_share() : 0, part_limits())) {
      span.start = start - static_cast<int32_t>(piece.begin) * kKvBlockTokens;
      const auto blocks = table.subspan(static_cast<size_t>(piece.begin),
                                        static_cast<size_t>(piece.end - piece.begin));
      if (piece.tier == Tier::kDevice) {
        span.block_table = numbers_in(Tier::kDevice, batch, blocks);
        if (parted.resident.size() == resident) parted.resident.emplace_back();
        parted.resident[resident++].push_back(span);
        if (piece.holds_rows) parted.written.push_back(span);
      } else if (piece.stays) {
        HostRows& host = batch.on_host;
        SequenceSpan there = span;
        there.first_row = host.rows;
        there.block_table = numbers_in(Tier::kHost, batch, blocks);
        host.shared.push_back(there);
        if (piece.holds_rows) host.written.push_back(there);
      } else {
        // What the rows before these have just written must be back. What was written before that
        // is: no more than two groups are on the device.
        static_assert(kKvStagingBuffers == 2);
        const bool continues = part.first > 0 &&
                               piece.end * kKvBlockTokens > written_from[part.sequence] &&
                               piece.begin * kKvBlockTokens < start;
        stage(batch, piece, blocks, start, continues, span);
      }
    }
    if (shared) {
      batch.on_host.rows += part.count;
      batch.on_host.shared_rows += part.count;
    }
    parted.rows += part.count;
    add_tokens(batch, part);
    written_from[part.sequence] = start;
  }

  // Of a sequence that both attend to, the host's.
  double host_share() const {
    return most_staged_rows(part_limits()) > 0 ? std::min(1.0, limits.host_share) : 1;
  }

  static std::span<const int32_t> numbers_in(Tier tier, MicroBatch& batch,
                                             std::span<const BlockId> blocks) {
    std::vector<int32_t>& table = batch.tables_.emplace_back();
    table.reserve(blocks.size());
    for (const BlockId block : blocks) table.push_back(block.number_in(tier));
    return table;
  }

  // A part that comes to the device: into the last group, where it finds room there and its rows
  // are not in it already.
  void stage(MicroBatch& batch, const SequencePart& piece, std::span<const BlockId> blocks,
             int32_t first_new, bool continues, SequenceSpan span) {
    const auto count = static_cast<int64_t>(blocks.size());
    const auto takes = [&](const SwapGroup& group) {
      return group.parts && group.tier == piece.tier && !continues &&
             group.staging_blocks + count <= limits.staging_blocks &&
             group.spans.back().first_row != span.first_row;
    };
    if (batch.swaps.empty() || !takes(batch.swaps.back())) {
      SwapGroup& made = batch.swaps.emplace_back();
      made.tier = piece.tier;
      made.parts = true;
      made.continues = continues;
    }
    SwapGroup& group = batch.swaps.back();
    std::vector<int32_t>& table = batch.tables_.emplace_back();
    for (const BlockId block : blocks) {
      table.push_back(group.staging_blocks++);
      const auto at = static_cast<int32_t>(piece.begin + int64_t(table.size()) - 1);
      add_moves(block, table.back(), at, first_new, group, group.loads);
    }
    span.block_table = table;
    group.spans.push_back(span);
    if (piece.holds_rows) group.written.push_back(span);
  }

  // Blocks with something in them come in; those that are written to go back. `at`: its place in
  // the sequence.
  static void add_moves(BlockId home, int32_t staging, int32_t at, int32_t first_new,
                        SwapGroup& group, std::vector<BlockMove>& loads) {
    if (at * kKvBlockTokens < first_new) loads.push_back({home, staging});
    if ((at + 1) * kKvBlockTokens > first_new) group.stores.push_back({home, staging});
  }

  // The blocks whose V stays where it is: full ones, of earlier steps.
  std::span<const int32_t> home_of(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    if (!limits.values_stay || part.path != KvPath::kSwapped || !sequence.generates ||
        sequence.block_table.front().tier != Tier::kHost) {
      return {};
    }
    const int64_t full = (int64_t{sequence.start} + part.first) / kKvBlockTokens;
    return numbers_in(Tier::kHost, batch, sequence.block_table.first(static_cast<size_t>(full)));
  }

  // `at_home`: of this many first blocks only K moves.
  std::span<const int32_t> table_of(MicroBatch& batch, const Part& part, int64_t blocks,
                                    size_t at_home) {
    const StepSequence& sequence = sequences[part.sequence];
    const auto count = static_cast<size_t>(blocks);
    if (part.path != KvPath::kSwapped) {
      const Tier tier = part.path == KvPath::kResident ? Tier::kDevice : Tier::kHost;
      return numbers_in(tier, batch, sequence.block_table.first(count));
    }
    std::vector<int32_t>& table = batch.tables_.emplace_back(count);
    const int32_t first_new = sequence.start + part.first;  // the first position that is written
    SwapGroup& group = batch.swaps.back();
    for (size_t i = 0; i < count; ++i) {
      table[i] = group.staging_blocks++;
      add_moves(sequence.block_table[i], table[i], static_cast<int32_t>(i), first_new, group,
                i < at_home ? group.key_loads : group.loads);
    }
    return table;
  }
};

CutStep cut_step(std::span<const StepSequence> sequences, const MicroBatchLimits& limits) {
  SPW_ASSERT(limits.tokens > 0);
  MicroBatchCutter cutter{sequences, limits, {}, {}, {}};
  cutter.cut();
  return std::move(cutter.step);
}

}  // namespace spillway
