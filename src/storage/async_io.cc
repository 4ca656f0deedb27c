// SPDX-License-Identifier: Apache-2.0
#include "storage/async_io.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "storage/io_pieces.h"

namespace spillway {

IoTicket::~IoTicket() {
  if (request_) request_->done.wait(false, std::memory_order_acquire);
}

IoTicket& IoTicket::operator=(IoTicket&& other) noexcept {
  if (this != &other) {
    if (request_) request_->done.wait(false, std::memory_order_acquire);
    request_ = std::move(other.request_);
  }
  return *this;
}

bool IoTicket::is_done() const {
  return request_ == nullptr || request_->done.load(std::memory_order_acquire);
}

void IoTicket::wait() {
  if (!request_) return;
  const std::shared_ptr<IoRequest> request = std::move(request_);
  request->done.wait(false, std::memory_order_acquire);
  if (request->failure) throw Error(request->failure->code, request->failure->message);
}

void wait_all(std::span<IoTicket> tickets) {
  std::exception_ptr first;
  for (IoTicket& ticket : tickets) {
    try {
      ticket.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

IoQueue::IoQueue(const IoQueueOptions& options) : options_(options) {
  SPW_CHECK(options.depth >= 1 && options.depth <= 4096 && options.threads >= 1 &&
                options.piece_bytes >= kDirectAlignment &&
                options.piece_bytes % kDirectAlignment == 0,
            kInvalidArgument, "I/O queue of depth {} and {} threads with pieces of {} bytes",
            options.depth, options.threads, options.piece_bytes);
  reads_.backend = options.backend;
  writes_.backend = options.backend == IoBackend::kUring ? IoBackend::kUring : IoBackend::kThreads;
  if (options.backend == IoBackend::kUring) lane_for(reads_, IoUser::kWeights);
}

IoQueue::~IoQueue() {
  for (Lane* lane : {&reads_, &writes_}) {
    if (!lane->runner) continue;
    lane->pieces->stop();
    lane->runner->wake();
    lane->runner.reset();
  }
}

void IoQueue::make(Lane& lane) const {
  std::string reason;
  if (lane.backend != IoBackend::kThreads) {
    lane.pieces = std::make_unique<PieceQueue>(options_.piece_bytes, options_.depth);
    lane.runner = try_make_uring_runner(*lane.pieces, options_.depth, reason);
    SPW_CHECK(lane.runner || lane.backend == IoBackend::kAuto, kUnsupported,
              "io_uring does not work here: {}", reason);
    if (lane.runner) return;
    log_debug("disk I/O through threads; io_uring: {}", reason);
  }
  const int threads = std::min(options_.threads, options_.depth);
  lane.pieces = std::make_unique<PieceQueue>(options_.piece_bytes, threads);
  lane.runner = make_thread_runner(*lane.pieces, threads);
}

IoQueue::Lane& IoQueue::lane_for(Lane& lane, IoUser user) const {
  std::atomic<bool>& served = lane.served[static_cast<size_t>(user)];
  if (served.load(std::memory_order_acquire)) return lane;
  const std::lock_guard lock(making_);
  if (!lane.runner) make(lane);
  if (!served.load(std::memory_order_relaxed)) {
    lane.runner->add_user();
    served.store(true, std::memory_order_release);
  }
  return lane;
}

PieceQueue* IoQueue::pieces_of(const Lane& lane) const {
  const std::lock_guard lock(making_);
  return lane.runner ? lane.pieces.get() : nullptr;
}

IoTicket IoQueue::submit(Lane& lane, std::shared_ptr<IoRequest> request) {
  SPW_ASSERT(request->bytes > 0 && request->needed > 0 && request->needed <= request->bytes);
  SPW_ASSERT(request->offset % kDirectAlignment == 0 && request->bytes % kDirectAlignment == 0 &&
             is_aligned(request->data));
  lane_for(lane, request->file->user());
  if (lane.pieces->push(request)) lane.runner->wake();
  return IoTicket(std::move(request));
}

IoTicket IoQueue::read(const IoFile& file, uint64_t offset, std::span<std::byte> buffer,
                       size_t needed, IoCallback on_done) {
  auto request = std::make_shared<IoRequest>();
  request->file = &file;
  request->offset = offset;
  request->data = buffer.data();
  request->bytes = buffer.size();
  request->needed = needed;
  request->on_done = std::move(on_done);
  return submit(reads_, std::move(request));
}

IoTicket IoQueue::write(const IoFile& file, uint64_t offset, std::span<const std::byte> bytes,
                        IoCallback on_done) {
  auto request = std::make_shared<IoRequest>();
  request->is_write = true;
  request->file = &file;
  request->offset = offset;
  request->data = const_cast<std::byte*>(bytes.data());
  request->bytes = request->needed = bytes.size();
  request->on_done = std::move(on_done);
  return submit(writes_, std::move(request));
}

ExtentRead IoQueue::read_extent(const IoFile& file, uint64_t offset, uint64_t bytes,
                                std::span<std::byte> buffer, IoCallback on_done) {
  const uint64_t base = align_down(offset), end = offset + bytes;
  SPW_ASSERT(bytes > 0 && end > offset && buffer.size() >= align_up(end) - base);
  return {read(file, base, buffer.first(align_up(end) - base), end - base, std::move(on_done)),
          buffer.subspan(offset - base, bytes)};
}

void IoQueue::drain() {
  for (const Lane* lane : {&reads_, &writes_}) {
    if (PieceQueue* const pieces = pieces_of(*lane)) pieces->drain();
  }
}

IoBackend IoQueue::backend() const { return lane_for(reads_, IoUser::kWeights).runner->backend(); }
uint64_t IoQueue::bytes_read() const {
  const PieceQueue* const pieces = pieces_of(reads_);
  return pieces == nullptr ? 0 : pieces->bytes_read();
}
uint64_t IoQueue::bytes_written() const {
  const PieceQueue* const pieces = pieces_of(writes_);
  return pieces == nullptr ? 0 : pieces->bytes_written();
}

}  // namespace spillway
