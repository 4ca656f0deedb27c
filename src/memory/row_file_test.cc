// SPDX-License-Identifier: Apache-2.0
#include "memory/row_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

// Makes rows that differ from each other and from seed to seed.
AlignedBuffer make_rows(size_t row_bytes, int64_t rows, int seed) {
  AlignedBuffer buffer(RowFile::buffer_bytes(row_bytes, rows));
  for (size_t i = 0; i < buffer.size(); ++i)
    buffer.data()[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<size_t>(seed) * 13);
  return buffer;
}

class RowFileTest : public testing::Test {
 protected:
  void TearDown() override { disarm_faults(); }

  // Reads a run and checks that its bytes are as written; returns the error if it cannot be read.
  std::optional<ErrorCode> check(RowFile& file, size_t row_bytes, int64_t first, int64_t rows,
                                 int seed) {
    AlignedBuffer buffer(RowFile::buffer_bytes(row_bytes, rows));
    try {
      file.read(first, rows, buffer.data()).wait();
    } catch (const Error& error) {
      return error.code();
    }
    const AlignedBuffer expected = make_rows(row_bytes, rows, seed);
    EXPECT_TRUE(std::ranges::equal(
        buffer.span().first(row_bytes * static_cast<size_t>(rows)),
        std::span(expected.span()).first(row_bytes * static_cast<size_t>(rows))));
    return std::nullopt;
  }
  void write(RowFile& file, size_t row_bytes, int64_t first, int64_t rows, int seed) {
    const AlignedBuffer buffer = make_rows(row_bytes, rows, seed);
    file.write(first, rows, buffer.span().data()).wait();
  }

  TempFolder folder_;
  IoQueue queue_;
};

// Covers rows smaller and larger than a disk block, not a multiple of it, or larger than a piece;
// and runs of one piece or many that begin anywhere.
TEST_F(RowFileTest, GivesBackRunsAsTheyWereWritten) {
  for (const size_t row_bytes : {size_t{28}, size_t{256}, size_t{3072}, size_t{4096}, size_t{10240},
                                 size_t{28672}, size_t{3} << 20}) {
    SCOPED_TRACE(row_bytes);
    const int64_t many = row_bytes > 100'000 ? 3 : 400;
    RowFile file(queue_, folder_.path(), "rows", row_bytes, static_cast<uint32_t>(3 * many + 1),
                 ~0ull);
    write(file, row_bytes, 0, many, 1);
    write(file, row_bytes, many, 1, 2);
    write(file, row_bytes, many + 1, many, 3);
    write(file, row_bytes, 2 * many + 1, many, 4);
    EXPECT_EQ(check(file, row_bytes, many + 1, many, 3), std::nullopt);
    EXPECT_EQ(check(file, row_bytes, many, 1, 2), std::nullopt);
    EXPECT_EQ(check(file, row_bytes, 2 * many + 1, many, 4), std::nullopt);
    EXPECT_EQ(check(file, row_bytes, 0, many, 1), std::nullopt);
    // The next time the rows are divided into other runs.
    write(file, row_bytes, many - 1, 2, 5);
    write(file, row_bytes, 0, many - 1, 6);
    EXPECT_EQ(check(file, row_bytes, many - 1, 2, 5), std::nullopt);
    EXPECT_EQ(check(file, row_bytes, 0, many - 1, 6), std::nullopt);
  }
}

TEST_F(RowFileTest, WhatDoesNotComeBackIsLost) {
  constexpr size_t kRow = 28672;
  RowFile file(queue_, folder_.path(), "rows", kRow, 200, ~0ull);
  write(file, kRow, 10, 150, 1);
  arm_fault("io.read", 3, FaultKind::kEio);
  EXPECT_EQ(check(file, kRow, 10, 150, 1), ErrorCode::kCorrupt);
  disarm_faults();
  EXPECT_EQ(check(file, kRow, 10, 150, 1), std::nullopt);
  arm_fault("spill.flip", 2, FaultKind::kEio);
  EXPECT_EQ(check(file, kRow, 10, 150, 1), ErrorCode::kCorrupt);
  disarm_faults();
  EXPECT_EQ(check(file, kRow, 11, 10, 1), ErrorCode::kCorrupt) << "never written so";
  arm_fault("io.write", 2, FaultKind::kEio);
  EXPECT_THROW(write(file, kRow, 10, 150, 2), Error);
  disarm_faults();
  EXPECT_EQ(check(file, kRow, 10, 150, 2), ErrorCode::kCorrupt);
}

TEST_F(RowFileTest, HoldsItsBudget) {
  EXPECT_EQ(RowFile::file_bytes(3000, 10), 40960u);
  EXPECT_NO_THROW(RowFile(queue_, folder_.path(), "rows", 3000, 10, 40960));
  EXPECT_THROW(RowFile(queue_, folder_.path(), "rows", 3000, 10, 40959), Error);
}

}  // namespace
}  // namespace spillway
