// SPDX-License-Identifier: Apache-2.0
// Prefixes over groups of layers, against a plain model that knows what is kept, and tries every
// length.
#include "schedule/prefix_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace spillway {
namespace {

using Tokens = std::vector<int32_t>;
// What a block or a state is of: its group, and all tokens up to its end.
using Name = std::pair<int, Tokens>;

class PrefixModel {
 public:
  PrefixModel(uint32_t seed, const std::vector<GroupPools>& groups)
      : random_(seed), blocks_(groups, /*span_blocks=*/0, /*step_tokens=*/512) {
    blocks_.observe_evictions([this](BlockId block, const BlockContents&) {
      for (const Name& name : kept_in_[block]) {
        kept_.erase(name);
        if (below(2) == 0) stored_.insert(name);
      }
      kept_in_[block].clear();
    });
  }

  // A sequence comes and goes, and what it had is kept as an engine keeps it.
  void compute(const Tokens& tokens) {
    BlockTable table(blocks_);
    for (size_t computed = 0; computed < tokens.size();) {
      computed = std::min(tokens.size(), computed + 1 + static_cast<size_t>(below(40)));
      table.release_behind(static_cast<int64_t>(computed));
      if (!table.try_reserve(static_cast<int64_t>(computed))) return;
      for (int group = 0; group < blocks_.groups(); ++group) {
        if (!blocks_.rule(group).is_paged()) continue;
        for (size_t end = kKvBlockTokens; end <= computed; end += kKvBlockTokens)
          keep(table.blocks(group)[end / kKvBlockTokens - 1], first(tokens, end), group);
        if (computed % kKvBlockTokens != 0 && (computed == tokens.size() || below(3) == 0))
          keep(table.blocks(group)[computed / kKvBlockTokens], first(tokens, computed), group);
      }
    }
    for (int group = 0; group < blocks_.groups(); ++group)
      if (!blocks_.rule(group).is_paged()) keep(table.blocks(group)[0], tokens, group);
  }

  // Compares what is found with the longest length that the model says. How long it is.
  int32_t look_for(const Tokens& tokens, size_t most, bool stores) {
    std::vector<BlockKey> keys;
    for (size_t end = kKvBlockTokens; end <= most; end += kKvBlockTokens)
      keys.push_back(key_of(first(tokens, end)));
    const PrefixSearch search(blocks_,
                              {.tokens = tokens, .most = most, .first_key = kFirst, .keys = keys});
    std::set<std::pair<uint64_t, uint64_t>> stored;
    for (const auto& [group, of] : stored_) {
      const BlockKey key = group_key(key_of(of), group);
      stored.insert({key.low, key.high});
    }
    const PrefixSearch::IsStored is_stored = [&](const BlockKey& key, int) {
      return stored.contains({key.low, key.high});
    };
    const FoundPrefix found = search.longest(stores ? is_stored : nullptr);
    EXPECT_EQ(found.tokens, longest(tokens, most, stores));
    check(tokens, found, is_stored);
    return found.tokens;
  }

  const BlockAllocator& blocks() const { return blocks_; }
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

 private:
  static constexpr BlockKey kFirst{1, 2};

  static Tokens first(const Tokens& tokens, size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  static BlockKey key_of(const Tokens& tokens) {
    BlockKey key = kFirst;
    for (size_t i = 0; i < tokens.size(); i += kKvBlockTokens)
      key = next_key(key, std::span(tokens).subspan(i).first(
                              std::min<size_t>(kKvBlockTokens, tokens.size() - i)));
    return key;
  }

  void keep(BlockId block, const Tokens& tokens, int group) {
    if (block.is_released()) return;
    if (!blocks_.keep(block, group_key(key_of(tokens), group))) return;
    kept_.insert({group, tokens});
    kept_in_[block].insert({group, tokens});
  }
  bool is_kept(const Tokens& tokens, size_t length, int group) const {
    return kept_.contains({group, first(tokens, length)});
  }

  int32_t longest(const Tokens& tokens, size_t most, bool stores) const {
    for (size_t length = most; length > 0; --length) {
      const auto all_have = [&](size_t whole, size_t end) {
        for (int group = 0; group < blocks_.groups(); ++group)
          if (!has(tokens, length, whole, end, group, stores)) return false;
        return true;
      };
      bool has_all = length % kKvBlockTokens == 0 && all_have(length / kKvBlockTokens, length);
      // The last block may be copied, also one of which fewer tokens are used than it has.
      const size_t whole = (length - 1) / kKvBlockTokens;
      const size_t most_of_it = std::min((whole + 1) * kKvBlockTokens, tokens.size());
      for (size_t end = length; end <= (length == most ? most_of_it : length); ++end)
        has_all = has_all || all_have(whole, end);
      if (has_all) return static_cast<int32_t>(length);
    }
    return 0;
  }

  // With so many whole blocks, and a copy of one with `end` tokens where these are fewer.
  bool has(const Tokens& tokens, size_t length, size_t whole, size_t end, int group,
           bool stores) const {
    const StateRule& rule = blocks_.rule(group);
    if (rule.kind == StateKind::kRecurrent)
      return end == length && (is_kept(tokens, length, group) ||
                               (stores && stored_.contains({group, first(tokens, length)})));
    const auto window = static_cast<size_t>(rule.window);
    size_t from = 0;  // the first position that the next token reaches
    if (rule.kind == StateKind::kWindow) from = length + 1 > window ? length + 1 - window : 0;
    if (rule.kind == StateKind::kChunk) from = length / window * window;
    if (length > whole * kKvBlockTokens && !is_kept(tokens, end, group)) return false;
    bool in_pool = true;  // so far; behind those in the pool come those of the store
    for (size_t block = from / kKvBlockTokens; block < whole; ++block) {
      const size_t to = (block + 1) * kKvBlockTokens;
      in_pool = in_pool && is_kept(tokens, to, group);
      if (!in_pool && !(stores && stored_.contains({group, first(tokens, to)}))) return false;
    }
    return true;
  }

  // Each block that was found has what is said of it.
  void check(const Tokens& tokens, const FoundPrefix& found,
             const PrefixSearch::IsStored& is_stored) const {
    for (int group = 0; group < blocks_.groups(); ++group) {
      const std::vector<BlockId>& blocks = found.blocks[index_of(group)];
      const std::vector<BlockKey>& loads = found.loads[index_of(group)];
      const auto& partly = found.partly[index_of(group)];
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].is_released()) continue;
        EXPECT_TRUE(
            kept_in_.at(blocks[i]).contains({group, first(tokens, (i + 1) * kKvBlockTokens)}));
      }
      for (const BlockKey& key : loads) EXPECT_TRUE(is_stored(key, group));
      if (blocks_.rule(group).is_paged()) {
        EXPECT_EQ(blocks.size() + loads.size() + (partly ? 1 : 0),
                  static_cast<size_t>(blocks_for_tokens(found.tokens)));
      } else if (found.tokens > 0) {
        EXPECT_TRUE(blocks.empty());
        EXPECT_EQ(partly.has_value() ? 1u : loads.size(), 1u);
        if (partly) {
          EXPECT_TRUE(kept_in_.at(*partly).contains(
              {group, first(tokens, static_cast<size_t>(found.tokens))}));
        }
      }
    }
  }

  std::mt19937 random_;
  BlockAllocator blocks_;
  std::set<Name> kept_, stored_;
  std::map<BlockId, std::set<Name>> kept_in_;
};

