// SPDX-License-Identifier: Apache-2.0
// A file of rows of one size on disk, which are read and written in runs of adjacent rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/spill_file.h"

namespace spillway {

// A run that is being read. Move-only; the file and the buffer must outlive it.
class RowRead {
 public:
  // Blocks until the run has arrived. Throws kCorrupt if it is not what was written or cannot be
  // read: either way it is lost. A second call does nothing.
  void wait();

 private:
  friend class RowFile;
  std::vector<SpillRead> pieces_;
};

// A run that is being written.
class RowWrite {
 public:
  // Blocks until the run is written. Throws kIo. A second call does nothing.
  void wait();

 private:
  friend class RowFile;
  std::vector<IoTicket> pieces_;
};

// A file of rows of activations. Owns the file, which disappears with the process; the queue is the
// engine's and must outlive it. A run must be read as it was written: with the same first row and
// number of rows. Runs are cut into pieces of about kPieceBytes, each with a checksum, which are
// transferred concurrently. A read waits for writes of the same run in flight; runs that overlap in
// any other way must not be in flight together. Reads may come from one thread and writes from
// another; each waits for its own.
class RowFile {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // Reserves the disk space immediately. Throws kIo if there is not enough, kInvalidArgument if it
  // exceeds the budget. `label`: a-z, for messages.
  RowFile(IoQueue& queue, const std::filesystem::path& folder, const std::string& label,
          size_t row_bytes, uint32_t rows, uint64_t budget_bytes);

  // The bytes that a file takes on disk, and a run in memory: there rows are contiguous, beginning
  // at a multiple of kDirectAlignment.
  static uint64_t file_bytes(size_t row_bytes, uint64_t rows) {
    return SpillFile::file_bytes(row_bytes, rows);
  }
  static size_t buffer_bytes(size_t row_bytes, int64_t rows) {
    return align_up(row_bytes * static_cast<size_t>(rows));
  }

  RowRead read(int64_t first, int64_t rows, std::byte* buffer);
  RowWrite write(int64_t first, int64_t rows, const std::byte* buffer);

 private:
  // Calls `fn` with the first row, the bytes and the offset in the buffer of each piece of a run.
  template <class Fn>
  void for_each_piece(int64_t first, int64_t rows, Fn&& fn) const;

  size_t row_bytes_;
  int64_t piece_rows_;
  SpillFile file_;
};

}  // namespace spillway
