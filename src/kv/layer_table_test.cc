// SPDX-License-Identifier: Apache-2.0
#include "kv/layer_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

TEST(LayerSwapSizesTest, TheSameMemoryInFewerBuffersHasMoreBlocks) {
  const LayerSwapSizes one{.layers = 48, .blocks = 100, .most = 47, .spare = 1};
  const LayerSwapSizes two{.layers = 48, .blocks = 100, .most = 47, .spare = 2};
  EXPECT_EQ(one.blocks_with(0), 100);
  EXPECT_EQ(one.blocks_with(1), 100) << "one that has a buffer to itself stays";
  EXPECT_EQ(one.blocks_with(9), 4800 / 40);  // n / (n - m + 1)
  EXPECT_EQ(two.blocks_with(9), 4800 / 41);  // n / (n - m + 2), the paper's
  EXPECT_EQ(two.blocks_with(6), 4800 / 43) << "one buffer does where layers are far apart";
  EXPECT_EQ(one.blocks_with(25), 4800 / 24);
  for (int swapped = 1; swapped <= 47; ++swapped) {
    EXPECT_GE(one.blocks_with(swapped), one.blocks_with(swapped - 1));
    EXPECT_GE(two.blocks_with(swapped), two.blocks_with(swapped - 1));
    EXPECT_LE(int64_t{one.blocks_with(swapped)} * one.buffers(swapped), 4800);
  }
}

TEST(LayerTableTest, SwappedLayersAreSpreadEvenly) {
  for (int layers = 2; layers <= 80; ++layers) {
    for (int swapped = 1; swapped <= layers; ++swapped) {
      const std::vector<int> spread = choose_swapped_layers(layers, swapped);
      ASSERT_EQ(std::ssize(spread), swapped);
      for (size_t i = 0; i < spread.size(); ++i) {
        const int next = i + 1 < spread.size() ? spread[i + 1] : spread[0] + layers;
        ASSERT_GE(next - spread[i], layers / swapped) << layers << " " << swapped;
        ASSERT_LE(next - spread[i], (layers + swapped - 1) / swapped) << layers << " " << swapped;
      }
    }
  }
}

// Simulates a link on which copies take random times, and ops that wait for them.
TEST(LayerTableTest, NoLayerIsReadBeforeItsCopyAndNoBufferHasTwo) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int layers = 2 + static_cast<int>(random() % 28);
    const int spare = 1 + static_cast<int>(random() % 2);
    const LayerSwapSizes sizes{.layers = layers, .blocks = 10, .most = layers, .spare = spare};
    LayerTable table(sizes);
    const int swapped = 1 + static_cast<int>(random() % static_cast<uint32_t>(layers));
    if (!sizes.gains_with(swapped)) continue;
    table.recut(swapped);
    double now = 0, link = 0;
    std::map<int, double> arrives;
    int64_t loads = 0;
    const auto load = [&] {
      while (table.next_to_load() >= 0) {
        const int layer = table.next_to_load();
        table.begin_load(layer);
        link = std::max(link, now) + static_cast<double>(random() % 1000);
        arrives[layer] = link;
        ++loads;
      }
    };
    const int steps = 5;
    for (int step = 0; step < steps; ++step) {
      load();
      std::vector<int> expected;
      for (int layer = 0; layer < layers; ++layer)
        expected.push_back(table.device_buffer_in_step(layer));
      for (int layer = 0; layer < layers; ++layer) {
        if (table.is_swapped(layer)) {
          ASSERT_EQ(table.state(layer), LayerState::kLoading) << "none is ever forgotten";
          now = std::max(now, arrives.at(layer));
          table.confirm(layer);
        }
        std::set<int> buffers;
        for (int other = 0; other < layers; ++other) {
          if (table.state(other) == LayerState::kSwappedOut) continue;
          ASSERT_TRUE(buffers.insert(table.device_buffer(other)).second);
          ASSERT_LT(table.device_buffer(other), table.buffers());
        }
        ASSERT_EQ(table.device_buffer(layer), expected[static_cast<size_t>(layer)])
            << "known when the step began";
        now += static_cast<double>(random() % 300);
        if (!table.is_swapped(layer)) continue;
        ASSERT_EQ(table.state(layer), LayerState::kResident);
        table.leave(layer);
        load();
      }
    }
    EXPECT_EQ(loads, steps * swapped + sizes.spare_with(swapped)) << "once a step is enough";
  }
}

TEST(LayerTableTest, WhatIsNotThereCannotBeUsed) {
  LayerTable table({.layers = 6, .blocks = 4, .most = 3, .spare = 1});
  table.recut(3);
  const int first = table.swapped_layers()[0], second = table.swapped_layers()[1];
  EXPECT_THROW(table.confirm(first), Error) << "before it came";
  EXPECT_THROW(table.begin_load(second), Error) << "out of turn";
  table.begin_load(first);
  EXPECT_THROW(table.leave(first), Error) << "before it was confirmed";
  EXPECT_EQ(table.next_to_load(), -1) << "the buffer is taken";
  EXPECT_THROW(table.begin_load(second), Error);
  EXPECT_THROW(table.recut(0), Error) << "while one is coming";
  table.confirm(first);
  table.leave(first);
  EXPECT_EQ(table.next_to_load(), second);
  table.begin_load(second);
  table.reset();
  EXPECT_EQ(table.next_to_load(), first);
  EXPECT_NO_THROW(table.recut(0));
}

