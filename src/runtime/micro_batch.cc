// SPDX-License-Identifier: Apache-2.0
#include "runtime/micro_batch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kv/block_allocator.h"
#include "plan/footprint.h"

namespace spillway {
namespace {

// Consecutive tokens of a sequence that are in the same micro-batch.
struct Part {
  size_t sequence;
  int32_t first = 0;  // among the sequence's tokens in this step
  int32_t count = 0;
  KvPath path = KvPath::kResident;
};

int64_t blocks_after(const StepSequence& sequence, const Part& part) {
  return blocks_for_tokens(int64_t{sequence.start} + part.first + part.count);
}

// Counts the blocks that the sequence still holds. Released blocks are the first ones of a table.
int64_t held(std::span<const BlockId> blocks) {
  const auto first = std::ranges::partition_point(blocks, &BlockId::is_released);
  return blocks.end() - first;
}

bool has_partitions(KvPath path) {
  return path == KvPath::kPartitioned || path == KvPath::kSharedPartitions;
}

}  // namespace

struct MicroBatchCutter {
  std::span<const StepSequence> sequences;
  const MicroBatchLimits& limits;
  CutStep step;
  std::vector<std::vector<int32_t>> logit_rows;  // by sequence
  std::vector<int64_t> written_from;  // by sequence: first position that its latest rows write

  int groups() const { return static_cast<int>(limits.rules.size()); }
  PartitionLimits part_limits() const { return {limits.staging_blocks, limits.fixed_blocks}; }
  static Tier tier_at(const StepSequence& sequence, int64_t position) {
    return sequence.block_table[static_cast<size_t>(position / kKvBlockTokens)].tier;
  }

  // Returns how many rows, from token `first` on, may be attended to together: those that are
  // written to one memory and, with fixed partitions, to one partition.
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

  // Returns the path of rows up to position `end`. `turn` adds up the host's share from call to
  // call.
  KvPath path_of(const StepSequence& sequence, int64_t end, double& turn) const {
    const Tier first = tier_at(sequence, 0), last = tier_at(sequence, end - 1);
    const int64_t blocks = blocks_for_tokens(end);
    int64_t held_blocks = 0;  // the most in any layer group
    for (int group = 0; group < groups(); ++group) {
      const auto table = sequence.table(group).first(static_cast<size_t>(blocks));
      held_blocks = std::max(held_blocks, held(table));
    }
    const bool generates = sequence.generates;
    const bool one_part =
        first == last && (limits.fixed_blocks == 0 || blocks <= limits.fixed_blocks);
    if (one_part && last == Tier::kDevice) return KvPath::kResident;
    if (first == last && last == Tier::kDevice) return KvPath::kPartitioned;
    const bool fits = one_part && held_blocks <= limits.staging_blocks;
    const bool can_stage = most_staged_rows(part_limits()) > 0 && !(limits.sparse && generates);
    SPW_CHECK(fits || can_stage || last == Tier::kHost, kOutOfMemory,
              "the KV of a sequence of {} tokens lives on disk, and there is room for {} of a "
              "layer where it is computed; leave more memory free, or shorten the sequence",
              end, limits.staging_blocks * kKvBlockTokens);
    SPW_ASSERT(first == last || !limits.sparse);
    const bool in_host = first == Tier::kHost || last == Tier::kHost ||
                         (first != last && touches_host(sequence, blocks));
    if (!in_host) return fits ? KvPath::kSwapped : KvPath::kPartitioned;
    const KvPath on_device = fits ? KvPath::kSwapped : KvPath::kPartitioned;
    const KvPath by_host = first == last ? KvPath::kHost : KvPath::kSharedPartitions;
    if (!fits && !can_stage) return by_host;
    if (!generates) return on_device;
    // A sequence that does not fit into staging is itself divided between device and host.
    if (!fits) {
      return limits.host_share <= 0  ? on_device
             : limits.host_share < 1 ? KvPath::kSharedPartitions
                                     : by_host;
    }
    // Spreads the host's sequences evenly over micro-batches, so that host and device are always
    // busy.
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
        const int64_t most = path == KvPath::kPartitioned ? most_rows(sequence, first) : together;
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
    // Sequences fill micro-batches in order, so `batch` only moves forward.
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
  // Returns how many rows with partitioned KV may be in one micro-batch: if what they write is not
  // on the device, it must fit into staging.
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
    batch.other_groups.resize(static_cast<size_t>(groups() - 1));
    for (const Part& part : parts) {
      if (has_partitions(part.path)) {
        add_parted(batch, part);
      } else {
        add_part(batch, part);
      }
    }
    for (int group = 0; group < groups(); ++group) list_other_spans(batch, group);
  }

