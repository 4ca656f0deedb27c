// SPDX-License-Identifier: Apache-2.0
// Tests prefixes over groups of layers against a plain model that knows what is kept, and tries
// every length.
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
// Identifies the contents of a block or state: its group, and all tokens up to its end.
using Name = std::pair<int, Tokens>;

class PrefixModel {
 public:
  PrefixModel(uint32_t seed, const std::vector<GroupPools>& groups, int64_t span_blocks = 0)
      : random_(seed), blocks_(groups, span_blocks, /*step_tokens=*/512) {
    blocks_.observe_evictions([this](BlockId block, const BlockContents&) {
      for (const Name& name : kept_in_[block]) {
        kept_.erase(name);
        if (below(2) == 0) stored_.insert(name);
      }
      kept_in_[block].clear();
    });
  }

  // Computes a sequence and removes it, keeping its blocks as an engine does. Its memory is chosen
  // by the expected number of tokens.
  void compute(const Tokens& tokens, int64_t expected = 0) {
    BlockTable table(blocks_, expected);
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

  // Compares the prefix that is found with the model's longest one, and returns its length.
  int32_t look_for(const Tokens& tokens, size_t most, bool stores, bool spans = false,
                   bool has_stored_tail = false) {
    spans_ = spans;
    has_stored_tail_ = has_stored_tail;
    std::vector<BlockKey> keys;
    for (size_t end = kKvBlockTokens; end <= most; end += kKvBlockTokens)
      keys.push_back(key_of(first(tokens, end)));
    const PrefixSearch search(blocks_, {.tokens = tokens,
                                        .most = most,
                                        .first_key = kFirst,
                                        .keys = keys,
                                        .spans = spans,
                                        .has_stored_tail = has_stored_tail});
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
    for (const auto& loads : found.loads) loaded += loads.empty() ? 0 : 1;
    for (const auto& blocks : found.blocks) elsewhere += on_device(blocks) ? 0 : 1;
    for (const auto& blocks : found.blocks)
      spanning += !blocks.empty() && blocks.front().tier != blocks.back().tier ? 1 : 0;
    return found.tokens;
  }

  // Numbers of groups in the found prefixes: with blocks to load, in another memory, in several.
  int64_t loaded = 0, elsewhere = 0, spanning = 0;

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
    kept_[{group, tokens}] = block.tier;
    kept_in_[block].insert({group, tokens});
  }
  std::optional<Tier> kept_at(const Tokens& tokens, size_t length, int group) const {
    const auto found = kept_.find({group, first(tokens, length)});
    return found == kept_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_stored(const Tokens& tokens, size_t length, int group) const {
    return stored_.contains({group, first(tokens, length)});
  }
  static bool on_device(const std::vector<BlockId>& blocks) {
    return blocks.empty() || blocks.back().tier == Tier::kDevice;
  }

  int32_t longest(const Tokens& tokens, size_t most, bool stores) const {
    for (size_t length = most; length > 0; --length) {
      const auto all_have = [&](size_t whole, size_t end) {
        return has(tokens, length, whole, end, most / kKvBlockTokens, stores);
      };
      bool has_all = length % kKvBlockTokens == 0 && all_have(length / kKvBlockTokens, length);
      // The last block may be copied, even if fewer of its tokens are used than it has.
      const size_t whole = (length - 1) / kKvBlockTokens;
      const size_t most_of_it = std::min((whole + 1) * kKvBlockTokens, tokens.size());
      for (size_t end = length; end <= (length == most ? most_of_it : length); ++end)
        has_all = has_all || all_have(whole, end);
      if (has_all) return static_cast<int32_t>(length);
    }
    return 0;
  }

  // Whether a prefix has this many whole blocks and, if it is longer, a copy of a block that ends
  // at `end` tokens. `keys`: the whole blocks of all tokens that may be found.
  bool has(const Tokens& tokens, size_t length, size_t whole, size_t end, size_t keys,
           bool stores) const {
    const bool has_tail = length > whole * kKvBlockTokens;
    const bool is_tail_stored = stores && has_stored_tail_ && whole == keys && end < tokens.size();
    const auto has_end = [&](size_t of, int group, bool may_load) {
      const auto tier = kept_at(tokens, of, group);
      return tier ? *tier == Tier::kDevice : may_load && is_stored(tokens, of, group);
    };
    for (int group = 0; group < blocks_.groups(); ++group) {
      if (!blocks_.rule(group).is_paged()) {
        if (end != length || !has_end(length, group, stores)) return false;
      } else if (has_tail && !has_end(end, group, is_tail_stored)) {
        return false;
      }
    }
    // The memories of the first full group's blocks, or of the first window's: the others must be
    // in the same ones.
    std::optional<std::vector<Tier>> anchor;
    for (const bool full : {true, false}) {
      for (int group = 0; group < blocks_.groups(); ++group) {
        const StateRule& rule = blocks_.rule(group);
        if (!rule.is_paged() || (rule.kind == StateKind::kFull) != full) continue;
        auto tiers = tiers_of(tokens, length, whole, group, anchor, stores);
        if (!tiers) return false;
        if (!anchor) anchor = std::move(tiers);
      }
    }
    // Only the device can copy and load.
    if ((has_tail || blocks_.has_states()) && anchor && !anchor->empty() &&
        anchor->back() != Tier::kDevice)
      return false;
    return true;
  }

  // The memories of a group's whole blocks, or of placeholders for them: first consecutive blocks
  // in pools, then blocks that are loaded to the device.
  std::optional<std::vector<Tier>> tiers_of(const Tokens& tokens, size_t length, size_t whole,
                                            int group,
                                            const std::optional<std::vector<Tier>>& anchor,
                                            bool stores) const {
    const StateRule& rule = blocks_.rule(group);
    const auto window = static_cast<size_t>(rule.window);
    size_t from = 0;  // the first position that the next token reaches
    if (rule.kind == StateKind::kWindow) from = length + 1 > window ? length + 1 - window : 0;
    if (rule.kind == StateKind::kChunk) from = length / window * window;
    const size_t needed = std::min(whole, from / kKvBlockTokens);
    const auto kept = [&](size_t block) {
      return kept_at(tokens, (block + 1) * kKvBlockTokens, group);
    };
    const auto agrees = [&](size_t block, Tier tier) {
      return !anchor || anchor->at(block) == tier;
    };
    std::vector<Tier> tiers;
    for (size_t block = 0; block < needed; ++block) {
      const Tier own = needed < whole ? kept(needed).value_or(Tier::kDevice) : Tier::kDevice;
      tiers.push_back(anchor ? anchor->at(block) : own);
    }
    for (size_t block = needed; block < whole; ++block) {
      const auto tier = kept(block);
      if (!tier || !agrees(block, *tier)) break;
      const bool goes_on = tiers.empty() || tiers.back() == *tier ||
                           (spans_ && tiers.back() < *tier &&
                            static_cast<int64_t>(block) % blocks_.span_blocks() == 0);
      if (!goes_on) break;
      tiers.push_back(*tier);
    }
    for (size_t block = tiers.size(); block < whole; ++block) {
      if (!tiers.empty() && tiers.back() != Tier::kDevice) return std::nullopt;
      const bool can_load = stores && is_stored(tokens, (block + 1) * kKvBlockTokens, group);
      if (!can_load || !agrees(block, Tier::kDevice)) return std::nullopt;
      tiers.push_back(Tier::kDevice);
    }
    return tiers;
  }

  // Checks that each block of the prefix holds the tokens it stands for.
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
  std::map<Name, Tier> kept_;
  std::set<Name> stored_;
  bool spans_ = false, has_stored_tail_ = false;  // of the sequence whose prefix is searched
  std::map<BlockId, std::set<Name>> kept_in_;
};

struct Found {
  int64_t tokens = 0, loaded = 0, elsewhere = 0, spanning = 0;
};

void compare(const std::vector<StateRule>& rules, bool stores, int most_pools, Found& all) {
  int64_t found = 0;
  const uint32_t seeds = most_pools > 1 ? 12 : 20;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(testing::Message()
                 << seed << ", " << rules.size() << " groups, the first "
                 << static_cast<int>(rules[0].kind) << ", the last "
                 << static_cast<int>(rules.back().kind) << " " << rules.back().window);
    std::mt19937 random(seed);
    const uint32_t pools = 1 + static_cast<uint32_t>(random()) % static_cast<uint32_t>(most_pools);
    std::vector<GroupPools> groups;
    for (const StateRule& rule : rules) {
      groups.push_back({rule, {}});
      for (uint32_t i = 0; i < pools; ++i)
        groups.back().pools.push_back((pools == 1 ? 10 : 4) + static_cast<int32_t>(random() % 40));
    }
    const int64_t span_blocks = pools > 1 && random() % 2 == 0 ? 3 : 0;
    PrefixModel model(seed, groups, span_blocks);
    // Prompts begin with a part of one of two texts, and answers differ.
    std::vector<Tokens> texts(2);
    for (Tokens& text : texts)
      for (int i = 0; i < 150; ++i) text.push_back(model.below(3));
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
      Tokens tokens = texts[static_cast<size_t>(model.below(2))];
      tokens.resize(static_cast<size_t>(1 + model.below(150)));
      for (int n = model.below(20); n > 0; --n) tokens.push_back(model.below(2));
      const bool spans = span_blocks > 0 && model.below(2) == 0;
      found += model.look_for(tokens, tokens.size() - 1, stores, spans, model.below(2) == 0);
      const int64_t expected[] = {0, 300, 1 << 20};
      model.compute(tokens, most_pools > 1 ? expected[model.below(3)] : 0);
    }
    if (testing::Test::HasFailure()) return;
    all.loaded += model.loaded;
    all.elsewhere += model.elsewhere;
    all.spanning += model.spanning;
  }
  EXPECT_GT(found, most_pools > 1 ? 300 : 1000);
  all.tokens += found;
}

