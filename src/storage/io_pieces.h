// SPDX-License-Identifier: Apache-2.0
// The inside of IoQueue: splits requests into pieces, and decides what follows from the system's
// answer to a piece. The runners (io_uring_runner.cc, io_thread_runner.cc) only carry pieces to the
// system and back.
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
  std::byte* data = nullptr;  // only read from if is_write
  size_t bytes = 0;
  size_t needed = 0;
  IoCallback on_done;

  // The fields below, except `done`, are guarded by the queue's mutex.
  size_t begun_bytes = 0;  // bytes whose pieces have been handed out
  size_t pieces_out = 0;
  std::optional<IoFailure> failure;  // the one with the lowest offset; final when `done`
  uint64_t failure_offset = 0;

  std::atomic<bool> done{false};
};

// A part of a request, at most piece_bytes long, that is in flight or about to be.
struct IoPiece {
  std::shared_ptr<IoRequest> request;
  uint64_t offset = 0;  // file offset of data[0]
  std::byte* data = nullptr;
  size_t bytes = 0, needed = 0, done_bytes = 0;
  int stalls = 0;       // consecutive answers without progress
  bool direct = false;  // whether the file was direct when the piece was submitted

  uint64_t next_offset() const { return offset + done_bytes; }
  std::span<std::byte> rest() const { return {data + done_bytes, bytes - done_bytes}; }
};

// Thread-safe.
class PieceQueue {
 public:
  // Each user has at most `user_pieces` pieces in flight.
  PieceQueue(size_t piece_bytes, int user_pieces)
      : piece_bytes_(piece_bytes), user_pieces_(user_pieces) {}

  // Returns whether a piece of the request may start now. If not, one will when other pieces of the
  // same user have ended.
  bool push(std::shared_ptr<IoRequest> request);
  // Returns the next piece to start, if any.
  std::optional<IoPiece> try_next();
  // Waits for a piece; returns nullopt after stop().
  std::optional<IoPiece> wait_next();
  bool stopped() const;

  // Takes the system's answer (bytes or -errno) for piece.rest(). Returns true if the piece must be
  // submitted again, false if it has ended, with or without an error.
  [[nodiscard]] bool continue_after(IoPiece& piece, int64_t result);

  // Cancels the parts of requests that have not started; no new ones start.
  void stop();
  void drain();

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  struct User {
    std::deque<std::shared_ptr<IoRequest>> waiting;  // have bytes that are not started
    int begun = 0;                                   // pieces in flight
  };
  User& user_of(const IoRequest& request) {
    return users_[static_cast<size_t>(request.file->user())];
  }
  // Picks the next piece, from the users in turn.
  std::optional<IoPiece> next_locked();
  std::optional<IoPiece> next_of(User& user);
  void end_piece(IoPiece& piece, std::optional<IoFailure> failure);
  void finish(const std::shared_ptr<IoRequest>& request);

  const size_t piece_bytes_;
  const int user_pieces_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::array<User, kIoUserCount> users_;
  size_t turn_ = 0;  // the user to look at first
  size_t unfinished_ = 0;
  bool stopped_ = false;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
};

// Carries pieces from a queue to the system with threads. Destroyed after PieceQueue::stop().
class PieceRunner {
 public:
  virtual ~PieceRunner() = default;
  virtual IoBackend backend() const = 0;
  // Called before the first piece of a user, by one thread at a time. Afterwards the runner can
  // carry as many more pieces as that user may have in flight.
  virtual void add_user() = 0;
  // Called when a request was pushed or the queue has stopped.
  virtual void wake() = 0;
};

// Returns nullptr if io_uring is not allowed or too old; `reason` then says why.
std::unique_ptr<PieceRunner> try_make_uring_runner(PieceQueue& pieces, int user_pieces,
                                                   std::string& reason);
std::unique_ptr<PieceRunner> make_thread_runner(PieceQueue& pieces, int user_threads);

}  // namespace spillway
