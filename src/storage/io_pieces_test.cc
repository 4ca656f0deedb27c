// SPDX-License-Identifier: Apache-2.0
// Tests which piece comes next, without threads or system calls.
#include "storage/io_pieces.h"

#include <gtest/gtest.h>

#include <vector>

#include "storage/aligned_buffer.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

constexpr size_t kPiece = 2 * kDirectAlignment;

class PieceQueueTest : public ::testing::Test {
 protected:
  PieceQueueTest() {
    for (const IoUser user : {IoUser::kWeights, IoUser::kKv, IoUser::kActivations})
      files_.push_back(
          std::make_unique<IoFile>(folder_.write("f", "x"), IoFile::Access::kRead, user));
  }

  std::shared_ptr<IoRequest> request(IoUser user, size_t pieces) {
    auto made = std::make_shared<IoRequest>();
    made->file = files_[static_cast<size_t>(user)].get();
    made->data = memory_.data();
    made->bytes = made->needed = pieces * kPiece;
    return made;
  }
  // Takes pieces until there are none and returns their users.
  std::vector<IoUser> take_all(PieceQueue& queue) {
    std::vector<IoUser> users;
    while (auto piece = queue.try_next()) {
      users.push_back(piece->request->file->user());
      out_.push_back(std::move(*piece));
    }
    return users;
  }
  // Ends the oldest piece of a user that is in flight.
  static void end(PieceQueue& queue, std::vector<IoPiece>& out, IoUser user, int64_t result) {
    for (auto piece = out.begin(); piece != out.end(); ++piece) {
      if (piece->request->file->user() != user) continue;
      EXPECT_FALSE(queue.continue_after(*piece, result));
      out.erase(piece);
      return;
    }
    FAIL() << "nothing is with the system";
  }
  void end_well(PieceQueue& queue, IoUser user) { end(queue, out_, user, kPiece); }

  static constexpr IoUser kW = IoUser::kWeights, kK = IoUser::kKv, kA = IoUser::kActivations;
  TempFolder folder_;
  std::vector<std::unique_ptr<IoFile>> files_;
  AlignedBuffer memory_{16 * kPiece};
  std::vector<IoPiece> out_;  // in flight
};

using Users = std::vector<IoUser>;

TEST_F(PieceQueueTest, UsersTakeTurnsWithAPieceEach) {
  PieceQueue queue(kPiece, 100);
  queue.push(request(kW, 4));
  queue.push(request(kW, 1));
  queue.push(request(kK, 2));
  queue.push(request(kA, 3));
  EXPECT_EQ(take_all(queue), (Users{kW, kK, kA, kW, kK, kA, kW, kA, kW, kW}));
  for (size_t i = 1; i < out_.size(); ++i) {  // the pieces of each request come in order
    for (size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(out_[i].request != out_[j].request || out_[j].offset < out_[i].offset);
    }
  }
}

TEST_F(PieceQueueTest, WhoHasManyHoldsUpNoOther) {
  PieceQueue queue(kPiece, 2);
  EXPECT_TRUE(queue.push(request(kW, 5)));
  EXPECT_EQ(take_all(queue), (Users{kW, kW}));
  EXPECT_FALSE(queue.push(request(kW, 1))) << "behind its own";
  EXPECT_EQ(take_all(queue), Users{});
  EXPECT_TRUE(queue.push(request(kK, 3))) << "has its own room";
  EXPECT_EQ(take_all(queue), (Users{kK, kK}));
  end_well(queue, kW);
  EXPECT_EQ(take_all(queue), (Users{kW}));
  end_well(queue, kK);
  end_well(queue, kW);
  EXPECT_EQ(take_all(queue), (Users{kK, kW}));
}

TEST_F(PieceQueueTest, WhatFailsGivesItsRoomBack) {
  PieceQueue queue(kPiece, 2);
  const auto failing = request(kK, 6);
  queue.push(failing);
  EXPECT_EQ(take_all(queue), (Users{kK, kK}));
  end(queue, out_, kK, -EIO);
  EXPECT_EQ(take_all(queue), Users{}) << "of a request that failed nothing more begins";
  EXPECT_FALSE(failing->done);
  end_well(queue, kK);
  EXPECT_TRUE(failing->done);
  EXPECT_TRUE(failing->failure);
  EXPECT_TRUE(queue.push(request(kK, 3)));
  EXPECT_EQ(take_all(queue), (Users{kK, kK}));
}

TEST_F(PieceQueueTest, StoppingCancelsPiecesThatHaveNotBegun) {
  PieceQueue queue(kPiece, 1);
  const auto begun = request(kW, 1), waits = request(kW, 1), others = request(kA, 1);
  queue.push(begun);
  EXPECT_EQ(take_all(queue), (Users{kW}));
  queue.push(waits);
  queue.push(others);
  queue.stop();
  EXPECT_EQ(take_all(queue), Users{});
  EXPECT_TRUE(waits->done && others->done && !begun->done);
  EXPECT_EQ(others->failure->code, ErrorCode::kCancelled);
  end_well(queue, kW);
  EXPECT_TRUE(begun->done && !begun->failure);
  queue.drain();
}

}  // namespace
}  // namespace spillway
