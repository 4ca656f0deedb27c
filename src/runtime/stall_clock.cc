// SPDX-License-Identifier: Apache-2.0
#include "runtime/stall_clock.h"

namespace spillway {

const char* stall_cause_name(StallCause cause) {
  constexpr const char* kNames[kStallCauseCount] = {"weights",        "kv_load",     "kv_store",
                                                    "host_attention", "activations", "host_linear"};
  return kNames[static_cast<size_t>(cause)];
}

size_t StallClock::mark() {
  if (used_ == events_.size()) events_.push_back(device_.make_event(/*timed=*/true));
  device_.compute().record(*events_[used_]);
  return used_++;
}

void StallClock::drain() {
  device_.synchronize();
  for (const Wait& wait : pending_) {
    seconds_[static_cast<size_t>(wait.cause)] +=
        events_[wait.end]->seconds_after(*events_[wait.begin]);
  }
  pending_.clear();
  used_ = 0;
}

std::array<double, kStallCauseCount> StallClock::take() {
  drain();
  return std::exchange(seconds_, {});
}

}  // namespace spillway
