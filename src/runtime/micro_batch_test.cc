// SPDX-License-Identifier: Apache-2.0
#include "runtime/micro_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv/block_allocator.h"

namespace spillway {
namespace {

// A sequence with consecutive blocks of one tier, beginning with `block`. Token i of sequence
// number n has the id 100 * (n + 1) + i.
struct Sequence {
  BlockId block;
  int32_t start, tokens, logits = 1;
};

std::string describe(const std::vector<BlockMove>& moves) {
  std::string text;
  for (const BlockMove& move : moves) text += fmt::format(" {}>{}", move.home.number, move.staging);
  return text;
}

// Each span as row+rows@start and its block table; of long tables the first and last block.
std::string describe(const std::vector<SequenceSpan>& spans) {
  std::string text;
  for (const SequenceSpan& span : spans) {
    const bool many = span.block_table.size() > 8;
    text +=
        fmt::format(" {}+{}@{} [{}]", span.first_row, span.rows, span.start,
                    many ? fmt::format("{}..{}", span.block_table.front(), span.block_table.back())
                         : fmt::format("{}", fmt::join(span.block_table, " ")));
    if (!span.home.empty()) text += fmt::format(" home [{}]", fmt::join(span.home, " "));
  }
  return text;
}

// The rows of a path, as first+count.
std::string describe(const char* name, const PathRows& path) {
  return fmt::format("  {} {}+{}:{}\n", name, path.first_row, path.rows, describe(path.spans));
}

// The rows with partitioned KV, without swap groups.
std::string describe_partitioned(const MicroBatch& batch) {
  const PartitionedRows& partitioned = batch.partitioned;
  std::string text = fmt::format("  parted {}+{}\n", partitioned.first_row, partitioned.rows);
  if (!partitioned.written.empty())
    text += fmt::format("    written{}\n", describe(partitioned.written));
  for (const auto& spans : partitioned.resident)
    text += fmt::format("    resident{}\n", describe(spans));
  return text;
}

std::string describe(const CutStep& step) {
  std::string text;
  for (const MicroBatch& batch : step.batches) {
    text += fmt::format("{}+{}: {}\n", batch.first_row, batch.tokens, fmt::join(batch.ids, " "));
    if (batch.resident.rows > 0) text += describe("resident", batch.resident);
    if (batch.partitioned.rows > 0) text += describe_partitioned(batch);
    for (const SwapGroup& group : batch.swaps) {
      for (const auto* moves : {&group.loads, &group.key_loads, &group.stores})
        for (const BlockMove& move : *moves) EXPECT_EQ(move.home.tier, group.tier);
      text += describe(group.tier == Tier::kDisk ? "from disk" : "swapped", group);
      text += fmt::format("    in{}", describe(group.loads));
      if (!group.key_loads.empty()) text += fmt::format(", keys{}", describe(group.key_loads));
      text +=
          fmt::format(", out{}{}\n", describe(group.stores), group.continues ? ", continues" : "");
      if (group.partitioned) text += fmt::format("    written{}\n", describe(group.written));
    }
    if (batch.on_host.rows > 0) text += describe("host", batch.on_host);
    if (batch.on_host.shared_rows > 0)
      text += fmt::format("    shared{}\n", describe(batch.on_host.shared));
    if (!batch.logit_rows.empty()) {
      text +=
          fmt::format("  logits {} from {}\n", fmt::join(batch.logit_rows, " "), batch.first_logit);
    }
  }
  return text;
}

class CutStepTest : public testing::Test {
 protected:
  // A step with the memory that its sequences point to.
  struct Step {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<BlockId>> tables;
    std::vector<StepSequence> sequences;
  };
  static Step step_of(const std::vector<Sequence>& of) {
    Step step;
    for (const Sequence& sequence : of) {
      auto& tokens = step.tokens.emplace_back(static_cast<size_t>(sequence.tokens));
      std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(100 * step.tokens.size()));
      const int64_t end = int64_t{sequence.start} + sequence.tokens;
      // One block more than the sequence needs.
      step.tables.push_back(
          block_range(sequence.block.number, blocks_for_tokens(end) + 1, sequence.block.tier));
    }
    for (size_t i = 0; i < of.size(); ++i)
      step.sequences.push_back({step.tokens[i], of[i].start, step.tables[i], of[i].logits,
                                /*generates=*/of[i].tokens == 1});
    return step;
  }
  static CutStep cut(const Step& step, const MicroBatchLimits& limits) {
    return cut_step(step.sequences, limits);
  }
};

struct CutCase {
  const char* name;
  MicroBatchLimits limits;
  std::vector<Sequence> sequences;
  const char* expected;
};

const CutCase kCases[] = {
    {"AllFitTogether",
     {.tokens = 8},
     {{DeviceBlock{0}, 0, 3}, {DeviceBlock{4}, 20, 1}, {DeviceBlock{8}, 0, 2, 0}},
     "0+6: 100 101 102 200 300 301\n"
     "  resident 0+6: 0+3@0 [0] 3+1@20 [4 5] 4+2@0 [8]\n"
     "  logits 2 3 from 0\n"},
    {"PromptsAreCutWhereAMicroBatchIsFull",
     {.tokens = 4},
     {{DeviceBlock{0}, 0, 3}, {DeviceBlock{4}, 14, 6, 2}},
     "0+4: 100 101 102 200\n"
     "  resident 0+4: 0+3@0 [0] 3+1@14 [4]\n"
     "  logits 2 from 0\n"
     "4+4: 201 202 203 204\n"
     "  resident 0+4: 0+4@15 [4 5]\n"
     "  logits 3 from 1\n"
     "8+1: 205\n"
     "  resident 0+1: 0+1@19 [4 5]\n"
     "  logits 0 from 2\n"},
    {"NoMoreSequencesThanTheLimit",
     {.tokens = 8, .sequences = 2},
     {{DeviceBlock{0}, 3, 1}, {DeviceBlock{1}, 3, 1}, {DeviceBlock{2}, 3, 1}},
     "0+2: 100 200\n"
     "  resident 0+2: 0+1@3 [0] 1+1@3 [1]\n"
     "  logits 0 1 from 0\n"
     "2+1: 300\n"
     "  resident 0+1: 0+1@3 [2]\n"
     "  logits 0 from 2\n"},
    {"PositionsOfATableAreOffset",
     {.tokens = 8, .position_offset = 2},
     {{DeviceBlock{0}, 5, 2}},
     "0+2: 100 101\n"
     "  resident 0+2: 0+2@5 [0]\n"
     "  logits 1 from 0\n"},
    // The token at position 33 is written to the third block, which must be loaded, too.
    {"PagesInHostMemoryComeIn",
     {.tokens = 8, .staging_blocks = 8, .host_share = 0},
     {{HostBlock{3}, 33, 1}},
     "0+1: 100\n"
     "  swapped 0+1: 0+1@33 [0 1 2]\n"
     "    in 3>0 4>1 5>2, out 5>2\n"
     "  logits 0 from 0\n"},
    {"BlocksThatAreNewOnlyGoBack",
     {.tokens = 64, .staging_blocks = 8},
     {{HostBlock{0}, 16, 20}},
     "0+20: 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119\n"
     "  swapped 0+20: 0+20@16 [0 1 2]\n"
     "    in 0>0, out 1>1 2>2\n"
     "  logits 19 from 0\n"},
    {"GroupsAreAsLargeAsStagingHolds",
     {.tokens = 8, .staging_blocks = 3, .host_share = 0},
     {{HostBlock{0}, 3, 1}, {HostBlock{5}, 16, 1}, {HostBlock{9}, 2, 1}},
     "0+3: 100 200 300\n"
     "  swapped 0+2: 0+1@3 [0] 1+1@16 [1 2]\n"
     "    in 0>0 5>1, out 0>0 6>2\n"
     "  swapped 2+1: 0+1@2 [0]\n"
     "    in 9>0, out 9>0\n"
     "  logits 0 1 2 from 0\n"},
    {"APromptThatGoesOnReadsWhatWasWritten",
     {.tokens = 4, .staging_blocks = 8},
     {{HostBlock{0}, 14, 6}},
     "0+4: 100 101 102 103\n"
     "  swapped 0+4: 0+4@14 [0 1]\n"
     "    in 0>0, out 0>0 1>1\n"
     "4+2: 104 105\n"
     "  swapped 0+2: 0+2@18 [0 1]\n"
     "    in 0>0 1>1, out 1>1, continues\n"
     "  logits 1 from 0\n"},
    {"TheHostAttendsToItsShare",
     {.tokens = 8, .staging_blocks = 8, .host_share = 0.5},
     {{HostBlock{0}, 3, 1}, {HostBlock{1}, 3, 1}, {HostBlock{2}, 3, 1}, {HostBlock{3}, 3, 1}},
     "0+4: 100 300 200 400\n"
     "  swapped 0+2: 0+1@3 [0] 1+1@3 [1]\n"
     "    in 0>0 2>1, out 0>0 2>1\n"
     "  host 2+2: 0+1@3 [1] 1+1@3 [3]\n"
     "  logits 0 2 1 3 from 0\n"},
    {"RowsAreInTheOrderOfTheirPaths",
     {.tokens = 8, .staging_blocks = 8},
     {{HostBlock{0}, 3, 1}, {HostBlock{8}, 0, 2}, {DeviceBlock{7}, 3, 1}},
     "0+4: 300 200 201 100\n"
     "  resident 0+1: 0+1@3 [7]\n"
     "  swapped 1+2: 0+2@0 [0]\n"
     "    in, out 8>0\n"
     "  host 3+1: 0+1@3 [0]\n"
     "  logits 3 2 0 from 0\n"},
    {"WhatStagingCannotHoldIsTheHosts",
     {.tokens = 64, .staging_blocks = 2},
     {{HostBlock{0}, 20, 18}},
     "0+18: 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117\n"
     "  host 0+18: 0+18@20 [0 1 2]\n"
     "  logits 17 from 0\n"},
    {"PagesOnDiskAlwaysComeInAndApartFromTheHosts",
     {.tokens = 8, .staging_blocks = 8, .host_share = 0},
     {{HostBlock{1}, 3, 1}, {DiskBlock{2}, 17, 1}},
     "0+2: 100 200\n"
     "  swapped 0+1: 0+1@3 [0]\n"
     "    in 1>0, out 1>0\n"
     "  from disk 1+1: 0+1@17 [0 1]\n"
     "    in 2>0 3>1, out 3>1\n"
     "  logits 0 1 from 0\n"},
    // V of full blocks stays in host memory. V of the block that is written to is loaded and
    // stored.
    {"ValuesStayWhereRowsAttendToFew",
     {.tokens = 8, .staging_blocks = 12, .host_share = 0, .values_stay = true},
     {{HostBlock{4}, 40, 1}, {HostBlock{20}, 5, 1}, {HostBlock{30}, 16, 2}},
     "0+4: 100 200 300 301\n"
     "  swapped 0+4: 0+1@40 [0 1 2] home [4 5] 1+1@5 [3] 2+2@16 [4 5]\n"
     "    in 6>2 20>3 30>4, keys 4>0 5>1, out 6>2 20>3 31>5\n"
     "  logits 0 1 3 from 0\n"},
    {"OnDiskNoValuesStay",
     {.tokens = 8, .staging_blocks = 8, .values_stay = true},
     {{DiskBlock{0}, 17, 1}},
     "0+1: 100\n"
     "  from disk 0+1: 0+1@17 [0 1]\n"
     "    in 0>0 1>1, out 1>1\n"
     "  logits 0 from 0\n"},
};

TEST_F(CutStepTest, CutsAsTheTableSays) {
  for (const CutCase& c : kCases) {
    const Step step = step_of(c.sequences);
    EXPECT_EQ(describe(cut(step, c.limits)), c.expected) << c.name;
  }
}

// Sequences with 16 blocks on the device, then as many as wanted in host memory, and the rest on
// disk.
class CutPartsTest : public CutStepTest {
 protected:
  struct Parts {
    int32_t on_device, on_host, start, tokens;
  };
  static std::string cut_parts(const Parts& of, const MicroBatchLimits& limits) {
    std::vector<int32_t> tokens(static_cast<size_t>(of.tokens));
    std::vector<BlockId> table;
    std::iota(tokens.begin(), tokens.end(), 100);
    for (int32_t i = 0; i < blocks_for_tokens(of.start + of.tokens); ++i) {
      if (i < of.on_device) {
        table.push_back(DeviceBlock{i});
      } else if (i < of.on_device + of.on_host) {
        table.push_back(HostBlock{i - of.on_device});
      } else {
        table.push_back(DiskBlock{i - of.on_device - of.on_host});
      }
    }
    const StepSequence sequence{tokens, of.start, table, 1, /*generates=*/of.tokens == 1};
    std::string text = describe(cut_step({&sequence, 1}, limits));
    // Leave out the token ids.
    return text.substr(text.find('\n') + 1);
  }
};

TEST_F(CutPartsTest, ATokenIsSharedByDeviceAndHost) {
  EXPECT_EQ(cut_parts({16, 40, 300, 1}, {.tokens = 8, .staging_blocks = 8}),
            "  parted 0+1\n"
            "    resident 0+1@300 [0..15]\n"
            "  host 0+1:\n"
            "    shared 0+1@44 [0 1 2]\n"
            "  logits 0 from 0\n");
  // If there is room in staging and the host has a share, a partition in host memory comes to the
  // device.
  EXPECT_EQ(
      cut_parts({16, 40, 780, 1}, {.tokens = 8, .staging_blocks = 33, .host_share = 0.5}),
      "  parted 0+1\n"
      "    resident 0+1@780 [0..15]\n"
      "  swapped 0+1: 0+1@524 [0..15]\n"
      "    in 0>0 1>1 2>2 3>3 4>4 5>5 6>6 7>7 8>8 9>9 10>10 11>11 12>12 13>13 14>14 15>15, out\n"
      "    written\n"
      "  host 0+1:\n"
      "    shared 0+1@268 [16..32]\n"
      "  logits 0 from 0\n");
}

TEST_F(CutPartsTest, APromptIsWrittenToOneMemoryAtATime) {
  EXPECT_EQ(cut_parts({16, 40, 254, 4}, {.tokens = 64, .staging_blocks = 33}),
            "  resident 0+2: 0+2@254 [0..15]\n"
            "  parted 2+2\n"
            "    resident 0+2@256 [0..15]\n"
            "  swapped 2+2: 0+2@0 [0]\n"
            "    in, out 0>0\n"
            "    written 0+2@0 [0]\n"
            "  logits 3 from 0\n");
}

TEST_F(CutPartsTest, WhatIsOnDiskComesBehindTheOthers) {
  EXPECT_EQ(cut_parts({16, 16, 512, 1}, {.tokens = 8, .staging_blocks = 33, .host_share = 1}),
            "  parted 0+1\n"
            "    resident 0+1@512 [0..15]\n"
            "  from disk 0+1: 0+1@0 [0]\n"
            "    in, out 0>0\n"
            "    written 0+1@0 [0]\n"
            "  host 0+1:\n"
            "    shared 0+1@256 [0..15]\n"
            "  logits 0 from 0\n");
}

// Without staging only the host can attend to the prompt, whatever its share is.
TEST_F(CutPartsTest, WithoutStagingThePromptIsTheHostsToo) {
  EXPECT_EQ(cut_parts({16, 40, 300, 3}, {.tokens = 8, .staging_blocks = 0, .host_share = 0}),
            "  parted 0+3\n"
            "    resident 0+3@300 [0..15]\n"
            "  host 0+3:\n"
            "    shared 0+3@44 [0 1 2]\n"
            "  logits 2 from 0\n");
}

TEST_F(CutPartsTest, FixedPartsAreCutOnTheDeviceToo) {
  EXPECT_EQ(cut_parts({40, 0, 300, 1}, {.tokens = 8, .staging_blocks = 33, .fixed_blocks = 16}),
            "  parted 0+1\n"
            "    written 0+1@44 [16 17 18]\n"
            "    resident 0+1@300 [0..15]\n"
            "    resident 0+1@44 [16 17 18]\n"
            "  logits 0 from 0\n");
}

TEST_F(CutStepTest, SaysWhereTokensAreInTheirSequences) {
  const Step step = step_of({{DeviceBlock{0}, 5, 3}, {DeviceBlock{4}, 0, 1}});
  const CutStep result = cut(step, {.tokens = 3, .position_offset = 2});
  ASSERT_EQ(result.batches.size(), 2u);
  EXPECT_EQ(result.batches[0].positions, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(result.batches[0].table_rows, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(result.batches[1].positions, (std::vector<int32_t>{0}));
  EXPECT_EQ(result.batches[1].table_rows, (std::vector<int32_t>{2}));
}

TEST_F(CutStepTest, ASequenceOnDiskThatStagingCannotHoldIsAnError) {
  const Step step = step_of({{DiskBlock{0}, 33, 1}});
  EXPECT_THROW(cut(step, {.tokens = 8, .staging_blocks = 2}), Error);
  EXPECT_NO_THROW(cut(step, {.tokens = 8, .staging_blocks = 3}));
}

// Whatever the sequences and limits are, every token is in one micro-batch, no limit is exceeded,
// and the logits are in the order of the sequences.
TEST_F(CutStepTest, EveryTokenOnceAndWithinTheLimits) {
  std::mt19937 random(11);
  const auto pick = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<Sequence> sequences;
    for (int32_t s = 0; s < pick(1, 8); ++s) {
      const int32_t tokens = pick(0, 1) == 0 ? 1 : pick(1, 30);
      const auto tier = static_cast<Tier>(pick(0, 2));
      sequences.push_back({{tier, 5 * s}, pick(0, 33), tokens, pick(0, tokens)});
    }
    const MicroBatchLimits limits{.tokens = pick(1, 40),
                                  .sequences = pick(0, 3),
                                  .staging_blocks = pick(4, 12),
                                  .host_share = pick(0, 4) / 4.0,
                                  .values_stay = pick(0, 1) == 1};
    const Step step = step_of(sequences);
    const CutStep result = cut(step, limits);
    SCOPED_TRACE(describe(result));
    std::vector<int32_t> seen, logits(static_cast<size_t>(result.logits));
    int64_t row = 0;
    for (const MicroBatch& batch : result.batches) {
      EXPECT_EQ(batch.first_row, row);
      EXPECT_LE(batch.tokens, limits.tokens);
      size_t spans = batch.resident.spans.size() + batch.on_host.spans.size();
      int32_t rows = batch.resident.rows + batch.on_host.rows;
      for (const SwapGroup& group : batch.swaps) {
        EXPECT_LE(group.staging_blocks, limits.staging_blocks);
        spans += group.spans.size();
        rows += group.rows;
      }
      EXPECT_EQ(rows, batch.tokens);
      EXPECT_EQ(batch.other_spans.size(), batch.swaps.size());
      if (limits.sequences > 0) {
        EXPECT_LE(spans, static_cast<size_t>(limits.sequences));
      }
      seen.insert(seen.end(), batch.ids.begin(), batch.ids.end());
      for (size_t j = 0; j < batch.logit_rows.size(); ++j) {
        const auto at = static_cast<size_t>(batch.first_logit) + j;
        ASSERT_LT(at, logits.size());
        logits[at] = batch.ids[static_cast<size_t>(batch.logit_rows[j])];
      }
      row += batch.tokens;
    }
    std::vector<int32_t> all, wanted;
    for (const StepSequence& sequence : step.sequences) {
      all.insert(all.end(), sequence.tokens.begin(), sequence.tokens.end());
      const auto last = sequence.tokens.last(static_cast<size_t>(sequence.logit_rows));
      wanted.insert(wanted.end(), last.begin(), last.end());
    }
    std::ranges::sort(seen);
    EXPECT_EQ(seen, all);
    EXPECT_EQ(logits, wanted);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace spillway
