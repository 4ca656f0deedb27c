// SPDX-License-Identifier: Apache-2.0
#include "memory/piece_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/error.h"

namespace spillway {
namespace {

using ::testing::ElementsAre;

TEST(CutExtentsTest, CutsAtGrainsInTheOrderOfTheFiles) {
  const std::vector<CutExtent> extents{
      {{1, 50, 25}, 10}, {{0, 1000, 7}, 30}, {{0, 100, 0}, 1}, {{1, 0, 21}, 3}};
  // Each has the extent, the offset in it, the file, the offset in that, and the bytes.
  std::vector<std::vector<uint64_t>> pieces;
  for (const Piece& p : cut_extents(extents, 20)) {
    pieces.push_back({p.index, p.offset, static_cast<uint64_t>(p.in_file.file), p.in_file.offset,
                      p.in_file.bytes});
  }
  EXPECT_THAT(pieces, ElementsAre(ElementsAre(1, 0, 0, 1000, 7), ElementsAre(3, 0, 1, 0, 18),
                                  ElementsAre(3, 18, 1, 18, 3), ElementsAre(0, 0, 1, 50, 20),
                                  ElementsAre(0, 20, 1, 70, 5)));
}

std::vector<Piece> many_pieces(size_t count) {
  const std::vector<CutExtent> whole{{{0, 0, count * 10}, 10}};
  return cut_extents(whole, 10);
}

TEST(ForEachPieceTest, WorksOnEachOnceAndReportsGrowingProgress) {
  for (const int workers : {1, 5}) {
    std::mutex mutex;
    std::multiset<uint64_t> offsets;
    uint64_t last = 0;
    WeightLoadOptions options;
    options.progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GT(done, last);
      EXPECT_EQ(total, 3000U);
      last = done;
    };
    for_each_piece(many_pieces(300), workers, options, [&](const Piece& piece, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, workers);
      const std::lock_guard lock(mutex);
      offsets.insert(piece.offset);
    });
    EXPECT_EQ(last, 3000U);
    EXPECT_EQ(offsets.size(), 300U);
    EXPECT_EQ(std::set(offsets.begin(), offsets.end()).size(), 300U);
  }
  for_each_piece({}, 4, {}, [](const Piece&, int) { FAIL(); });
}

TEST(ForEachPieceTest, StopsAtTheFirstFailureWhoeverHasIt) {
  for (const int workers : {1, 4}) {
    std::atomic<int> begun{0};
    EXPECT_THROW(for_each_piece(many_pieces(10'000), workers, {},
                                [&](const Piece& piece, int) {
                                  ++begun;
                                  if (piece.offset >= 50) throw 7;
                                }),
                 int);
    EXPECT_LT(begun, 10'000);
    WeightLoadOptions options;
    options.progress = [](uint64_t, uint64_t) { throw 8; };
    EXPECT_THROW(for_each_piece(many_pieces(100), workers, options, [](const Piece&, int) {}), int);
  }
}

TEST(ForEachPieceTest, StopsWhenCancelled) {
  std::atomic<bool> cancel{false};
  WeightLoadOptions options;
  options.cancel = &cancel;
  std::atomic<int> begun{0};
  try {
    for_each_piece(many_pieces(10'000), 3, options, [&](const Piece&, int) {
      ++begun;
      cancel = true;
    });
    FAIL() << "was not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  EXPECT_LE(begun, 3);
}

}  // namespace
}  // namespace spillway
