// SPDX-License-Identifier: Apache-2.0
// Rows of one size that live on disk, and come and go a run of neighbours at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/spill_file.h"

namespace spillway {

// A run on its way in. Move-only; the file and the buffer must outlive it.
class RowRead {
 public:
  // Blocks until it is there. Throws kCorrupt where it is not what was written, or cannot be read:
  // either way it is lost. Does nothing a second time.
  void wait();

 private:
  friend class RowFile;
  std::vector<SpillRead> pieces_;
};

// A run on its way out.
class RowWrite {
 public:
  // Throws kIo. Does nothing a second time.
  void wait();

 private:
  friend class RowFile;
  std::vector<IoTicket> pieces_;
};

// Rows of activations. Owns the file, which is gone with the process; the queue is the engine's and
// must outlive it. A run is read as it was written: with the same
// first row and as many rows. Runs are cut into pieces of about kPieceBytes, each with a checksum,
// all on their way at once. Reads wait for writes of the same run that are on their way; runs that
// overlap otherwise must not be on their way together. Reads may come from one thread and writes
// from another; each waits for its own.
class RowFile {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // Takes the disk's room at once. Throws kIo where there is none, kInvalidArgument beyond the
  // budget. `label`: a-z, for people.
  RowFile(IoQueue& queue, const std::filesystem::path& folder, const std::string& label,
          size_t row_bytes, uint32_t rows, uint64_t budget_bytes);

  // What a file takes of the disk, and a run of memory: rows lie behind each other there, from a
  // multiple of kDirectAlignment on.
  static uint64_t file_bytes(size_t row_bytes, uint64_t rows) {
    return SpillFile::file_bytes(row_bytes, rows);
  }
  static size_t buffer_bytes(size_t row_bytes, int64_t rows) {
    return align_up(row_bytes * static_cast<size_t>(rows));
  }

  RowRead read(int64_t first, int64_t rows, std::byte* buffer);
  RowWrite write(int64_t first, int64_t rows, const std::byte* buffer);

 private:
  // Calls with the first row, the rows and the offset in the buffer of each piece of a run.
  template <class Fn>
  void for_each_piece(int64_t first, int64_t rows, Fn&& fn) const;

  size_t row_bytes_;
  int64_t piece_rows_;
  SpillFile file_;
};

}  // namespace spillway
