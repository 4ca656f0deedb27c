// SPDX-License-Identifier: Apache-2.0
#include "base/numa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace spillway {
namespace {

namespace fs = std::filesystem;

// The tests write a folder tree like /sys/devices/system/node.
class NumaTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("numa_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void write_two_sockets() const {
    write("online", "0-1\n");
    write("has_memory", "0-1\n");
    write("node0/cpulist", "0-3,8-11\n");
    write("node1/cpulist", "4-7,12-15\n");
  }
  fs::path root_;
};

TEST_F(NumaTest, ReadsTwoSockets) {
  write_two_sockets();
  const std::vector<NumaNode> expected = {{0, {0, 1, 2, 3, 8, 9, 10, 11}},
                                          {1, {4, 5, 6, 7, 12, 13, 14, 15}}};
  EXPECT_EQ(read_numa_nodes(root_), expected);
}

TEST_F(NumaTest, NodesWithoutMemoryOrProcessorsDoNotCount) {
  write("online", "0,2-4\n");
  write("has_memory", "0,3-4\n");
  write("node0/cpulist", "0-1\n");
  write("node2/cpulist", "2-3\n");  // no memory
  write("node3/cpulist", "\n");     // a node of a device's memory has no processors
  write("node4/cpulist", "4-5\n");
  const std::vector<NumaNode> expected = {{0, {0, 1}}, {4, {4, 5}}};
  EXPECT_EQ(read_numa_nodes(root_), expected);
}

TEST_F(NumaTest, OldKernelsDoNotSayWhereMemoryIs) {
  write("online", "0\n");
  write("node0/cpulist", "0\n");
  EXPECT_EQ(read_numa_nodes(root_).size(), 1U);
}

TEST_F(NumaTest, WhatMakesNoSenseIsNoNode) {
  EXPECT_TRUE(read_numa_nodes(root_ / "gone").empty());
  EXPECT_TRUE(read_numa_nodes(root_).empty());
  write("online", "zero\n");
  EXPECT_TRUE(read_numa_nodes(root_).empty());
  write("online", "0-2\n");
  write("node0/cpulist", "0-\n");
  write("node2/cpulist", "1\n");
  const std::vector<NumaNode> expected = {{2, {1}}};
  EXPECT_EQ(read_numa_nodes(root_), expected);
}

TEST_F(NumaTest, OnlyAllowedProcessorsAreLeft) {
  write_two_sockets();
  const auto nodes = read_numa_nodes(root_);
  const int allowed[] = {2, 3, 12};
  const std::vector<NumaNode> expected = {{0, {2, 3}}, {1, {12}}};
  EXPECT_EQ(nodes_within(nodes, allowed), expected);
  EXPECT_EQ(nodes_within(nodes, std::span(allowed).first(2)).size(), 1U);
}

TEST_F(NumaTest, WorkersAreSpreadByProcessors) {
  const std::vector<NumaNode> even = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};
  const std::vector<NumaNode> uneven = {{0, {0, 1, 2, 3, 4, 5}}, {3, {6, 7}}};
  const auto on_first = [](const std::vector<std::vector<int>>& placed, const NumaNode& node) {
    size_t count = 0;
    while (count < placed.size() && placed[count] == node.cpus) ++count;
    return count;
  };
  for (const int workers : {2, 3, 4, 8, 16, 17}) {
    const auto placed = spread_over_nodes(workers, even);
    ASSERT_EQ(placed.size(), static_cast<size_t>(workers));
    EXPECT_NEAR(static_cast<double>(on_first(placed, even[0])), workers / 2.0, 0.5);
    EXPECT_EQ(placed.back(), even[1].cpus);
  }
  EXPECT_EQ(on_first(spread_over_nodes(8, uneven), uneven[0]), 6U);
  EXPECT_EQ(on_first(spread_over_nodes(4, uneven), uneven[0]), 3U);
}

TEST_F(NumaTest, OneNodeOrOneWorkerNeedsNoPlace) {
  const std::vector<NumaNode> one = {{0, {0, 1}}}, two = {{0, {0}}, {1, {1}}};
  EXPECT_TRUE(spread_over_nodes(2, one).empty());
  EXPECT_TRUE(spread_over_nodes(2, {}).empty());
  EXPECT_TRUE(spread_over_nodes(1, two).empty());
}

TEST_F(NumaTest, InterleavedMemoryIsMemory) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* data = std::malloc(kBytes);
  interleave_memory(data, kBytes);
  {
    const InterleavedFaults spread;
    std::memset(data, 7, kBytes);
  }
  EXPECT_EQ(static_cast<char*>(data)[kBytes - 1], 7);
  interleave_memory(data, 1);
  std::free(data);
}

}  // namespace
}  // namespace spillway
