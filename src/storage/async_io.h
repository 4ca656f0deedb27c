// SPDX-License-Identifier: Apache-2.0
// Asynchronous file I/O: many reads and writes in flight, through io_uring or, where that is not
// allowed, through threads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "storage/aligned_buffer.h"
#include "storage/io_answer.h"
#include "storage/io_file.h"

namespace spillway {

struct IoRequest;   // io_pieces.h
class PieceQueue;   // io_pieces.h
class PieceRunner;  // io_pieces.h

// A read or write in flight. Move-only. Its file and memory must stay unchanged until it is done,
// so declare it after them: the destructor waits, too, and ignores an error.
class IoTicket {
 public:
  IoTicket() = default;
  explicit IoTicket(std::shared_ptr<IoRequest> request) : request_(std::move(request)) {}
  ~IoTicket();
  IoTicket(IoTicket&&) noexcept = default;
  IoTicket& operator=(IoTicket&& other) noexcept;
  IoTicket(const IoTicket&) = delete;
  IoTicket& operator=(const IoTicket&) = delete;

  // Whether there is something to wait for; false after wait().
  bool pending() const { return request_ != nullptr; }
  // Never blocks. A failed transfer is done, too.
  bool is_done() const;
  // Blocks until done. Throws the error of the transfer: kIo naming path and offset, or kCancelled
  // if the queue was destroyed first. A second call does nothing.
  void wait();

 private:
  std::shared_ptr<IoRequest> request_;
};

// Waits for all tickets, then throws the first error, if any.
void wait_all(std::span<IoTicket> tickets);

// A read of an extent in flight: `bytes` are valid once the ticket is done.
struct ExtentRead {
  IoTicket ticket;
  std::span<const std::byte> bytes;
};

struct IoQueueOptions {
  int depth = 32;                        // pieces of one user in flight, of reads and of writes
  size_t piece_bytes = size_t{1} << 20;  // requests are split into pieces of this size, a multiple
                                         // of kDirectAlignment
  int threads = 16;                      // for each user where threads are used; at most `depth`
  IoBackend backend = IoBackend::kAuto;  // kUring throws kUnsupported where it is not allowed
};

// Carries all reads and writes of one engine to the disk. The code that makes the devices also
// makes the queue; everything that reads or writes files beside the compute refers to it, and it
// outlives them.
//
// Submitting: any thread may submit. Today these are the threads that load weights (some are
// written to a file, or read from the file of the previous plan), the thread of WeightStream, and
// for KV and activations the step's own thread and those of the device's streams. No call here
// waits for the disk except drain().
//
// Waiting: each caller waits for its own tickets. Only the queue's threads take completions from
// the system, and each of them completes the request it belongs to, so no waiting thread can take,
// or be delayed by, another one's. Transfers go on while the callers compute.
//
// Order: the reads of a user (IoUser) start in the order of submission, and so do its writes, in a
// queue of their own: what a layer needs next does not wait for what another layer writes. Users
// are served round-robin, one piece each, and each may have up to `depth` pieces (or `threads`) in
// flight, whatever the others have. A user that reads a whole layer ahead, or from a slow disk,
// therefore delays no other user, as if each had a ring of its own. PieceQueue::next_locked()
// decides all of this; a priority among users would be added there.
//
// Pieces of several requests are in flight together and complete in any order, so wait for a write
// before reading what it wrote. Short transfers and interruptions are continued, and where a file
// system refuses direct I/O, buffered I/O takes over.
//
// Thread-safe. The threads of a user are created with its first request, so an unused queue costs
// nothing. The destructor waits for transfers that have started and cancels the rest.
class IoQueue {
 public:
  explicit IoQueue(const IoQueueOptions& options = {});
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Offset, address and length must be multiples of kDirectAlignment. If the file ends inside the
  // buffer, that is an error unless at least `needed` bytes were read.
  IoTicket read(const IoFile& file, uint64_t offset, std::span<std::byte> buffer, size_t needed,
                IoCallback on_done = {});
  IoTicket read(const IoFile& file, uint64_t offset, std::span<std::byte> buffer,
                IoCallback on_done = {}) {
    return read(file, offset, buffer, buffer.size(), std::move(on_done));
  }
  IoTicket write(const IoFile& file, uint64_t offset, std::span<const std::byte> bytes,
                 IoCallback on_done = {});

  // Reads [offset, offset + bytes) of the file, at any offset, into `buffer`, which is aligned.
  // Whole blocks are read, so the bytes begin at offset % kDirectAlignment in the buffer. Exactly
  // align_up(offset + bytes) - align_down(offset) bytes of it are used.
  ExtentRead read_extent(const IoFile& file, uint64_t offset, uint64_t bytes,
                         std::span<std::byte> buffer, IoCallback on_done = {});

  // Blocks until no request of any user is in flight; errors stay with their tickets.
  void drain();

  IoBackend backend() const;  // the backend of reads: kUring or kThreads
  const IoQueueOptions& options() const { return options_; }
  // Count the bytes of all users' successful requests so far.
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;

 private:
  // One direction, reads or writes: its waiting requests, and the threads that carry them.
  struct Lane {
    IoBackend backend = IoBackend::kAuto;
    std::unique_ptr<PieceQueue> pieces;
    std::unique_ptr<PieceRunner> runner;
    std::array<std::atomic<bool>, kIoUserCount> served = {};  // users that have threads
  };
  // Returns `lane`, with threads for that user; creates them if they are missing.
  Lane& lane_for(Lane& lane, IoUser user) const;
  void make(Lane& lane) const;
  PieceQueue* pieces_of(const Lane& lane) const;  // nullptr if it was never used
  IoTicket submit(Lane& lane, std::shared_ptr<IoRequest> request);

  IoQueueOptions options_;
  mutable std::mutex making_;
  mutable Lane reads_, writes_;
};

}  // namespace spillway
