// SPDX-License-Identifier: Apache-2.0
#include "memory/row_file.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace spillway {
namespace {

// The number of rows in a piece. Pieces end at the end of a disk block, so that they are
// contiguous in memory.
int64_t rows_in_piece(size_t row_bytes) {
  const size_t together = kDirectAlignment / std::gcd(kDirectAlignment, row_bytes);
  return static_cast<int64_t>(together *
                              std::max<size_t>(1, RowFile::kPieceBytes / (together * row_bytes)));
}

}  // namespace

void RowRead::wait() {
  try {
    for (SpillRead& piece : pieces_) piece.wait();
    pieces_.clear();
  } catch (const Error& error) {
    pieces_.clear();  // waits for the other pieces
    // A run that is unreadable or not what was written is lost either way.
    fail(ErrorCode::kCorrupt, "{}", error.what());
  }
}

void RowWrite::wait() {
  std::vector<IoTicket> pieces = std::move(pieces_);
  pieces_.clear();
  wait_all(pieces);
}

RowFile::RowFile(IoQueue& queue, const std::filesystem::path& folder, const std::string& label,
                 size_t row_bytes, uint32_t rows, uint64_t budget_bytes)
    : row_bytes_(row_bytes),
      piece_rows_(rows_in_piece(row_bytes)),
      file_(queue, {.dir = folder,
                    .label = label,
                    .user = IoUser::kActivations,
                    .block_bytes = row_bytes,
                    .blocks = rows,
                    .joined_blocks = static_cast<uint32_t>(piece_rows_),
                    .budget_bytes = budget_bytes}) {}

template <class Fn>
void RowFile::for_each_piece(int64_t first, int64_t rows, Fn&& fn) const {
  for (int64_t done = 0; done < rows; done += piece_rows_) {
    const auto bytes = static_cast<size_t>(std::min(piece_rows_, rows - done)) * row_bytes_;
    fn(static_cast<uint32_t>(first + done), bytes, static_cast<size_t>(done) * row_bytes_);
  }
}

RowRead RowFile::read(int64_t first, int64_t rows, std::byte* buffer) {
  RowRead run;
  for_each_piece(first, rows, [&](uint32_t row, size_t bytes, size_t offset) {
    run.pieces_.push_back(file_.read(row, {buffer + offset, SpillFile::buffer_bytes(bytes)}));
  });
  return run;
}

RowWrite RowFile::write(int64_t first, int64_t rows, const std::byte* buffer) {
  RowWrite run;
  for_each_piece(first, rows, [&](uint32_t row, size_t bytes, size_t offset) {
    run.pieces_.push_back(file_.write(row, {buffer + offset, bytes}));
  });
  return run;
}

}  // namespace spillway
