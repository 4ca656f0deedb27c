// SPDX-License-Identifier: Apache-2.0
// Divides one job's units of work into one share per worker; each worker takes from its own share
// first, then from the others'.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace spillway {

// Units [begin, end) of the current job; empty if nothing is left to take.
struct WorkPiece {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin == end; }
};

// Deals out pieces, each half of what is left in a share: few calls for a share that its owner does
// alone, small pieces towards the end, when several workers take from it. A worker that does not
// come costs nothing, since others take its share. deal() is called by one thread, after all of the
// job before is done; take() by any thread.
class WorkShares {
 public:
  static constexpr int64_t kMostUnits = 0xffff;

  explicit WorkShares(int workers);

  // Starts a new job of `units` units (1 to kMostUnits) for workers [0, shares). What was written
  // before this call is visible to any thread that takes a piece. `least` is the number of units
  // that is worth a call.
  void deal(int64_t units, int shares, int64_t least);

  // Returns what `worker` does next. A worker that was late for the job before gets a piece of this
  // one.
  WorkPiece take(int worker);

 private:
  struct alignas(64) Share {
    // The job's number, so that a late worker takes nothing of the next job by mistake, and the
    // units that are left: [next, end), 16 bits each.
    std::atomic<uint64_t> word{0};
  };
  WorkPiece try_take(Share& share, bool from_the_end);

  int workers_;
  std::unique_ptr<Share[]> shares_;
  uint32_t job_ = 0;
  std::atomic<int64_t> least_{1};
};

}  // namespace spillway
