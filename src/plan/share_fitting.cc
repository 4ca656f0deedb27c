// SPDX-License-Identifier: Apache-2.0
#include "plan/share_fitting.h"

#include <cstdint>
#include <utility>

namespace spillway {
namespace {

// Returns the first number in [low, high] for which `holds` is true, or high + 1 if there is
// none. If it is true for a number, it is for all larger ones.
template <class Holds>
int64_t first_that(int64_t low, int64_t high, Holds holds) {
  if (holds(low)) return low;
  ++high;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

bool ShareFitting::update_needs(FoundPlan& found) const {
  found.needs = memory_.needs(found.plan, found.size);
  return fit(found).fits();
}

bool ShareFitting::make_fit(FoundPlan& found) const {
  if (r_.given.weights) return update_needs(found);
  const TierShares wanted = found.plan.weights;
  const double first = discrete_ ? wanted.device : wanted.host;
  // The steps are 0, 1, 3, 6, 10, ... thousandths.
  const auto less = [](int64_t i) { return static_cast<double>(i * (i + 1) / 2) / kWeightSteps; };
  int64_t last = 0;
  while (less(last + 1) <= first) ++last;
  const auto leave = [&](int64_t i) {
    if (i > 0)
      shares_.set_weights(found.plan, first - less(i), discrete_ ? wanted.host + less(i) : 0);
    return update_needs(found);
  };
  const int64_t least =
      first_that(0, last, [&](int64_t i) { return leave(i) || fit(found).computing; });
  const bool fitted = least <= last && leave(least);
  if (!fitted) found.plan.weights = wanted;
  if (!fitted && !(discrete_ && fit_host(found))) return false;
  use_remaining(found);
  return true;
}

void ShareFitting::use_remaining(FoundPlan& found) const {
  const TierShares had = found.plan.weights;
  const auto more = [&](const auto& set) {
    FoundPlan trial = found;
    const auto fits_with = [&](int64_t steps) {
      set(trial.plan, static_cast<double>(steps) / kWeightSteps);
      return update_needs(trial);
    };
    // A little more may fit worse than much more, because staging depends on which homes weights
    // have.
    const int64_t least = r_.coarse ? 8 : 1;
    int64_t low = int64_t{1} << 9;
    while (low >= least && !fits_with(low)) low /= 2;
    if (low < least) return;
    int64_t high = 2 * low;
    while (low + least < high) {
      const int64_t middle = low + (high - low) / 2;
      (fits_with(middle) ? low : high) = middle;
    }
    if (fits_with(low)) found = std::move(trial);
  };
  if (discrete_ && had.device < 1) {
    more([&](Plan& plan, double share) {
      shares_.set_weights(plan, had.device + share, had.disk > 0 ? had.host : had.host - share);
    });
  }
  const TierShares now = found.plan.weights;
  if (now.disk > 0) {
    more([&](Plan& plan, double share) {
      if (discrete_) {
        shares_.set_weights(plan, now.device, now.host + share);
      } else {
        shares_.set_weights(plan, now.host + share, 0);
      }
    });
  }
}

bool ShareFitting::fit_host(FoundPlan& found) const {
  if (r_.budgets.disk == 0) return false;
  const TierShares wanted = found.plan.weights;
  constexpr double kStep = 0.02;
  const auto last = static_cast<int64_t>(wanted.host / kStep);
  int64_t least = last + 1;
  for (const double device : {wanted.device, wanted.device * 0.9, 0.0}) {
    FoundPlan trial = found;
    const auto leave = [&](int64_t i) {
      shares_.set_weights(trial.plan, device, wanted.host - static_cast<double>(i) * kStep);
      return update_needs(trial);
    };
    const int64_t i = first_that(0, last, [&](int64_t at) { return leave(at) || fit(trial).host; });
    if (i >= least || !leave(i)) continue;
    least = i;
    found = std::move(trial);
  }
  return least <= last;
}

}  // namespace spillway
