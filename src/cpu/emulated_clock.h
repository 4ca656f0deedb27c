// SPDX-License-Identifier: Apache-2.0
// A clock of its own for an emulated accelerator: it advances by the stated times of ops and
// copies, whatever else the machine does, and is the same in every run.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "device/stream.h"

namespace spillway {

// Counts seconds since it was made. Used by one thread.
class EmulatedClock {
 public:
  double now_s() const { return now_s_; }
  void pass(double seconds) { now_s_ += seconds; }
  // Never goes back.
  void pass_until(double at_s) { now_s_ = std::max(now_s_, at_s); }

 private:
  double now_s_ = 0;
};

// Makes the queue of ops on that clock: operations are done on return, and a wait advances the
// clock.
std::unique_ptr<DeviceStream> make_clocked_compute(std::shared_ptr<EmulatedClock> clock);

// Makes a queue for copies on that clock. Bytes move when a copy is queued, in the order of the
// calls, which is one that the queues allow. Only the time of arrival is computed: a copy begins
// after the queue's earlier work and what it waits for, and takes the seconds that `copy_seconds`
// gives for its size. Host calls and signals take no time: nothing here waits for another thread.
// Fault point: copy.device.
std::unique_ptr<DeviceStream> make_clocked_stream(std::shared_ptr<EmulatedClock> clock,
                                                  std::function<double(size_t bytes)> copy_seconds);
std::unique_ptr<DeviceEvent> make_clocked_event(std::shared_ptr<EmulatedClock> clock);

}  // namespace spillway
