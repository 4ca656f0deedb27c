// SPDX-License-Identifier: Apache-2.0
#include "base/work_shares.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

constexpr uint64_t pack(uint64_t job, int64_t next, int64_t end) {
  return job << 32 | static_cast<uint64_t>(next) << 16 | static_cast<uint64_t>(end);
}
constexpr int64_t next_of(uint64_t word) { return static_cast<int64_t>(word >> 16 & 0xffff); }
constexpr int64_t end_of(uint64_t word) { return static_cast<int64_t>(word & 0xffff); }

}  // namespace

WorkShares::WorkShares(int workers)
    : workers_(workers), shares_(std::make_unique<Share[]>(static_cast<size_t>(workers))) {}

void WorkShares::deal(int64_t units, int shares, int64_t least) {
  SPW_ASSERT(units >= 1 && units <= kMostUnits && shares >= 1 && shares <= workers_);
  ++job_;
  least_.store(std::max<int64_t>(least, 1), std::memory_order_relaxed);
  for (int i = 0; i < shares; ++i) {
    shares_[static_cast<size_t>(i)].word.store(
        pack(job_, units * i / shares, units * (i + 1) / shares), std::memory_order_release);
  }
}

WorkPiece WorkShares::try_take(Share& share, bool from_the_end) {
  uint64_t word = share.word.load(std::memory_order_acquire);
  const int64_t least = least_.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t next = next_of(word), end = end_of(word), left = end - next;
    if (left <= 0) return {};
    const int64_t half = (left + 1) / 2, units = std::min(left, std::max(half, least));
    const uint64_t rest =
        from_the_end ? pack(word >> 32, next, end - units) : pack(word >> 32, next + units, end);
    if (share.word.compare_exchange_weak(word, rest, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      return from_the_end ? WorkPiece{end - units, end} : WorkPiece{next, next + units};
    }
  }
}

WorkPiece WorkShares::take(int worker) {
  const WorkPiece own = try_take(shares_[static_cast<size_t>(worker)], false);
  if (!own.empty()) return own;
  for (;;) {
    int64_t most = 0;
    int from = -1;
    for (int i = 0; i < workers_; ++i) {
      const uint64_t word = shares_[static_cast<size_t>(i)].word.load(std::memory_order_relaxed);
      const int64_t left = end_of(word) - next_of(word);
      if (left > most) {
        most = left;
        from = i;
      }
    }
    if (from < 0) return {};
    const WorkPiece piece = try_take(shares_[static_cast<size_t>(from)], true);
    if (!piece.empty()) return piece;
  }
}

}  // namespace spillway
