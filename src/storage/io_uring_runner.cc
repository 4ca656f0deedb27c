// SPDX-License-Identifier: Apache-2.0
// Carries pieces through io_uring. One thread owns the ring: it submits pieces, sleeps until one
// completes or an eventfd polled by the ring wakes it, and submits the next.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/fault_points.h"
#include "base/file_descriptor.h"
#include "storage/io_calls.h"
#include "storage/io_pieces.h"

namespace spillway {
namespace {

class UringRunner final : public PieceRunner {
 public:
  // Takes over a ring with room for `depth` + 1 entries.
  UringRunner(PieceQueue& pieces, int depth, io_uring ring, FileDescriptor wake_fd)
      : pieces_(pieces),
        ring_(ring),
        wake_fd_(std::move(wake_fd)),
        slots_(static_cast<size_t>(depth)) {
    for (size_t i = slots_.size(); i-- > 0;) free_.push_back(i);
    thread_ = std::thread([this] { run(); });
  }
  ~UringRunner() override {
    thread_.join();
    io_uring_queue_exit(&ring_);
  }

  IoBackend backend() const override { return IoBackend::kUring; }
  void add_user() override {}  // there are slots for the pieces of all users
  void wake() override {
    if (!sleeps_.exchange(false)) return;
    const uint64_t one = 1;
    // The write can fail only if the counter is at its maximum, and then the thread is awake.
    [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof one);
  }

 private:
  static constexpr uint64_t kWake = ~uint64_t{0};

  void run() {
    poll_wake();
    while (!pieces_.stopped() || free_.size() < slots_.size()) {
      take_pieces();
      if (!free_.empty()) {
        // With free slots the thread wants to be woken. It says so before it looks for pieces
        // again, so that none pushed in between is missed.
        sleeps_ = true;
        take_pieces();
        if (pieces_.stopped() && free_.size() == slots_.size()) return;
      }
      int submitted = -injected_error("io.submit");
      if (submitted == 0) submitted = io_uring_submit_and_wait(&ring_, 1);
      sleeps_ = false;
      // If the system is too busy or the call was interrupted, what was not taken stays in the
      // ring.
      if (submitted < 0 && submitted != -EINTR) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      take_answers();
    }
  }

  void take_pieces() {
    while (!free_.empty()) {
      auto piece = pieces_.try_next();
      if (!piece) return;
      const size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = std::move(*piece);
      prepare(slot);
    }
  }

  void take_answers() {
    io_uring_cqe* answer = nullptr;
    while (io_uring_peek_cqe(&ring_, &answer) == 0 && answer != nullptr) {
      const uint64_t tag = io_uring_cqe_get_data64(answer);
      const int64_t result = answer->res;
      io_uring_cqe_seen(&ring_, answer);
      if (tag == kWake) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof count);
        poll_wake();
        continue;
      }
      IoPiece& piece = slots_[tag];
      const char* const point = piece.request->is_write ? "io.write" : "io.read";
      if (pieces_.continue_after(piece, with_fault(point, result))) {
        prepare(tag);
      } else {
        free_.push_back(tag);
      }
    }
  }

  void prepare(size_t slot) {
    const IoPiece& piece = slots_[slot];
    const auto rest = piece.rest();
    const int fd = piece.request->file->descriptor();
    const auto bytes = static_cast<unsigned>(rest.size());  // at most piece_bytes, so it fits
    io_uring_sqe* const entry = new_entry();
    if (piece.request->is_write) {
      io_uring_prep_write(entry, fd, rest.data(), bytes, piece.next_offset());
    } else {
      io_uring_prep_read(entry, fd, rest.data(), bytes, piece.next_offset());
    }
    io_uring_sqe_set_data64(entry, slot);
  }

  void poll_wake() {
    io_uring_sqe* const entry = new_entry();
    io_uring_prep_poll_add(entry, wake_fd_.get(), POLLIN);
    io_uring_sqe_set_data64(entry, kWake);
  }

  // The ring has an entry for each slot and one for waking, and each is in it at most once.
  io_uring_sqe* new_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
      io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    return entry;
  }

  PieceQueue& pieces_;
  io_uring ring_;
  FileDescriptor wake_fd_;
  std::atomic<bool> sleeps_{false};  // it waits for an answer although slots are free
  std::vector<IoPiece> slots_;       // in flight unless listed in free_
  std::vector<size_t> free_;
  std::thread thread_;
};

bool has_operations(io_uring& ring) {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  const bool all = io_uring_opcode_supported(probe, IORING_OP_READ) &&
                   io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
                   io_uring_opcode_supported(probe, IORING_OP_POLL_ADD);
  io_uring_free_probe(probe);
  return all;
}

}  // namespace

std::unique_ptr<PieceRunner> try_make_uring_runner(PieceQueue& pieces, int user_pieces,
                                                   std::string& reason) {
  const int depth = user_pieces * static_cast<int>(kIoUserCount);
  io_uring ring{};
  int error = -injected_error("io.uring_setup");
  if (error == 0) error = io_uring_queue_init(static_cast<unsigned>(depth) + 1, &ring, 0);
  if (error < 0) {
    reason = error_text(error);
    return nullptr;
  }
  if (!has_operations(ring)) {
    reason = "the kernel is too old for it";
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  FileDescriptor wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.is_open()) {
    reason = error_text(errno);
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringRunner>(pieces, depth, ring, std::move(wake_fd));
}

}  // namespace spillway
