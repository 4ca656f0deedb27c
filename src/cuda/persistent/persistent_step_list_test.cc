// SPDX-License-Identifier: Apache-2.0
// Compares the order in which the persistent step copies with that in which it computes, on the
// host: random lists of phases, every warp of every thread block.
#include "cuda/persistent/persistent_step_list.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace spillway::cuda {
namespace {

class RandomStep {
 public:
  // `block_elements` is the block size of packed rows; 0 means rows of F16. Phases have weights of
  // Q4_K or Q6_K, which only matters for MixedSizes.
  RandomStep(int head_dim, int chunk, uint32_t seed, int block_elements = 0)
      : random_(seed), block_elements_(block_elements), phases_(new StepPhases()) {
    blocks_ = pick(1, 9);
    phases_->count = pick(1, 12);
    for (int32_t& block : table_) block = pick(0, 999);
    position_ = pick(0, pick(0, 1) == 0 ? 2000 : 40);
    PhaseSequence& s = phases_->sequence;
    s.position = &position_;
    s.block_table = table_.data();
    s.block_bytes = int64_t{1} << 20;
    s.head_dim = head_dim;
    PhaseAttends& attends = phases_->attends;
    attends.kv_heads = pick(1, 5);
    attends.heads = attends.kv_heads * (chunk == 1 ? 1 : pick(1, 7));
    attends.window = pick(0, 2) == 0 ? pick(1, 100) : 0;
    phases_->appends.interleaved = pick(0, 1) == 0;
    for (int i = 0; i < phases_->count; ++i) {
      phases_->phases[i].pairs = fill(phases_->phases[i], i, head_dim);
      pairs_.push_back(phases_->phases[i].pairs);
    }
  }

  const StepPhases& step() const { return *phases_; }
  int blocks() const { return blocks_; }
  int pairs(int phase) const { return pairs_[static_cast<size_t>(phase)]; }
  // The plane of K (1) or V (2).
  const std::byte* plane(const StepPhase& phase, int i) const {
    return planes_[&phase - phases_->phases][i];
  }
  int32_t table(int page) const { return table_[static_cast<size_t>(page)]; }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Returns the phase's pairs of rows, or sets of groups. Addresses are made up: nothing reads from
  // them.
  int fill(StepPhase& phase, int index, int head_dim) {
    phase.kind = static_cast<PhaseKind>(pick(0, 3));
    phase.weights = pick(0, 1) == 0 ? DType::kQ4_K : DType::kQ6_K;
    const bool packed = block_elements_ > 0;
    phase.k = packed ? block_elements_ * pick(1, 90) : 8 * pick(1, pick(0, 1) == 0 ? 40 : 1500);
    for (uintptr_t i = 0; i < 3; ++i) {
      const uintptr_t place = static_cast<uintptr_t>(index) << 44;
      phase.w[i] = reinterpret_cast<const std::byte*>(place | (i + 1) << 40);
      phase.out[i] = reinterpret_cast<std::byte*>(place | (i + 5) << 40);
      planes_[index][i] = reinterpret_cast<std::byte*>(place | (i + 9) << 40);
    }
    if (pick(0, 1) == 0) {
      kv_[index] = {planes_[index][1], planes_[index][2]};
      phase.kv_table = &kv_[index];
    } else {
      for (int i = 0; i < 3; ++i) planes_[index][i] = phase.out[i];
    }
    const auto rows = [&] {
      if (phase.kind == PhaseKind::kAppend) return head_dim * pick(1, 4);
      return (packed ? kGroupRowCount : 1) * pick(1, pick(0, 1) == 0 ? 300 : 9);
    };
    switch (phase.kind) {
      case PhaseKind::kAttention:
        return 0;
      case PhaseKind::kGated:
        phase.n[0] = phase.n[1] = rows();
        return packed ? phase.n[0] / kGroupRowCount : phase.n[0];
      case PhaseKind::kLinear:
      case PhaseKind::kAppend:
        break;
    }
    int pairs = 0;
    const int matrices = phase.kind == PhaseKind::kAppend ? 3 : pick(1, 3);
    // Some of q, k and v may be of another type, and so in another phase.
    const int left_out =
        packed && matrices == 3 && phase.kind == PhaseKind::kAppend ? pick(0, 6) : 0;
    for (int i = 0; i < matrices; ++i) {
      if ((left_out >> i & 1) != 0) continue;
      phase.n[i] = rows();
      pairs +=
          packed ? phase.n[i] / (kGroupRowCount * set_groups(phase.kind)) : (phase.n[i] + 1) / 2;
    }
    return pairs;
  }