  // Lists the spans that ops on the device take besides those of the first layer group's resident
  // rows.
  void list_other_spans(MicroBatch& batch, int group) const {
    KvRows& of = batch.of(group);
    if (group > 0 && of.resident.rows > 0) batch.other_spans.push_back(of.resident.spans);
    for (SwapGroup& swap : of.swaps) {
      if (swap.partitioned) {
        swap.first_row = of.partitioned.first_row;
        swap.rows = of.partitioned.rows;
      }
      batch.other_spans.push_back(swap.spans);
      if (!swap.written.empty()) batch.other_spans.push_back(swap.written);
    }
    if (!of.partitioned.written.empty()) batch.other_spans.push_back(of.partitioned.written);
    for (const auto& spans : of.partitioned.resident) batch.other_spans.push_back(spans);
  }

  std::span<const BlockId> table_of(const Part& part, int group, int64_t blocks) const {
    return sequences[part.sequence].table(group).first(static_cast<size_t>(blocks));
  }

  // Adds one swap group in each layer group.
  void add_swap_group(MicroBatch& batch, Tier tier, bool partitioned, bool continues) const {
    for (int group = 0; group < groups(); ++group) {
      SwapGroup& made = batch.of(group).swaps.emplace_back();
      made.tier = tier;
      made.partitioned = partitioned;
      made.continues = continues;
    }
  }

  // Returns the rows of a layer group that a part's rows are added to.
  static PathRows& rows_for(KvRows& of, KvPath path) {
    if (path == KvPath::kResident) return of.resident;
    return path == KvPath::kHost ? of.on_host : static_cast<PathRows&>(of.swaps.back());
  }

  // Makes sure that the last swap group is of the part's tier and has room for its pages, in all
  // layer groups.
  void find_swap_group(MicroBatch& batch, const Part& part, int64_t blocks) const {
    const Tier tier = sequences[part.sequence].block_table.front().tier;
    bool is_new = batch.swaps.empty() || batch.swaps.back().tier != tier;
    for (int group = 0; group < groups() && !is_new; ++group) {
      const int64_t more = held(table_of(part, group, blocks));
      is_new = batch.of(group).swaps.back().staging_blocks + more > limits.staging_blocks;
    }
    if (is_new) add_swap_group(batch, tier, /*partitioned=*/false, /*continues=*/false);
    for (int group = 0; group < groups() && part.first > 0; ++group)
      batch.of(group).swaps.back().continues = true;
  }

  // Appends a part's tokens to the micro-batch.
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
    const int64_t blocks = blocks_after(sequence, part);
    if (part.path == KvPath::kSwapped) find_swap_group(batch, part, blocks);
    for (int group = 0; group < groups(); ++group) {
      KvRows& of = batch.of(group);
      PathRows& path = rows_for(of, part.path);
      if (path.rows == 0) path.first_row = batch.tokens;
      const std::span<const BlockId> table = table_of(part, group, blocks);
      const std::span<const int32_t> home = home_of(batch, part, group);
      const int32_t start = sequence.start + part.first;
      const SequenceSpan span{path.rows,
                              part.count,
                              start,
                              part.path == KvPath::kSwapped
                                  ? stage_table(batch, of.swaps.back(), table, start, home.size())
                                  : numbers_in(tier_of(part.path), batch, table),
                              home,
                              sequence.generates};
      for (const SequenceSpan& together : attended_together(span)) {
        add_visible(group, together, /*begin=*/0, path.spans);
        if (part.path == KvPath::kHost)
          add_visible(group, together, /*begin=*/0, of.on_host.written);
      }
      path.rows += part.count;
    }
    add_tokens(batch, part);
    written_from[part.sequence] = sequence.start + part.first;
  }
  static Tier tier_of(KvPath path) {
    return path == KvPath::kResident ? Tier::kDevice : Tier::kHost;
  }

  // Makes a span of each row with sparse attention, since each row chooses its own positions.
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

