// SPDX-License-Identifier: Apache-2.0
// One job's units of work in shares, one a worker: each takes from its own first, then from
// others'.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace spillway {

// Units [begin, end) of the job at hand; empty: there is nothing left to take.
struct WorkPiece {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin == end; }
};

// Pieces are halves of what is left: few calls for a share that its owner does alone, small ones
// towards the end, when workers meet. A worker that does not come costs nothing: others take its
// share. deal() is called by one thread, when all of the job before is done; take() by any.
class WorkShares {
 public:
  static constexpr int64_t kMostUnits = 0xffff;

  explicit WorkShares(int workers);

  // A new job of `units` units (1 to kMostUnits) for workers [0, shares). What was written before
  // is seen by whoever takes a piece. `least`: units worth a call.
  void deal(int64_t units, int shares, int64_t least);

  // What `worker` does next. Whoever was late for the job before gets a piece of this one.
  WorkPiece take(int worker);

 private:
  struct alignas(64) Share {
    // The job's number, so that who is late takes nothing of the next job by mistake, and the units
    // that are left: [next, end), 16 bits each.
    std::atomic<uint64_t> word{0};
  };
  WorkPiece try_take(Share& share, bool from_the_end);

  int workers_;
  std::unique_ptr<Share[]> shares_;
  uint32_t job_ = 0;
  std::atomic<int64_t> least_{1};
};

}  // namespace spillway