constexpr StateRule kAll{}, kState{StateKind::kRecurrent};
constexpr StateRule window(int64_t tokens) { return {StateKind::kWindow, tokens}; }
constexpr StateRule chunk(int64_t tokens) { return {StateKind::kChunk, tokens}; }

TEST(PrefixSearchTest, FindsTheLongestLengthThatEveryGroupHas) {
  for (const int most_pools : {1, 3}) {
    Found found;
    for (const bool stores : {false, true}) {
      SCOPED_TRACE(testing::Message() << most_pools << " pools, stores " << stores);
      compare({kAll}, stores, most_pools, found);
      compare({kAll, window(40)}, stores, most_pools, found);
      compare({window(20), kAll}, stores, most_pools, found);
      compare({window(50)}, stores, most_pools, found);
      compare({window(50), chunk(32)}, stores, most_pools, found);
      compare({kAll, chunk(48)}, stores, most_pools, found);
      compare({kAll, chunk(35)}, stores, most_pools, found);
      compare({kAll, window(1)}, stores, most_pools, found);
      compare({kAll, kAll}, stores, most_pools, found);
      compare({kAll, kState}, stores, most_pools, found);
      compare({kState}, stores, most_pools, found);
      compare({kAll, window(33), chunk(64), kState}, stores, most_pools, found);
      compare({kAll, kAll, window(17), window(60)}, stores, most_pools, found);
    }
    EXPECT_GT(found.loaded, 1000);
    EXPECT_EQ(found.elsewhere > 0, most_pools > 1);
    EXPECT_EQ(found.spanning > 0, most_pools > 1);
  }
}