  // Adds rows whose KV is partitioned.
  void add_parted(MicroBatch& batch, const Part& part) {
    const StepSequence& sequence = sequences[part.sequence];
    const bool shared = part.path == KvPath::kSharedPartitions;
    const int64_t blocks = blocks_after(sequence, part);
    const int32_t start = sequence.start + part.first;
    for (int group = 0; group < groups(); ++group) {
      KvRows& of = batch.of(group);
      if (of.partitioned.rows == 0) of.partitioned.first_row = batch.tokens;
      if (shared && of.on_host.rows == 0) of.on_host.first_row = batch.tokens;
    }
    size_t resident = 0;
    for (const KvPartition& partition :
         partition_sequence(table_of(part, 0, blocks), start / kKvBlockTokens,
                            shared ? host_share() : 0, part_limits())) {
      if (partition.tier == Tier::kDevice) {
        ++resident;
      } else if (!partition.stays) {
        // A partition with KV that the sequence's previous rows wrote can be loaded only after that
        // has been stored. What was written earlier has been: at most two groups are on the device.
        static_assert(kKvStagingBuffers == 2);
        const bool continues = part.first > 0 &&
                               partition.end * kKvBlockTokens > written_from[part.sequence] &&
                               partition.begin * kKvBlockTokens < start;
        if (!find_partition_group(batch, part, partition, continues)) continue;
      }
      for (int group = 0; group < groups(); ++group)
        add_partition(batch, group, part, partition, resident);
    }
    for (int group = 0; group < groups(); ++group) {
      KvRows& of = batch.of(group);
      of.partitioned.rows += part.count;
      if (!shared) continue;
      of.on_host.rows += part.count;
      of.on_host.shared_rows += part.count;
    }
    add_tokens(batch, part);
    written_from[part.sequence] = start;
  }

  // Adds a partition to a layer group that holds blocks of it. `resident` is the number of
  // partitions on the device up to this one.
  void add_partition(MicroBatch& batch, int group, const Part& part, const KvPartition& partition,
                     size_t resident) {
    KvRows& of = batch.of(group);
    const int32_t start = sequences[part.sequence].start + part.first;
    const std::span<const BlockId> blocks = blocks_in(part, partition, group);
    if (held(blocks) == 0) return;
    SequenceSpan span{of.partitioned.rows,
                      part.count,
                      start - static_cast<int32_t>(partition.begin) * kKvBlockTokens,
                      {}};
    if (partition.tier == Tier::kDevice) {
      span.block_table = numbers_in(Tier::kDevice, batch, blocks);
      if (of.partitioned.resident.size() < resident) of.partitioned.resident.resize(resident);
      add_visible(group, span, partition.begin, of.partitioned.resident[resident - 1]);
      if (partition.holds_rows) add_visible(group, span, partition.begin, of.partitioned.written);
    } else if (partition.stays) {
      span.first_row = of.on_host.rows;
      span.block_table = numbers_in(Tier::kHost, batch, blocks);
      add_visible(group, span, partition.begin, of.on_host.shared);
      if (partition.holds_rows) add_visible(group, span, partition.begin, of.on_host.written);
    } else {
      SwapGroup& swap = of.swaps.back();
      span.block_table = stage_table(batch, swap, blocks,
                                     start - static_cast<int32_t>(partition.begin) * kKvBlockTokens,
                                     /*at_home=*/0);
      add_visible(group, span, partition.begin, swap.spans);
      if (partition.holds_rows) add_visible(group, span, partition.begin, swap.written);
    }
  }

  // Returns the host's share of a sequence's blocks in host memory, for sequences of
  // kSharedPartitions.
  double host_share() const {
    return most_staged_rows(part_limits()) > 0 ? std::min(1.0, limits.host_share) : 1;
  }

  // Gives released blocks the number of the first held block. No row attends to them, but kernels
  // that read whole partitions and mask what is before a window need valid numbers there.
  static void fill_released(std::vector<int32_t>& table, std::span<const BlockId> blocks) {
    const size_t released = blocks.size() - static_cast<size_t>(held(blocks));
    std::fill_n(table.begin(), released, released < table.size() ? table[released] : 0);
  }

  static std::span<const int32_t> numbers_in(Tier tier, MicroBatch& batch,
                                             std::span<const BlockId> blocks) {
    std::vector<int32_t>& table = batch.tables_.emplace_back();
    table.reserve(blocks.size());
    for (const BlockId block : blocks) table.push_back(block.number_in(tier));
    fill_released(table, blocks);
    return table;
  }

