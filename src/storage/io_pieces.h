// SPDX-License-Identifier: Apache-2.0
// Inside IoQueue: requests cut into pieces, and what becomes of a piece when the system answers.
// The runners (io_uring_runner.cc, io_thread_runner.cc) only carry pieces to the system and back.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/io_answer.h"
#include "storage/io_file.h"

namespace spillway {

struct IoRequest {
  bool is_write = false;
  const IoFile* file = nullptr;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // only read from where is_write
  size_t bytes = 0;
  size_t needed = 0;
  IoCallback on_done;

  // Guarded by the queue's mutex.
  size_t begun_bytes = 0;  // of which pieces have been handed out
  size_t pieces_out = 0;
  std::optional<IoFailure> failure;  // of the lowest offset; final when `done`
  uint64_t failure_offset = 0;

  std::atomic<bool> done{false};
};

// A part of a request, at most piece_bytes long, that is with the system or about to be.
struct IoPiece {
  std::shared_ptr<IoRequest> request;
  uint64_t offset = 0;  // in the file, of data[0]
  std::byte* data = nullptr;
  size_t bytes = 0, needed = 0, done_bytes = 0;
  int stalls = 0;       // answers in a row that brought nothing
  bool direct = false;  // how the file was opened when it was handed in

  uint64_t next_offset() const { return offset + done_bytes; }
  std::span<std::byte> rest() const { return {data + done_bytes, bytes - done_bytes}; }
};

// Thread-safe.
class PieceQueue {
 public:
  // Each user has at most `user_pieces` with the system at once.
  PieceQueue(size_t piece_bytes, int user_pieces)
      : piece_bytes_(piece_bytes), user_pieces_(user_pieces) {}

  // Whether something of it may begin now; otherwise that is when others of its user have ended.
  bool push(std::shared_ptr<IoRequest> request);
  // The next piece to begin.
  std::optional<IoPiece> try_next();
  // Waits for one; nullopt after stop().
  std::optional<IoPiece> wait_next();
  bool stopped() const;

  // Takes the system's answer (bytes or -errno) for piece.rest(). True: hand it in again. False:
  // it has ended, well or not.
  [[nodiscard]] bool continue_after(IoPiece& piece, int64_t result);

  // Requests of which no piece has begun are cancelled; no others begin.
  void stop();
  void drain();

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  struct User {
    std::deque<std::shared_ptr<IoRequest>> waiting;  // with bytes that have not begun
    int begun = 0;                                   // pieces, with the system
  };
  User& user_of(const IoRequest& request) {
    return users_[static_cast<size_t>(request.file->user())];
  }
  // Whose turn it is decides.
  std::optional<IoPiece> next_locked();
  std::optional<IoPiece> next_of(User& user);
  void end_piece(IoPiece& piece, std::optional<IoFailure> failure);
  void finish(const std::shared_ptr<IoRequest>& request);

  const size_t piece_bytes_;
  const int user_pieces_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::array<User, kIoUserCount> users_;
  size_t turn_ = 0;  // who is asked first
  size_t unfinished_ = 0;
  bool stopped_ = false;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
};

// Threads that take pieces from a queue to the system. Destroyed after PieceQueue::stop().
class PieceRunner {
 public:
  virtual ~PieceRunner() = default;
  virtual IoBackend backend() const = 0;
  // Before the first piece of a user: there are then as many carriers more as it may have pieces
  // with the system. By one thread at a time.
  virtual void add_user() = 0;
  // Something was pushed, or the queue has stopped.
  virtual void wake() = 0;
};

// Null where io_uring is not allowed or too old; `reason` then says why.
std::unique_ptr<PieceRunner> try_make_uring_runner(PieceQueue& pieces, int user_pieces,
                                                   std::string& reason);
std::unique_ptr<PieceRunner> make_thread_runner(PieceQueue& pieces, int user_threads);

}  // namespace spillway
