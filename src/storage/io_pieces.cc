// SPDX-License-Identifier: Apache-2.0
#include "storage/io_pieces.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "storage/aligned_buffer.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

IoFailure io_failure(const IoPiece& piece, const std::string& what) {
  return {ErrorCode::kIo,
          fmt::format("{} {} at byte {}: {}", piece.request->is_write ? "writing" : "reading",
                      printable_path(piece.request->file->path()), piece.next_offset(), what)};
}

bool at_end(const IoPiece& piece, size_t reached) {
  struct stat info {};
  return ::fstat(piece.request->file->descriptor(), &info) != 0 ||
         piece.offset + reached >= static_cast<uint64_t>(info.st_size);
}

}  // namespace

bool PieceQueue::push(std::shared_ptr<IoRequest> request) {
  const bool several = request->bytes > piece_bytes_;
  bool may_begin = false;
  {
    const std::lock_guard lock(mutex_);
    SPW_ASSERT(!stopped_);
    ++unfinished_;
    User& user = user_of(*request);
    user.waiting.push_back(std::move(request));
    may_begin = user.begun < user_pieces_;
  }
  if (several) {
    wake_.notify_all();
  } else {
    wake_.notify_one();
  }
  return may_begin;
}

std::optional<IoPiece> PieceQueue::next_locked() {
  for (size_t i = 0; i < users_.size(); ++i) {
    const size_t number = (turn_ + i) % users_.size();
    if (auto piece = next_of(users_[number])) {
      turn_ = number + 1;
      return piece;
    }
  }
  return std::nullopt;
}

std::optional<IoPiece> PieceQueue::next_of(User& user) {
  while (user.begun < user_pieces_ && !user.waiting.empty()) {
    const std::shared_ptr<IoRequest>& request = user.waiting.front();
    const size_t begun = request->begun_bytes;
    if (request->failure) {  // drops the rest of a failed request
      request->begun_bytes = request->bytes;
      user.waiting.pop_front();
      continue;
    }
    IoPiece piece;
    piece.request = request;
    piece.offset = request->offset + begun;
    piece.data = request->data + begun;
    piece.bytes = std::min(piece_bytes_, request->bytes - begun);
    piece.needed = std::min(piece.bytes, request->needed - std::min(request->needed, begun));
    piece.direct = request->file->is_direct();
    request->begun_bytes += piece.bytes;
    ++request->pieces_out;
    ++user.begun;
    if (request->begun_bytes == request->bytes) user.waiting.pop_front();
    return piece;
  }
  return std::nullopt;
}

std::optional<IoPiece> PieceQueue::try_next() {
  const std::lock_guard lock(mutex_);
  return next_locked();
}

std::optional<IoPiece> PieceQueue::wait_next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto piece = next_locked()) return piece;
    if (stopped_) return std::nullopt;
    wake_.wait(lock);
  }
}

bool PieceQueue::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

bool PieceQueue::continue_after(IoPiece& piece, int64_t result) {
  const IoFile& file = *piece.request->file;
  if (result == -EINTR || result == -EAGAIN) return true;
  if ((result == -EINVAL || result == -EOPNOTSUPP) && piece.direct) {
    file.stop_direct();
    piece.direct = false;
    return true;
  }
  if (result < 0) {
    end_piece(piece, io_failure(piece, error_text(result)));
    return false;
  }
  const size_t reached = piece.done_bytes + static_cast<size_t>(result);
  if (reached >= piece.needed) {
    piece.done_bytes = reached;
    end_piece(piece, std::nullopt);
    return false;
  }
  // Direct I/O continues at whole blocks, so a transfer that ended inside a block repeats that
  // block, unless the file ends there, too.
  constexpr int kMostStalls = 100;
  const size_t whole = align_down(reached);
  piece.stalls = whole > piece.done_bytes ? 0 : piece.stalls + 1;
  const bool ended = piece.stalls > 0 && !piece.request->is_write && at_end(piece, reached);
  piece.done_bytes = whole;
  if (!ended && piece.stalls < kMostStalls) return true;
  piece.done_bytes = reached;
  end_piece(piece, io_failure(piece, ended ? fmt::format("the file ends there, {} bytes too early",
                                                         piece.needed - reached)
                                           : "nothing more is transferred"));
  return false;
}

void PieceQueue::end_piece(IoPiece& piece, std::optional<IoFailure> failure) {
  const std::shared_ptr<IoRequest> request = std::move(piece.request);
  User& user = user_of(*request);
  {
    const std::lock_guard lock(mutex_);
    // Pieces with lower offsets started earlier and are waited for, so the reported error does not
    // depend on which piece ends first.
    if (failure && (!request->failure || piece.offset < request->failure_offset)) {
      request->failure = std::move(failure);
      request->failure_offset = piece.offset;
    }
    // A failed request ends here although some of its pieces have not started; next_of() drops
    // them.
    --request->pieces_out;
    const bool all_begun = request->begun_bytes == request->bytes || request->failure;
    if (request->pieces_out > 0 || !all_begun) {
      --user.begun;
      return;
    }
    request->begun_bytes = request->bytes;
    std::erase(user.waiting, request);
  }
  finish(request);
  // The slot is freed only now, because the runner was also busy with this user's callback.
  const std::lock_guard lock(mutex_);
  --user.begun;
}

void PieceQueue::finish(const std::shared_ptr<IoRequest>& request) {
  if (!request->failure) {
    (request->is_write ? bytes_written_ : bytes_read_) += request->needed;
  }
  if (request->on_done) request->on_done(request->failure ? &*request->failure : nullptr);
  request->on_done = nullptr;  // what it captured must not live as long as the ticket
  request->done.store(true, std::memory_order_release);
  request->done.notify_all();
  const std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) idle_.notify_all();
}

void PieceQueue::stop() {
  std::vector<std::shared_ptr<IoRequest>> ended;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (User& user : users_) {
      for (const auto& request : user.waiting) {
        if (!request->failure) {
          request->failure =
              IoFailure{ErrorCode::kCancelled, "the queue ended before this was read or written"};
        }
        request->begun_bytes = request->bytes;
        if (request->pieces_out == 0) ended.push_back(request);
      }
      user.waiting.clear();
    }
  }
  wake_.notify_all();
  for (const auto& request : ended) finish(request);
}

void PieceQueue::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
}

}  // namespace spillway