// The blocks that a window needs at one length do not help at a shorter one.
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

// If an entry is in one memory, the same entry of other groups must be there, too.
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

// The second of two full groups has nothing in the pools. It could be loaded, but not to the memory
// of the first group's blocks.
TEST(PrefixSearchTest, AFullGroupIsNotLoadedBesideBlocksInHostMemory) {
  BlockAllocator blocks({{kAll, {8, 8}}, {kAll, {8, 8}}}, 0, 16);
  Tokens tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(i);
  const BlockKey start{1, 2};
  const std::vector<BlockKey> keys = {
      next_key(start, std::span(tokens).first(16)),
      next_key(next_key(start, std::span(tokens).first(16)), std::span(tokens).subspan(16, 16))};
  for (const BlockKey& key : keys) blocks.keep(*blocks.try_allocate(Tier::kHost, 0), key);
  // Both groups also have the first tokens in device blocks that end after them.
  const BlockKey tail = next_key(start, std::span(tokens).first(10));
  for (int group = 0; group < 2; ++group)
    blocks.keep(*blocks.try_allocate(Tier::kDevice, group),
                BlockContents{.key = group_key(tail, group), .tokens = 10});
  const PrefixSearch search(
      blocks, {.tokens = tokens, .most = tokens.size() - 1, .first_key = start, .keys = keys});
  const FoundPrefix found = search.longest([](const BlockKey&, int) { return true; });
  EXPECT_EQ(found.tokens, 10);
  EXPECT_TRUE(found.blocks[0].empty());
  EXPECT_TRUE(found.partly[0] && found.partly[1]);
}

}  // namespace
}  // namespace spillway
