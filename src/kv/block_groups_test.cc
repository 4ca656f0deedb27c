// SPDX-License-Identifier: Apache-2.0
// Tests pools and tables of several groups of layers against a plain model of which table holds
// which block.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kv/block_allocator.h"

namespace spillway {
namespace {

constexpr StateRule kFull{}, kRecurrent{StateKind::kRecurrent};
constexpr StateRule window(int64_t tokens) { return {StateKind::kWindow, tokens}; }
constexpr StateRule chunk(int64_t tokens) { return {StateKind::kChunk, tokens}; }

using Groups = std::vector<GroupPools>;

TEST(BlockGroupsTest, AllGroupsGrowOrNone) {
  BlockAllocator blocks(Groups{{kFull, {8}}, {window(32), {3}}}, 0, 16);
  BlockTable table(blocks);
  ASSERT_TRUE(table.try_reserve(3 * kKvBlockTokens));
  EXPECT_FALSE(table.try_reserve(4 * kKvBlockTokens)) << "the window's pool has three";
  EXPECT_EQ(blocks.free(Tier::kDevice, 0), 5);
  EXPECT_EQ(table.blocks(0).size(), 3u);
  EXPECT_EQ(table.blocks(1), block_range(0, 3, Tier::kDevice, 1));
}

TEST(BlockGroupsTest, AWindowGivesBackWhatIsBehindIt) {
  BlockAllocator blocks(Groups{{kFull, {8}}, {window(32), {4}}}, 0, 16);
  BlockTable table(blocks);
  ASSERT_TRUE(table.try_reserve(4 * kKvBlockTokens));
  table.release_behind(4 * kKvBlockTokens - 2);
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 0) << "drafts may be cut back to where it is reached";
  table.release_behind(4 * kKvBlockTokens - 1);
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 1);
  EXPECT_TRUE(table.blocks(1)[0].is_released());
  EXPECT_EQ(table.blocks(1).size(), 4u) << "entries stay where they are";
  EXPECT_EQ(table.held(1).size(), 3u);
  EXPECT_EQ(table.held(0).size(), 4u);
  ASSERT_TRUE(table.try_reserve(5 * kKvBlockTokens));
  EXPECT_EQ(table.blocks(1).back(), (BlockId{Tier::kDevice, 0, 1})) << "another use of it";
  table.clear();
  EXPECT_EQ(blocks.free(), blocks.total());
}

TEST(BlockGroupsTest, ARecurrentStateIsTakenOnce) {
  BlockAllocator blocks(Groups{{kFull, {8}}, {kRecurrent, {2}}}, 0, 16);
  EXPECT_EQ(blocks.forecast_group(), 0);
  BlockTable first(blocks), second(blocks), third(blocks);
  ASSERT_TRUE(first.try_reserve(1));
  ASSERT_TRUE(first.try_reserve(100));
  EXPECT_EQ(first.blocks(1).size(), 1u);
  ASSERT_TRUE(second.try_reserve(1));
  EXPECT_FALSE(third.try_reserve(1)) << "a sequence has one state, and there are two";
  first.clear();
  EXPECT_TRUE(third.try_reserve(1));
}

// The chosen pool must have room for the expected blocks of every group.
TEST(BlockGroupsTest, APoolIsChosenByTheGroupThatHasLeast) {
  BlockAllocator blocks(Groups{{kFull, {100, 100}}, {window(64), {2, 20}}}, 0, 32);
  BlockTable table(blocks, 50 * kKvBlockTokens);
  ASSERT_TRUE(table.try_reserve(1));
  EXPECT_EQ(table.pool(), Tier::kHost);
  EXPECT_EQ(table.blocks(0).size(), 50u) << "what stays is taken at once";
  EXPECT_EQ(table.blocks(1).size(), 1u);
}

// No pool has room for all expected blocks; the window group's blocks decide how far the
// sequence would get.
TEST(BlockGroupsTest, APoolThatIsTooSmallIsChosenByTheGroupThatIsShort) {
  BlockAllocator blocks(Groups{{kFull, {8, 15}}, {window(108), {8, 7}}}, 0, 24);
  BlockTable table(blocks, 9 * kKvBlockTokens);
  ASSERT_TRUE(table.try_reserve(24));
  EXPECT_EQ(table.pool(), Tier::kDevice);
  EXPECT_TRUE(table.try_reserve(8 * kKvBlockTokens));
}

