// SPDX-License-Identifier: Apache-2.0
// Changes which share of the weights each memory holds until a plan fits. The linear program that
// proposes the shares (share_program.h) only estimates staging buffers, weight slots and rounding;
// here the footprint decides, which has the bytes of each memory that the plan takes.
#pragma once

#include "plan/memory_fit.h"
#include "plan/plan_shares.h"
#include "plan/search_request.h"

namespace spillway {

// Keeps references to the request and the check, which must outlive it. Not thread-safe.
class ShareFitting {
 public:
  ShareFitting(const SearchRequest& request, const MemoryCheck& memory)
      : r_(request), memory_(memory), shares_(request), discrete_(request.hardware.has_device()) {}

  // Computes what the plan needs. Returns whether it fits.
  bool update_needs(FoundPlan& found) const;
  // Moves as few weights off the device as make the plan fit; without a GPU that has memory of its
  // own, from host memory to disk. Amounts are tried in growing steps, fine at first, because host
  // memory may be nearly full too. If that is not enough, tries fit_host(). Returns false if the
  // plan still does not fit.
  bool make_fit(FoundPlan& found) const;
  // Moves more of the weights to disk if host memory is too small. Returns whether that is enough.
  bool fit_host(FoundPlan& found) const;

 private:
  MemoryFit fit(const FoundPlan& found) const { return memory_.fit(found.needs); }
  // Moves weights to faster memory while the plan still fits: the linear program may have reserved
  // more than slots and staging need.
  void use_remaining(FoundPlan& found) const;

  const SearchRequest& r_;
  const MemoryCheck& memory_;
  PlanShares shares_;
  const bool discrete_;
};

}  // namespace spillway