void compare(const std::vector<StateRule>& rules, bool stores) {
  int64_t found = 0;
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<GroupPools> groups;
    for (const StateRule& rule : rules)
      groups.push_back({rule, {10 + static_cast<int32_t>(random() % 40)}});
    PrefixModel model(seed, groups);
    // Prompts begin with one of two texts, as far as they do, and answers differ.
    std::vector<Tokens> texts(2);
    for (Tokens& text : texts)
      for (int i = 0; i < 150; ++i) text.push_back(model.below(3));
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
      Tokens tokens = texts[static_cast<size_t>(model.below(2))];
      tokens.resize(static_cast<size_t>(1 + model.below(150)));
      for (int n = model.below(20); n > 0; --n) tokens.push_back(model.below(2));
      found += model.look_for(tokens, tokens.size() - 1, stores);
      model.compute(tokens);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(found, 1000);
}

constexpr StateRule kAll{}, kState{StateKind::kRecurrent};
constexpr StateRule window(int64_t tokens) { return {StateKind::kWindow, tokens}; }
constexpr StateRule chunk(int64_t tokens) { return {StateKind::kChunk, tokens}; }

TEST(PrefixSearchTest, FindsTheLongestLengthThatEveryGroupHas) {
  for (const bool stores : {false, true}) {
    SCOPED_TRACE(stores);
    compare({kAll}, stores);
    compare({kAll, window(40)}, stores);
    compare({window(20), kAll}, stores);
    compare({window(50)}, stores);
    compare({kAll, chunk(48)}, stores);
    compare({kAll, chunk(35)}, stores);
    compare({kAll, window(1)}, stores);
    compare({kAll, kState}, stores);
    compare({kState}, stores);
    compare({kAll, window(33), chunk(64), kState}, stores);
    compare({kAll, kAll, window(17), window(60)}, stores);
  }
}

// What is there of a window at a length is of no use at a shorter one.
TEST(PrefixSearchTest, AWindowNeedsItsLastBlocksAlone) {
  PrefixModel model(1, {{kAll, {40}}, {window(32), {4}}});
  Tokens tokens;
  for (int i = 0; i < 160; ++i) tokens.push_back(i % 7);
  model.compute(tokens);
  Tokens longer = tokens;
  longer.push_back(9);
  EXPECT_EQ(model.look_for(longer, 160, false), 160);
  EXPECT_EQ(model.look_for(tokens, 100, false), 0) << "the pool has four blocks of the window";
}

// Where an entry is in one memory, that of another group must be there, too.
TEST(PrefixSearchTest, GroupsAgreeOnTheMemory) {
  BlockAllocator blocks({{kAll, {4, 4}}, {window(64), {4, 4}}}, 0, 16);
  const Tokens tokens(3 * kKvBlockTokens, 5);
  std::vector<BlockKey> keys;
  const BlockKey start{1, 2};
  for (int32_t i = 0; i < 3; ++i)
    keys.push_back(
        next_key(keys.empty() ? start : keys.back(), std::span(tokens).first(kKvBlockTokens)));
  for (size_t i = 0; i < 3; ++i) {
    blocks.keep(*blocks.try_allocate(Tier::kHost, 0), keys[i]);
    blocks.keep(*blocks.try_allocate(i < 2 ? Tier::kHost : Tier::kDevice, 1),
                group_key(keys[i], 1));
  }
  const PrefixSearch search(
      blocks, {.tokens = tokens, .most = tokens.size(), .first_key = start, .keys = keys});
  const FoundPrefix found = search.longest([](const BlockKey&, int) { return true; });
  EXPECT_EQ(found.tokens, 2 * kKvBlockTokens) << "what is loaded would come to the device";
  EXPECT_EQ(found.blocks[1], block_range(0, 2, Tier::kHost, 1));
}

}  // namespace
}  // namespace spillway
