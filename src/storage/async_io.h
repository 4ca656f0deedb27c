// SPDX-License-Identifier: Apache-2.0
// Asynchronous file I/O: many reads and writes on their way at once, through io_uring or, where
// that is not allowed, through threads.
#pragma once

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

// kAuto: reads through io_uring where it is allowed, writes through threads: io_uring finishes
// each direct write in a kernel worker, which was measured to cost up to a quarter of the rate.
enum class IoBackend { kAuto, kUring, kThreads };

struct IoQueueOptions {
  int depth = 32;                        // pieces with the system at once, of reads and of writes
  size_t piece_bytes = size_t{1} << 20;  // requests are cut into these; a multiple of
                                         // kDirectAlignment
  int threads = 16;                      // where there are threads; at most `depth` are made
  IoBackend backend = IoBackend::kAuto;  // kUring: throws kUnsupported where it is not allowed
};

// What went wrong with a request, as the Error that IoTicket::wait() throws has it.
struct IoFailure {
  ErrorCode code;
  std::string message;
};
// Called by a thread of the queue when a request has ended, before its ticket is done; null where
// all is well. Keep it short, and do not throw or wait for tickets in it.
using IoCallback = std::function<void(const IoFailure* failure)>;

// Reads begin in the order in which they come, and so do writes, each apart: what a layer needs
// next does not wait behind what another leaves. Pieces of several requests are on their way
// together and end in any order: wait for a write before reading what it wrote. Threads of the
// queue's own hand pieces to the system, so everything moves while the callers compute.
// Thread-safe. Short transfers and interruptions are continued; a file system that refuses direct
// I/O gets buffered. Destroying it waits for what the system has and cancels the rest.
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

  // Blocks until nothing is on its way; errors stay with their tickets.
  void drain();

  IoBackend backend() const;  // kUring or kThreads, of reads
  const IoQueueOptions& options() const { return options_; }
  // Of requests that ended well, since the beginning.
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;

 private:
  struct Lane {
    std::unique_ptr<PieceQueue> pieces;
    std::unique_ptr<PieceRunner> runner;
  };
  Lane make_lane(IoBackend backend) const;
  Lane& write_lane();  // made when it is first needed
  IoTicket submit(Lane& lane, std::shared_ptr<IoRequest> request);

  IoQueueOptions options_;
  Lane reads_;
  std::once_flag first_write_;
  std::atomic<bool> has_writes_{false};  // once writes_ is made
  Lane writes_;
};

}  // namespace spillway