TEST(BlockGroupsTest, TheLongestSequenceDoesNotDependOnWindowsThatHaveRoom) {
  const int32_t most = static_cast<int32_t>(window(64).most_blocks(1 << 20, 32));
  EXPECT_EQ(BlockAllocator(Groups{{kFull, {100}}, {window(64), {most}}}, 0, 32).longest(), 1600);
  EXPECT_EQ(BlockAllocator(Groups{{kFull, {100}}, {window(64), {most - 1}}}, 0, 32).longest(),
            (most - 1) * kKvBlockTokens);
  EXPECT_GT(BlockAllocator(Groups{{window(64), {most}}}, 0, 32).longest(), 1 << 30);
  EXPECT_EQ(BlockAllocator(Groups{{kFull, {100}}, {kRecurrent, {0}}}, 0, 32).longest(), 0);
  // These window pools have room for whole runs as well.
  EXPECT_EQ(BlockAllocator(Groups{{kFull, {40, 64}}, {window(64), {60, 60}}}, 16, 32).longest(),
            (32 + 64) * kKvBlockTokens);
}

// A sequence of `tokens` tokens, whose blocks have a second holder if `shared`.
struct ToCut {
  BlockAllocator blocks;
  BlockTable table;
  std::vector<BlockId> others = {};

  ToCut(const std::vector<StateRule>& rules, Tier pool, bool shared, int64_t tokens)
      : blocks(groups_of(rules, pool), 0, 64), table(blocks, tokens) {
    for (int64_t computed = 0; computed < tokens;) {
      table.release_behind(computed);
      computed = std::min(tokens, computed + 13);
      EXPECT_TRUE(table.try_reserve(computed));
    }
    table.release_behind(tokens);
    for (int group = 0; shared && group < blocks.groups(); ++group)
      for (const BlockId block : table.held(group)) others.push_back(block);
    for (const BlockId block : others) blocks.hold(block);
  }
  static Groups groups_of(const std::vector<StateRule>& rules, Tier pool) {
    Groups groups;
    for (const StateRule& rule : rules)
      groups.push_back({rule, pool == Tier::kDevice ? std::vector{30} : std::vector{0, 30}});
    return groups;
  }

  // Whether each group has all blocks that the next token after `end` tokens reaches.
  bool has_all(int64_t end) const {
    for (int group = 0; group < blocks.groups(); ++group) {
      const StateRule& rule = blocks.rule(group);
      int64_t first = 0;
      if (rule.kind == StateKind::kWindow) first = std::max<int64_t>(0, end + 1 - rule.window);
      if (rule.kind == StateKind::kChunk) first = end - end % rule.window;
      for (int64_t position = first; position < end; ++position)
        if (table.blocks(group)[static_cast<size_t>(position / kKvBlockTokens)].is_released())
          return false;
    }
    return true;
  }

  // Cuts the sequence back, if that is possible, and lets it grow again. Returns false
  // if it is not.
  bool cut(int64_t end, int64_t grown) {
    const bool can_cut = table.try_cut_end(end).has_value();
    if (!can_cut) return false;
    EXPECT_TRUE(has_all(end));
    PerGroup<std::vector<BlockId>> before;
    for (int group = 0; group < blocks.groups(); ++group)
      before[index_of(group)] = table.blocks(group);
    const auto whole = static_cast<size_t>(end / kKvBlockTokens);
    const auto cut_into = table.cut_back(end);
    EXPECT_TRUE(table.try_reserve(grown));
    for (int group = 0; group < blocks.groups(); ++group) {
      const std::vector<BlockId>& now = table.blocks(group);
      for (size_t i = 0; i < now.size(); ++i) {
        if (i < whole) {
          EXPECT_EQ(now[i], before[index_of(group)][i]);
        } else {
          EXPECT_EQ(blocks.holders(now[i]), 1) << "it is written to";
        }
      }
      const auto& block = cut_into[index_of(group)];
      if (block) {
        EXPECT_EQ(*block, before[index_of(group)][whole]);
        EXPECT_GE(blocks.holders(*block), 2);
        blocks.release(*block);
      }
    }
    return true;
  }
  void end() {
    table.clear();
    for (const BlockId block : others) blocks.release(block);
    EXPECT_EQ(blocks.free(), blocks.total());
    for (int group = 0; group < blocks.groups(); ++group)
      for (const Tier pool : blocks.pools())
        EXPECT_EQ(blocks.unpromised(pool, group), blocks.total(pool, group));
  }
};