  std::span<const BlockId> blocks_in(const Part& part, const KvPartition& partition,
                                     int group) const {
    return sequences[part.sequence].table(group).subspan(
        static_cast<size_t>(partition.begin), static_cast<size_t>(partition.end - partition.begin));
  }

  // Makes sure that the last swap group has room for a partition that comes to the device, in all
  // layer groups, and does not have the same rows already. Returns false if no layer group holds
  // any block of the partition.
  bool find_partition_group(MicroBatch& batch, const Part& part, const KvPartition& partition,
                            bool continues) const {
    bool is_new = batch.swaps.empty() || continues, is_held = false;
    for (int group = 0; group < groups(); ++group) {
      const int64_t more = held(blocks_in(part, partition, group));
      is_held = is_held || more > 0;
      if (is_new) continue;
      const SwapGroup& last = batch.of(group).swaps.back();
      is_new =
          !last.partitioned || last.tier != partition.tier ||
          last.staging_blocks + more > limits.staging_blocks ||
          (!last.spans.empty() && last.spans.back().first_row == batch.of(group).partitioned.rows);
    }
    if (!is_held) return false;
    if (is_new) add_swap_group(batch, partition.tier, /*partitioned=*/true, continues);
    return true;
  }

  // Adds a span whose table begins with block `begin` of the sequence. In a layer group with
  // chunked attention the rows of each chunk become a span of their own, whose table begins with
  // the chunk: these rows do not see what came before it.
  void add_visible(int group, const SequenceSpan& span, int64_t begin,
                   std::vector<SequenceSpan>& spans) const {
    const StateRule& rule = limits.rules[static_cast<size_t>(group)];
    if (rule.kind != StateKind::kChunk) return spans.push_back(span);
    const int64_t first = begin * kKvBlockTokens;
    for (int32_t row = 0; row < span.rows;) {
      const int64_t position = first + span.start + row;
      const int64_t chunk = rule.first_reachable(position);
      const auto rows =
          static_cast<int32_t>(std::min<int64_t>(span.rows - row, chunk + rule.window - position));
      const auto hidden = static_cast<size_t>(std::max<int64_t>(chunk - first, 0) / kKvBlockTokens);
      if (hidden < span.block_table.size()) {
        SequenceSpan& seen = spans.emplace_back(span);
        seen.first_row += row;
        seen.rows = rows;
        seen.start += row - static_cast<int32_t>(hidden) * kKvBlockTokens;
        seen.block_table = span.block_table.subspan(hidden);
        seen.home = span.home.subspan(std::min(hidden, span.home.size()));
      }
      row += rows;
    }
  }

  // Loads a block that has content already, and stores a block that is written to. `at` is its
  // place in the table.
  static void add_moves(BlockId home, int32_t staging, int32_t at, int32_t first_new,
                        SwapGroup& group, std::vector<BlockMove>& loads) {
    if (at * kKvBlockTokens < first_new) loads.push_back({home, staging});
    if ((at + 1) * kKvBlockTokens > first_new) group.stores.push_back({home, staging});
  }

  // Returns the blocks whose V stays in host memory: full ones, from earlier steps.
  std::span<const int32_t> home_of(MicroBatch& batch, const Part& part, int group) const {
    const StepSequence& sequence = sequences[part.sequence];
    if (!limits.values_stay || part.path != KvPath::kSwapped || !sequence.generates ||
        sequence.block_table.front().tier != Tier::kHost) {
      return {};
    }
    const int64_t full = (int64_t{sequence.start} + part.first) / kKvBlockTokens;
    return numbers_in(Tier::kHost, batch, table_of(part, group, full));
  }

  // Gives each held block a place in staging, and returns the table of these places. `first_new` is
  // the first position of the table that is written. Of the first `at_home` blocks only K moves.
  static std::span<const int32_t> stage_table(MicroBatch& batch, SwapGroup& group,
                                              std::span<const BlockId> blocks, int32_t first_new,
                                              size_t at_home) {
    std::vector<int32_t>& table = batch.tables_.emplace_back(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].is_released()) continue;
      table[i] = group.staging_blocks++;
      add_moves(blocks[i], table[i], static_cast<int32_t>(i), first_new, group,
                i < at_home ? group.key_loads : group.loads);
    }
    fill_released(table, blocks);
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