  std::mt19937 random_;
  int block_elements_;
  std::unique_ptr<StepPhases> phases_;
  int blocks_ = 0;
  std::vector<int32_t> table_ = std::vector<int32_t>(200);
  int32_t position_ = 0;
  std::byte* planes_[kStepPhases][3] = {};
  KvPlanes kv_[kStepPhases] = {};
  std::vector<int> pairs_;
};

template <int D, class Cursor>
void expect_pages(const RandomStep& made, const StepPhase& phase, const StepToken& token,
                  const GridSeat& seat, Cursor& copies) {
  for (int item = seat.block; item < token.items; item += seat.blocks) {
    const int part = item % token.parts;
    const int head = item / token.parts / token.query_chunks;
    const int begin = token.first_page + part * token.pages_per_part;
    for (int page = seat.warp; page < token.part_full_pages(part); page += kStepWarps) {
      for (const int plane : {1, 2}) {
        ASSERT_TRUE(!copies.at_end() && copies.is_page());
        ASSERT_EQ(copies.page(), made.plane(phase, plane) +
                                     made.table(begin + page) * made.step().sequence.block_bytes +
                                     head * (kKvBlockTokens * D * 2));
        copies.advance();
      }
    }
  }
}

// Goes through all warps of all blocks, phase by phase: checks attention's pages, and calls
// `expect_linear` for the other phases.
template <class Pieces, int D, int G, class F>
void go_through(const RandomStep& made, F&& expect_linear) {
  const StepPhases& step = made.step();
  for (int block = 0; block < made.blocks(); ++block) {
    for (int warp = 0; warp < kStepWarps; ++warp) {
      const GridSeat seat{block, made.blocks(), warp};
      const StepToken token = StepToken::of(step, G, seat.blocks);
      StepCursor<Pieces, D> copies(step, token, seat);
      for (int i = 0; i < step.count; ++i) {
        if (step.phases[i].kind == PhaseKind::kAttention) {
          expect_pages<D>(made, step.phases[i], token, seat, copies);
        } else {
          expect_linear(i, seat, copies);
        }
        if (testing::Test::HasFatalFailure()) return;
      }
      ASSERT_TRUE(copies.at_end());
    }
  }
}

template <int D, int G>
void expect_same_order(uint32_t seed) {
  const RandomStep made(D, G, seed);
  const StepPhases& step = made.step();
  std::vector<int64_t> columns_read(static_cast<size_t>(step.count));
  go_through<PairPieces<D>, D, G>(made, [&](int i, const GridSeat& seat, auto& copies) {
    const StepPhase& phase = step.phases[i];
    const BlockPairs pairs(phase, seat);
    const WarpColumns columns(phase.k, seat.warp);
    for (int p = first_pair(seat.warp); p < pairs.count; p += kRowWarps) {
      const RowPair pair = pair_of<D>(phase, step.appends.interleaved, pairs[p]);
      const bool gated = phase.kind == PhaseKind::kGated;
      ASSERT_LT(pair.row[0], phase.n[pair.part]);
      const int second = std::min(pair.row[1], phase.n[pair.part] - 1);
      for (int column = 0; column < columns.count; column += kPieceColumns) {
        ASSERT_TRUE(!copies.at_end() && !copies.is_page());
        const int64_t at = 2 * (columns.first + column), bytes = int64_t{2} * phase.k;
        ASSERT_EQ(copies.piece().from(0), phase.w[pair.part] + pair.row[0] * bytes + at);
        ASSERT_EQ(copies.piece().from(1), phase.w[gated ? 1 : pair.part] + second * bytes + at);
        ASSERT_EQ(copies.piece().bytes(), 2 * std::min(kPieceColumns, columns.count - column));
        copies.advance();
      }
      columns_read[static_cast<size_t>(i)] += columns.count;
    }
  });
  if (testing::Test::HasFatalFailure()) return;
  for (int i = 0; i < step.count; ++i) {
    ASSERT_EQ(columns_read[static_cast<size_t>(i)], int64_t{made.pairs(i)} * step.phases[i].k);
  }
}

// Checks the same for packed rows, and that every group of every matrix is read once, by all warps
// together.
template <class Sizes, int D, int G>
void expect_same_group_order(uint32_t seed) {
  const RandomStep made(D, G, seed, Sizes::kElements);
  const StepPhases& step = made.step();
  std::vector<std::map<std::pair<int, int>, int>> blocks_read(static_cast<size_t>(step.count));
  go_through<SizedPieces<Sizes, D>, D, G>(made, [&](int i, const GridSeat& seat, auto& copies) {
    const StepPhase& phase = step.phases[i];
    Sizes sizes;
    sizes.set(phase);
    const int block_bytes = sizes.block_bytes(), stage_blocks = sizes.stage_bytes() / block_bytes;
    const BlockPairs sets(phase, seat);
    const WarpBlocks<Sizes::kElements> mine(phase.k, seat.warp);
    const int64_t row_bytes = int64_t{phase.k} / Sizes::kElements * block_bytes / kGroupRowCount;
    for (int s = 0; s < sets.count; ++s) {
      for (int item = 0; item < set_groups(phase.kind); ++item) {
        const RowGroup group = group_of<D>(phase, step.appends.interleaved, sets[s], item);
        ASSERT_LE(group.row + kGroupRowCount, phase.n[group.part]);
        for (int b = 0; b < mine.count; b += stage_blocks) {
          ASSERT_TRUE(!copies.at_end() && !copies.is_page());
          ASSERT_EQ(copies.piece().from(0),
                    phase.w[group.part] + group.row * row_bytes + (mine.first + b) * block_bytes);
          ASSERT_EQ(copies.piece().bytes(), std::min(stage_blocks, mine.count - b) * block_bytes);
          copies.advance();
        }
        blocks_read[static_cast<size_t>(i)][{group.part, group.row}] += mine.count;
      }
    }
  });
  if (testing::Test::HasFatalFailure()) return;
  for (int i = 0; i < step.count; ++i) {
    const StepPhase& phase = step.phases[i];
    if (phase.kind == PhaseKind::kAttention) continue;
    const auto& read = blocks_read[static_cast<size_t>(i)];
    ASSERT_EQ(static_cast<int>(read.size()),
              (phase.n[0] + phase.n[1] + phase.n[2]) / kGroupRowCount);
    for (const auto& [group, blocks] : read) ASSERT_EQ(blocks, phase.k / Sizes::kElements);
  }
}

TEST(PersistentStepListTest, PackedGroupsToo) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_group_order<GroupSizes<BlockQ4_0>, 64, 4>(seed);
    expect_same_group_order<GroupSizes<BlockQ4_0>, 128, 1>(seed);
    expect_same_group_order<GroupSizes<BlockQ4_1>, 128, 4>(seed);
    expect_same_group_order<GroupSizes<BlockG4>, 128, 4>(seed);
    expect_same_group_order<GroupSizes<BlockQ8_0>, 128, 4>(seed);
    expect_same_group_order<GroupSizes<BlockQ4_K>, 64, 1>(seed);
    expect_same_group_order<GroupSizes<BlockQ6_K>, 128, 4>(seed);
    expect_same_group_order<MixedSizes<BlockQ4_K, BlockQ6_K, DType::kQ6_K>, 128, 4>(seed);
    expect_same_group_order<MixedSizes<BlockQ5_K, BlockQ6_K, DType::kQ6_K>, 64, 1>(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(PersistentStepListTest, CopiesComeInTheOrderOfTheComputation) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_order<64, 1>(seed);
    expect_same_order<64, 4>(seed);
    expect_same_order<128, 1>(seed);
    expect_same_order<128, 4>(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(PersistentStepListTest, PartsCoverWhatTheTokenSees) {
  const std::vector<int32_t> table(4096);
  for (const int window : {0, 1, 16, 100, 5000}) {
    for (int32_t position : {0, 15, 16, 255, 256, 511, 8191, 40000}) {
      const auto step = std::make_unique<StepPhases>();
      step->sequence = {&position, table.data(), 1, 128};
      step->attends = {.heads = 32, .kv_heads = 8, .window = window};
      const StepToken token = StepToken::of(*step, 4, 132);
      int pages = 0;
      for (int part = 0; part < token.parts; ++part) {
        EXPECT_GT(token.part_pages(part), 0);
        pages += token.part_pages(part);
      }
      EXPECT_EQ(pages, token.pages);
      EXPECT_EQ(token.first_page + token.pages - 1, position / kKvBlockTokens);
      EXPECT_LE(token.first_page * kKvBlockTokens, token.first_token);
      EXPECT_EQ(position + 1 - token.first_token,
                window > 0 ? std::min(window, position + 1) : position + 1);
      EXPECT_TRUE(token.parts == 1 || token.items <= 132);
    }
  }
}

}  // namespace
}  // namespace spillway::cuda