// Memories whose cells name the layer and block that they hold the bytes of.
class RecutMemory {
 public:
  explicit RecutMemory(const LayerSwapSizes& sizes)
      : sizes_(sizes),
        region_(static_cast<size_t>(sizes.blocks) * static_cast<size_t>(sizes.layers), -1),
        host_(static_cast<size_t>(sizes.most) * static_cast<size_t>(sizes.most_blocks()), -1) {}

  void write(const LayerTable& table, int32_t blocks) {
    for (int layer = 0; layer < sizes_.layers; ++layer) {
      for (int32_t block = 0; block < blocks; ++block)
        at(table, layer, block, table.blocks()) = cell(layer, block);
    }
  }
  void follow(const LayerTable::Recut& cut, int32_t blocks) {
    const auto copy = [&](std::vector<int>& from, size_t begin, std::vector<int>& to, size_t end) {
      const std::vector<int> bytes(from.begin() + static_cast<ptrdiff_t>(begin),
                                   from.begin() + static_cast<ptrdiff_t>(begin) + blocks);
      std::ranges::copy(bytes, to.begin() + static_cast<ptrdiff_t>(end));
    };
    const auto here = [&](int buffer, int32_t size) { return static_cast<size_t>(buffer * size); };
    const auto there = [&](int buffer) {
      return static_cast<size_t>(buffer * sizes_.most_blocks());
    };
    const auto out = [&](const LayerTable::Copy& of) {
      copy(region_, here(of.from, cut.blocks_before), host_, there(of.to));
    };
    for (const auto& exchange : cut.exchanges) {
      copy(host_, there(exchange.in.from), region_, here(exchange.in.to, cut.blocks_before));
      out(exchange.out);
    }
    for (const auto& of : cut.outs) out(of);
    for (const auto& of : cut.closing)
      copy(region_, here(of.from, cut.blocks_before), region_, here(of.to, cut.blocks_before));
    for (const auto& of : cut.moves) {
      // Kernels may copy in any order, so the ranges read and written must not overlap.
      const auto from = int64_t{of.from} * cut.blocks_before, to = int64_t{of.to} * cut.blocks;
      if (from != to) {
        EXPECT_TRUE(from + cut.blocks_before <= to || to + cut.blocks <= from);
      }
      copy(region_, here(of.from, cut.blocks_before), region_, here(of.to, cut.blocks));
    }
    for (const auto& of : cut.ins) copy(host_, there(of.from), region_, here(of.to, cut.blocks));
  }
  void expect_kept(const LayerTable& table, int32_t blocks) {
    for (int layer = 0; layer < sizes_.layers; ++layer) {
      for (int32_t block = 0; block < blocks; ++block)
        ASSERT_EQ(at(table, layer, block, table.blocks()), cell(layer, block)) << layer;
    }
  }

 private:
  static int cell(int layer, int32_t block) { return layer * 1000 + block; }
  int& at(const LayerTable& table, int layer, int32_t block, int32_t size) {
    if (table.is_swapped(layer))
      return host_.at(static_cast<size_t>(table.host_buffer(layer) * sizes_.most_blocks() + block));
    return region_.at(static_cast<size_t>(table.device_buffer(layer) * size + block));
  }

  LayerSwapSizes sizes_;
  std::vector<int> region_, host_;
};

TEST(LayerTableTest, NewCutsKeepWhatBlocksHave) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 400; ++trial) {
    const int layers = 3 + static_cast<int>(random() % 14);
    const int spare = 1 + static_cast<int>(random() % 2);
    const int most = spare + 1 + static_cast<int>(random() % static_cast<uint32_t>(layers - spare));
    const LayerSwapSizes sizes{.layers = layers,
                               .blocks = 1 + static_cast<int32_t>(random() % 20),
                               .most = most,
                               .spare = spare};
    SCOPED_TRACE(testing::Message() << layers << " layers, " << sizes.blocks << " blocks, most "
                                    << most << ", spare " << spare);
    LayerTable table(sizes);
    RecutMemory memory(sizes);
    for (int change = 0; change < 12; ++change) {
      int swapped = static_cast<int>(random() % static_cast<uint32_t>(most + 1));
      if (!sizes.gains_with(swapped)) swapped = 0;
      if (swapped == table.swapped_count()) continue;
      const int32_t used = std::min(table.blocks(), sizes.blocks_with(swapped));
      memory.write(table, used);
      const LayerTable::Recut cut = table.recut(swapped);
      memory.follow(cut, used);
      for (const LayerTable::Copy& in : cut.ins) table.confirm(in.layer);
      memory.expect_kept(table, used);
      if (testing::Test::HasFatalFailure()) return;
      std::set<int> host;
      for (const int layer : table.swapped_layers())
        ASSERT_TRUE(host.insert(table.host_buffer(layer)).second);
    }
  }
}

}  // namespace
}  // namespace spillway
