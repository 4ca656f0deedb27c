// SPDX-License-Identifier: Apache-2.0
// Changes the shares of a plan until it fits its memories. The linear program (share_program.h)
// knows staging, slots and rounding only about; the footprint decides.
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
  // Moves weights off the device until the plan fits, a little at first, because host memory may be
  // full too. Returns false where none of that is enough.
  bool make_fit(FoundPlan& found) const;
  // Moves more of the weights to disk if host memory is too small. Returns whether that is enough.
  bool fit_host(FoundPlan& found) const;

 private:
  MemoryFit fit(const FoundPlan& found) const { return memory_.fit(found.needs); }
  // Uses the memory that is left: the program may reserve more than slots and staging need.
  void use_remaining(FoundPlan& found) const;

  const SearchRequest& r_;
  const MemoryCheck& memory_;
  PlanShares shares_;
  const bool discrete_;
};

}  // namespace spillway
