// SPDX-License-Identifier: Apache-2.0
// Asynchronous file I/O: many reads and writes on their way at once, through io_uring or, where
// that is not allowed, through threads.
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

// One read or write on its way. Move-only. Its file and memory must stay as they are until it is
// done, so declare it after them: the destructor waits too, and drops the error.
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
  // Never blocks; true also where it failed.
  bool is_done() const;
  // Blocks until done. Throws what went wrong: kIo naming path and offset; kCancelled where the
  // queue was destroyed first. Does nothing a second time.
  void wait();

 private:
  std::shared_ptr<IoRequest> request_;
};

// Waits for all, then throws the first error there was.
void wait_all(std::span<IoTicket> tickets);

// An extent on its way: `bytes` are valid once the ticket is done.
struct ExtentRead {
  IoTicket ticket;
  std::span<const std::byte> bytes;
};

struct IoQueueOptions {
  int depth = 32;                        // a user's pieces with the system at once: reads, writes
  size_t piece_bytes = size_t{1} << 20;  // requests are cut into these; a multiple of
                                         // kDirectAlignment
  int threads = 16;                      // of a user, where there are threads; at most `depth`
  IoBackend backend = IoBackend::kAuto;  // kUring: throws kUnsupported where it is not allowed
};

// The way to the disk, one for an engine: who makes the devices makes it, and everybody who reads
// or writes beside the compute has a reference to it. It outlives them.
//
// Who submits: anybody, from any thread. Today that is who loads (weights that are written to a
// file, or read from one of the plan before), the thread of WeightStream, and for KV and
// activations the step's own thread and those of the device's streams. No call here waits for the
// disk but drain().
//
// Who waits: each for its own tickets. Only the queue's own threads take answers from the system,
// and each ends the request that it belongs to: no waiting thread can take, or be held up by,
// another's. Everything moves while the callers compute.
//
// What comes next: a user (IoUser) has its reads begun in the order in which they come, and its
// writes, each apart: what a layer needs next does not wait behind what another leaves. Users take
// turns, a piece each, and each has up to `depth` pieces (or `threads`) with the system whatever
// others have there. So one that reads a whole layer ahead, or from a slow disk, keeps no other
// from its own, as if each had a ring of its own. All this is decided in one place,
// PieceQueue::next_locked(): who is to prefer one user to another does it there.
//
// Pieces of several requests are on their way together and end in any order: wait for a write
// before reading what it wrote. Short transfers and interruptions are continued; a file system that
// refuses direct I/O gets buffered.
//
// Thread-safe. Its threads are made for the first who needs them, so one that nobody uses costs
// nothing. Destroying it waits for what the system has and cancels the rest.
class IoQueue {
 public:
  explicit IoQueue(const IoQueueOptions& options = {});
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Offset, address and length are multiples of kDirectAlignment. A file that ends inside the
  // buffer is an error unless at least `needed` bytes came.
  IoTicket read(const IoFile& file, uint64_t offset, std::span<std::byte> buffer, size_t needed,
                IoCallback on_done = {});
  IoTicket read(const IoFile& file, uint64_t offset, std::span<std::byte> buffer,
                IoCallback on_done = {}) {
    return read(file, offset, buffer, buffer.size(), std::move(on_done));
  }
  IoTicket write(const IoFile& file, uint64_t offset, std::span<const std::byte> bytes,
                 IoCallback on_done = {});

  // Reads [offset, offset + bytes) of the file, anywhere, into `buffer`, which is aligned; there
  // they lie at the place that their offset has in a block. Exactly
  // align_up(offset + bytes) - align_down(offset) of them are used.
  ExtentRead read_extent(const IoFile& file, uint64_t offset, uint64_t bytes,
                         std::span<std::byte> buffer, IoCallback on_done = {});

  // Blocks until nothing of anybody's is on its way; errors stay with their tickets.
  void drain();

  IoBackend backend() const;  // kUring or kThreads, of reads
  const IoQueueOptions& options() const { return options_; }
  // Of all users' requests that ended well, since the beginning.
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;

 private:
  // One direction: what waits, and the threads that carry it.
  struct Lane {
    IoBackend backend = IoBackend::kAuto;
    std::unique_ptr<PieceQueue> pieces;
    std::unique_ptr<PieceRunner> runner;
    std::array<std::atomic<bool>, kIoUserCount> served = {};  // users it has threads for
  };
  // With threads for that user; made where they are missing.
  Lane& lane_for(Lane& lane, IoUser user) const;
  void make(Lane& lane) const;
  PieceQueue* pieces_of(const Lane& lane) const;  // null: it was never used
  IoTicket submit(Lane& lane, std::shared_ptr<IoRequest> request);

  IoQueueOptions options_;
  mutable std::mutex making_;
  mutable Lane reads_, writes_;
};

}  // namespace spillway
