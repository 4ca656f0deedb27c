// SPDX-License-Identifier: Apache-2.0
#include "memory/piece_loop.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

using Work = std::function<void(const Piece&, int)>;

class PieceLoop {
 public:
  PieceLoop(std::span<const Piece> pieces, const WeightLoadOptions& options, const Work& work)
      : pieces_(pieces), options_(options), work_(work) {
    for (const Piece& piece : pieces) total_ += piece.in_file.bytes;
  }

  void run(int workers) {
    std::vector<std::thread> threads;
    for (int worker = 1; worker < workers; ++worker) {
      try {
        threads.emplace_back([this, worker] { take_part(worker); });
      } catch (const std::system_error&) {
        break;  // fewer threads do the same pieces
      }
    }
    take_part(0);
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void take_part(int worker) noexcept {
    try {
      while (!stop_.load(std::memory_order_relaxed)) {
        const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= pieces_.size()) return;
        SPW_CHECK(options_.cancel == nullptr || !options_.cancel->load(), kCancelled,
                  "loading was stopped");
        work_(pieces_[i], worker);
        const std::lock_guard lock(mutex_);
        done_ += pieces_[i].in_file.bytes;
        if (options_.progress && !error_) options_.progress(done_, total_);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_.store(true, std::memory_order_relaxed);
    }
  }

  std::span<const Piece> pieces_;
  const WeightLoadOptions& options_;
  const Work& work_;
  uint64_t total_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards the members below
  uint64_t done_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::vector<Piece> cut_extents(std::span<const CutExtent> extents, uint64_t piece_bytes) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto& [extent, grain] = extents[i];
    SPW_ASSERT(grain > 0);
    const uint64_t step = std::max(grain, piece_bytes / grain * grain);
    for (uint64_t at = 0; at < extent.bytes; at += step) {
      const uint64_t bytes = std::min(step, extent.bytes - at);
      pieces.push_back({i, at, {extent.file, extent.offset + at, bytes}});
    }
  }
  std::ranges::stable_sort(pieces, {}, [](const Piece& piece) {
    return std::pair(piece.in_file.file, piece.in_file.offset);
  });
  return pieces;
}

void for_each_piece(std::span<const Piece> pieces, int workers, const WeightLoadOptions& options,
                    const Work& work) {
  PieceLoop(pieces, options, work).run(workers);
}

}  // namespace spillway
