// SPDX-License-Identifier: Apache-2.0
#include "memory/block_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "memory/row_file.h"
#include "storage/extent_reader.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

constexpr size_t kBlock = 5000;  // not a multiple of a disk block

void fill(std::span<std::byte> bytes, size_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed * 13);
}
bool is_filled(std::span<const std::byte> bytes, size_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>(i * 7 + i / 251 + seed * 13)) return false;
  }
  return true;
}

class BlockFileTest : public testing::TestWithParam<IoBackend> {
 protected:
  void TearDown() override { disarm_faults(); }
  static IoQueueOptions options() {
    return {.depth = 3, .piece_bytes = 2 * kDirectAlignment, .threads = 2, .backend = GetParam()};
  }

  // Writes to each id a content of its own, which differs from `round` to `round`.
  static void write(BlockFile& file, std::span<const uint32_t> ids, size_t round) {
    AlignedBuffer buffer(ids.size() * file.stride());
    for (size_t i = 0; i < ids.size(); ++i)
      fill(buffer.span().subspan(i * file.stride(), kBlock), ids[i] + round);
    file.write(ids, buffer.data());
  }
  static bool reads_back(BlockFile& file, std::span<const uint32_t> ids, size_t round) {
    AlignedBuffer buffer(ids.size() * file.stride());
    file.read(ids, buffer.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!is_filled(buffer.span().subspan(i * file.stride(), kBlock), ids[i] + round))
        return false;
    }
    return true;
  }

  TempFolder folder_;
  IoQueue queue_{options()};
};

TEST_P(BlockFileTest, GivesBackBlocksInAnyOrder) {
  BlockFile file(queue_, folder_.path(), kBlock, 20, ~uint64_t{0});
  const std::vector<uint32_t> all = {0, 5, 19, 7, 8, 9, 3}, some = {9, 0, 19};
  write(file, all, 1);
  EXPECT_TRUE(reads_back(file, some, 1));
  write(file, some, 2);
  EXPECT_TRUE(reads_back(file, some, 2));
  EXPECT_TRUE(reads_back(file, std::vector<uint32_t>{3, 8}, 1));
}

TEST_P(BlockFileTest, WhatDoesNotComeBackIsLost) {
  BlockFile file(queue_, folder_.path(), kBlock, 20, ~uint64_t{0});
  const std::vector<uint32_t> ids = {1, 2, 3};
  write(file, ids, 1);
  for (const char* point : {"io.read", "spill.flip"}) {
    arm_fault(point, 2, FaultKind::kEio);
    try {
      reads_back(file, ids, 1);
      ADD_FAILURE() << point;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    disarm_faults();
    EXPECT_TRUE(reads_back(file, ids, 1));
  }
}

// Simulates a step: KV is read and written on two threads, activations and weights on two more,
// all through one queue. Each gets its own bytes, and finishes although the others do not stop
// before it does.
TEST_P(BlockFileTest, KvRowsAndWeightsShareAQueue) {
  constexpr size_t kWeights = 300'000, kRow = 3000;
  constexpr int64_t kRows = 40;
  std::vector<std::byte> content(kWeights);
  fill(content, 99);
  const std::vector<std::filesystem::path> paths = {folder_.write("weights", content)};
  const ExtentReader weights(queue_, paths);
  BlockFile kv(queue_, folder_.path(), kBlock, 20, ~uint64_t{0});
  RowFile rows(queue_, folder_.path(), "rows", kRow, kRows, ~uint64_t{0});
  const std::vector<uint32_t> kept = {0, 1, 2, 3}, changed = {10, 11, 12, 13};
  write(kv, kept, 0);

  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  const auto repeat = [&](auto&& work) {
    threads.emplace_back([&wrong, work] {
      for (size_t round = 1; round <= 30; ++round) wrong += work(round) ? 0 : 1;
    });
  };
  repeat([&](size_t) { return reads_back(kv, kept, 0); });
  repeat([&](size_t round) {
    write(kv, changed, round);
    return true;
  });
  repeat([&](size_t round) {
    AlignedBuffer out(RowFile::buffer_bytes(kRow, kRows)), in(out.size());
    fill(out.span(), round);
    rows.write(0, kRows, out.data()).wait();
    rows.read(0, kRows, in.data()).wait();
    return is_filled(in.span().first(kRow * kRows), round);
  });
  repeat([&](size_t round) {
    const Extent extent{0, round * 101, kWeights - round * 101};
    AlignedBuffer buffer(ExtentReader::buffer_bytes({&extent, 1}));
    ExtentBatch batch = weights.begin({&extent, 1}, buffer.span());
    batch.wait();
    return std::ranges::equal(batch.bytes(0), std::span(content).subspan(round * 101));
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(reads_back(kv, changed, 30));
}

INSTANTIATE_TEST_SUITE_P(Backends, BlockFileTest,
                         testing::Values(IoBackend::kAuto, IoBackend::kThreads),
                         [](const auto& each) {
                           return each.param == IoBackend::kAuto ? "Auto" : "Threads";
                         });

}  // namespace
}  // namespace spillway