TEST(BlockGroupsTest, IsCutBackAtEveryLength) {
  const std::vector<std::vector<StateRule>> models = {
      {kFull, window(20)}, {kFull, window(1)},    {window(100)},
      {kFull, chunk(48)},  {chunk(5), window(7)}, {kFull, window(33), chunk(16), kFull}};
  int refused = 0;
  for (const auto& rules : models) {
    for (const Tier pool : {Tier::kDevice, Tier::kHost}) {
      for (const bool shared : {false, true}) {
        for (int64_t tokens = 30; tokens <= 150; tokens += 5) {
          for (int64_t cut = 1; cut <= kMostCutBack; ++cut) {
            SCOPED_TRACE(testing::Message() << cut << " of " << tokens << " shared " << shared);
            ToCut of(rules, pool, shared, tokens);
            ASSERT_TRUE(of.cut(tokens - cut, tokens - cut + 1)) << "a first cut";
            // Cuts it back again and again, as far as possible.
            int64_t end = tokens - cut + 1;
            while (end > kMostCutBack && of.cut(end - kMostCutBack, end - kMostCutBack + 1))
              end -= kMostCutBack - 1;
            refused += end > kMostCutBack ? 1 : 0;
            of.end();
            ASSERT_FALSE(testing::Test::HasFailure());
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(BlockGroupsTest, ACheckpointBecomesTheState) {
  BlockAllocator blocks(Groups{{kFull, {8}}, {kRecurrent, {2}}}, 0, 16);
  BlockTable table(blocks);
  ASSERT_TRUE(table.try_reserve(20));
  EXPECT_EQ(table.try_cut_end(19), std::nullopt) << "the state has all twenty";
  const BlockId state = table.blocks(1)[0];
  table.take({.promised = {}, .checkpoint = 20});
  ASSERT_EQ(table.blocks(1).size(), 2u);
  const BlockId checkpoint = table.blocks(1)[1];
  EXPECT_EQ(table.blocks(1)[0], state);
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 0);
  ASSERT_TRUE(table.try_reserve(36));
  EXPECT_EQ(table.try_cut_end(19), std::nullopt);
  EXPECT_EQ(table.try_cut_end(25), 20);
  EXPECT_FALSE(table.cut_back(20)[1]);
  EXPECT_EQ(table.blocks(1), std::vector{checkpoint});
  EXPECT_EQ(table.blocks(0).size(), 2u);
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 1);
  EXPECT_EQ(table.try_cut_end(20), std::nullopt) << "it is used up";
  // A checkpoint that is not needed is released before the next step.
  table.take({.checkpoint = 20});
  table.release_behind(30);
  EXPECT_EQ(table.blocks(1), std::vector{checkpoint});
  table.take({.checkpoint = 30});
  table.clear();
  EXPECT_EQ(blocks.free(), blocks.total());
}

// The expected state of a table: for each entry the number of the use that its block was taken for.
constexpr int64_t kReleased = -1;
struct PlainTable {
  BlockTable table;
  int64_t tokens = 0;
  int64_t checkpoint = 0;  // tokens after which it was taken; 0: none
  PerGroup<std::vector<int64_t>> uses = {};
};

class RandomGroups {
 public:
  explicit RandomGroups(uint32_t seed) : random_(seed), blocks_(make_groups(), span_, kStep) {}

  void run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE(step);
      const int what = below(14);
      if (what < 2) tables_.push_back(make_table());
      if (what == 2) share();
      if (what >= 3 && what < 9) grow();
      if (what == 9 && !tables_.empty()) tables_.erase(tables_.begin() + below(size()));
      if (what == 10) resize();
      if (what == 11 && !tables_.empty()) keep(*tables_[pick()]);
      if (what == 12 && !tables_.empty()) take_checkpoint(*tables_[pick()]);
      if (what == 13 && !tables_.empty()) cut(*tables_[pick()]);
      check();
    }
    tables_.clear();
    blocks_.forget_all();
    EXPECT_EQ(blocks_.free(), blocks_.total());
    for (int group = 0; group < blocks_.groups(); ++group)
      for (const Tier pool : blocks_.pools())
        EXPECT_EQ(blocks_.unpromised(pool, group), blocks_.total(pool, group));
  }

  int64_t refused = 0, shared = 0, released = 0, moved = 0, cuts = 0, refused_cuts = 0;

 private:
  static constexpr int64_t kStep = 40;
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int size() const { return static_cast<int>(tables_.size()); }
  size_t pick() { return static_cast<size_t>(below(size())); }

  Groups make_groups() {
    const int pools = 1 + below(3);
    span_ = below(2) == 0 ? 0 : 4;
    Groups groups;
    for (int n = 1 + below(kMostStateGroups); n > 0; --n) {
      GroupPools group;
      const int kind = below(4);
      if (kind == 1) group.rule = window(1 + below(100));
      if (kind == 2) group.rule = chunk(1 + below(100));
      if (kind == 3) group.rule = kRecurrent;
      for (int i = 0; i < pools; ++i) group.pools.push_back(1 + below(24));
      groups.push_back(std::move(group));
    }
    return groups;
  }

  std::unique_ptr<PlainTable> make_table() {
    return std::make_unique<PlainTable>(
        PlainTable{.table = BlockTable(blocks_, below(3) == 0 ? 0 : below(400))});
  }

  // All groups must grow together, and take only what the plan said.
  void grow() {
    if (tables_.empty()) return;
    PlainTable& plain = *tables_[pick()];
    if (below(3) == 0) release_behind(plain);
    const int64_t tokens = plain.tokens + 1 + below(kStep);
    const PoolRooms before = blocks_.rooms();
    if (!plain.table.try_reserve(tokens)) {
      ++refused;
      EXPECT_TRUE(same(before, blocks_.rooms())) << "all or nothing";
      if (plain.table.pool() && !plain.table.spans(tokens)) {
        EXPECT_TRUE(is_short(plain, tokens, *plain.table.pool())) << "there is room";
      }
      return;
    }
    plain.tokens = tokens;
    add_uses(plain);
  }

  bool is_short(const PlainTable& plain, int64_t tokens, Tier pool) const {
    for (int group = 0; group < blocks_.groups(); ++group) {
      const auto have = static_cast<int64_t>(plain.table.blocks(group).size());
      if (blocks_.rule(group).entries(tokens) - have > blocks_.free(pool, group)) return true;
    }
    return false;
  }
  static bool same(const PoolRooms& one, const PoolRooms& other) {
    for (size_t group = 0; group < one.size(); ++group)
      for (size_t pool = 0; pool < one[group].size(); ++pool)
        if (one[group][pool].free != other[group][pool].free ||
            one[group][pool].promised != other[group][pool].promised)
          return false;
    return true;
  }

  // A newly taken block had no holder, so any earlier use of it has ended.
  void add_uses(PlainTable& plain) {
    for (int group = 0; group < blocks_.groups(); ++group) {
      std::vector<int64_t>& uses = plain.uses[index_of(group)];
      const std::vector<BlockId>& blocks = plain.table.blocks(group);
      while (uses.size() < blocks.size()) {
        EXPECT_EQ(blocks_.holders(blocks[uses.size()]), 1);
        use_of_[blocks[uses.size()]] = next_use_;
        uses.push_back(next_use_++);
      }
    }
  }

  void release_behind(PlainTable& plain) {
    plain.table.release_behind(plain.tokens);
    for (int group = 0; group < blocks_.groups(); ++group) {
      std::vector<int64_t>& uses = plain.uses[index_of(group)];
      if (!blocks_.rule(group).is_paged()) uses.resize(std::min<size_t>(uses.size(), 1));
      const auto all = static_cast<size_t>(blocks_.rule(group).releasable(plain.tokens));
      for (size_t i = 0; i < std::min(all, uses.size()); ++i) {
        released += uses[i] != kReleased ? 1 : 0;
        uses[i] = kReleased;
      }
      // Only in the first pool are blocks taken one by one.
      if (plain.table.spans(0) || plain.table.pool() != Tier::kDevice) continue;
      const int64_t cut_back = kMostCutBack / kKvBlockTokens + 1;
      EXPECT_LE(static_cast<int64_t>(plain.table.held(group).size()),
                blocks_.most_blocks(plain.tokens, group) + cut_back);
    }
  }

  void take_checkpoint(PlainTable& plain) {
    if (!blocks_.has_states() || plain.tokens == 0) return;
    for (int group = 0; group < blocks_.groups(); ++group) {
      const std::vector<BlockId>& states = plain.table.blocks(group);
      if (blocks_.rule(group).is_paged()) continue;
      if (states[0].tier != Tier::kDevice || states.size() + blocks_.free(Tier::kDevice, group) < 2)
        return;
    }
    plain.table.take({.checkpoint = plain.tokens});
    plain.checkpoint = plain.tokens;
    add_uses(plain);
  }

  // A partly used shared block is copied immediately.
  void cut(PlainTable& plain) {
    const int64_t wanted = plain.tokens - below(2 * kMostCutBack);
    if (wanted <= 0 || wanted == plain.tokens) return;
    const std::optional<int64_t> end = plain.table.try_cut_end(wanted);
    if (!end) {
      ++refused_cuts;
      return;
    }
    EXPECT_EQ(*end, blocks_.has_states() ? plain.checkpoint : wanted);
    EXPECT_LE(*end, wanted);
    if (*end == 0) return;
    const auto cut_into = plain.table.cut_back(*end);
    plain.tokens = *end;
    ++cuts;
    for (int group = 0; group < blocks_.groups(); ++group) {
      std::vector<int64_t>& uses = plain.uses[index_of(group)];
      if (blocks_.rule(group).is_paged()) {
        uses.resize(plain.table.blocks(group).size());
      } else if (uses.size() > 1) {
        uses.erase(uses.begin());
      }
      if (const auto& block = cut_into[index_of(group)]) blocks_.release(*block);
    }
    if (!plain.table.try_reserve(plain.tokens)) {
      std::erase_if(tables_, [&](const auto& of) { return of.get() == &plain; });
      return;
    }
    add_uses(plain);
  }

  // The new table begins with the first blocks of another, like a prefix that is found.
  void share() {
    if (tables_.empty()) return;
    const PlainTable& from = *tables_[pick()];
    const int64_t whole = below(1 + static_cast<int>(from.tokens / kKvBlockTokens));
    if (whole == 0) return;
    GroupBlocks begun;
    PerGroup<std::vector<int64_t>> uses;
    for (int group = 0; group < blocks_.groups(); ++group) {
      const StateRule& rule = blocks_.rule(group);
      for (int64_t i = 0; rule.is_paged() && i < whole; ++i) {
        const BlockId block = from.table.blocks(group)[static_cast<size_t>(i)];
        const bool is_needed = i >= rule.unreachable(whole * kKvBlockTokens);
        if (is_needed && block.is_released()) return;
        begun[index_of(group)].push_back(is_needed ? block : BlockId::released(block.tier, group));
        uses[index_of(group)].push_back(is_needed ? use_of_.at(block) : kReleased);
      }
    }
    auto plain = make_table();
    if (!begun[0].empty() && begun[0].front().tier != begun[0].back().tier &&
        !plain->table.spans(0))
      return;
    const int64_t tokens = whole * kKvBlockTokens + 1 + below(kStep);
    const auto plan = plain->table.try_plan(tokens, blocks_.rooms(), begun);
    if (!plan) return;
    if (plain->table.spans(tokens) != plain->table.spans(0)) return;
    for (const std::vector<BlockId>& of_group : begun)
      for (const BlockId block : of_group)
        if (!block.is_released()) blocks_.hold(block);
    plain->table.begin_in(plan->pool, begun);
    plain->table.take(*plan);
    plain->tokens = tokens;
    plain->uses = std::move(uses);
    add_uses(*plain);
    tables_.push_back(std::move(plain));
    ++shared;
  }

  void keep(const PlainTable& plain) {
    const int group = below(blocks_.groups());
    const std::span<const BlockId> held = plain.table.held(group);
    if (held.empty()) return;
    const BlockId block = held[static_cast<size_t>(below(static_cast<int>(held.size())))];
    blocks_.keep(block, group_key(BlockKey{static_cast<uint64_t>(next_use_++), 1}, group));
  }

  // Held blocks after the new end of the pool must continue under other ids.
  void resize() {
    const int group = below(blocks_.groups());
    const Tier pool =
        blocks_.pools()[static_cast<size_t>(below(static_cast<int>(blocks_.pools().size())))];
    const int32_t held = blocks_.total(pool, group) - blocks_.free(pool, group);
    const auto moves = blocks_.resize(pool, held + below(12), group);
    std::map<BlockId, int64_t> changed;
    for (const auto& [from, to] : moves) changed[to] = use_of_.at(from);
    for (const auto& [block, use] : changed) use_of_[block] = use;
    for (const auto& plain : tables_) plain->table.rename(moves);
    moved += static_cast<int64_t>(moves.size());
  }

  void check() const {
    std::map<BlockId, int32_t> holders;
    for (const auto& plain : tables_) {
      const std::vector<BlockId>* first = nullptr;
      for (int group = 0; group < blocks_.groups(); ++group) {
        const std::vector<BlockId>& blocks = plain->table.blocks(group);
        const std::vector<int64_t>& uses = plain->uses[index_of(group)];
        ASSERT_EQ(blocks.size(), uses.size());
        EXPECT_GE(static_cast<int64_t>(blocks.size()), blocks_.rule(group).entries(plain->tokens));
        for (size_t i = 0; i < blocks.size(); ++i) {
          EXPECT_EQ(blocks[i].group, group);
          ASSERT_EQ(blocks[i].is_released(), uses[i] == kReleased);
          if (uses[i] == kReleased) continue;
          EXPECT_EQ(use_of_.at(blocks[i]), uses[i]) << "another sequence's block";
          ++holders[blocks[i]];
        }
        if (!blocks_.rule(group).is_paged()) continue;
        for (size_t i = 0; first != nullptr && i < std::min(blocks.size(), first->size()); ++i)
          EXPECT_EQ(blocks[i].tier, (*first)[i].tier) << "entry " << i;
        first = first != nullptr ? first : &blocks;
      }
    }
    for (int group = 0; group < blocks_.groups(); ++group) {
      for (const Tier pool : blocks_.pools()) {
        int32_t free = 0;
        for (const BlockId id : block_range(0, blocks_.total(pool, group), pool, group)) {
          const auto held = holders.find(id);
          const int32_t count = held == holders.end() ? 0 : held->second;
          EXPECT_EQ(blocks_.holders(id), count);
          free += count == 0 ? 1 : 0;
        }
        EXPECT_EQ(blocks_.free(pool, group), free);
      }
    }
  }

  std::mt19937 random_;
  int64_t span_ = 0;
  BlockAllocator blocks_;
  std::vector<std::unique_ptr<PlainTable>> tables_;
  std::map<BlockId, int64_t> use_of_;
  int64_t next_use_ = 0;
};

TEST(BlockGroupsTest, NoBlockIsTakenTwiceAndNoneIsLost) {
  int64_t refused = 0, shared = 0, released = 0, moved = 0, cuts = 0, refused_cuts = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomGroups groups(seed);
    groups.run(300);
    if (testing::Test::HasFailure()) return;
    refused += groups.refused;
    shared += groups.shared;
    released += groups.released;
    moved += groups.moved;
    cuts += groups.cuts;
    refused_cuts += groups.refused_cuts;
  }
  EXPECT_GT(cuts, 1000);
  EXPECT_GT(refused_cuts, 200);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(shared, 500);
  EXPECT_GT(released, 1000);
  EXPECT_GT(moved, 300);
}

}  // namespace
}  // namespace spillway
