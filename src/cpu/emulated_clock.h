// SPDX-License-Identifier: Apache-2.0
// Time of an emulated accelerator that is nobody else's: it passes by what ops and copies are said
// to take, whatever else the machine does, and is the same in every run.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "device/stream.h"

namespace spillway {

// Seconds since it was made. Used by one thread.
class EmulatedClock {
 public:
  double now_s() const { return now_s_; }
  void pass(double seconds) { now_s_ += seconds; }
  // Never back.
  void pass_until(double at_s) { now_s_ = std::max(now_s_, at_s); }

 private:
  double now_s_ = 0;
};

// The queue of ops by that clock: what is called is done, and waiting lets time pass.
std::unique_ptr<DeviceStream> make_clocked_compute(std::shared_ptr<EmulatedClock> clock);

// A queue beside it. Bytes move when a copy is called, in the order of calls, which is one that the
// queues allow; the time at which they are there is counted: after what the queue has before, and
// waits for, and then so many seconds as `copy_seconds` says of their number. Calls and signals of
// the host are at once: nothing here waits for another thread. Fault point: copy.device.
std::unique_ptr<DeviceStream> make_clocked_stream(std::shared_ptr<EmulatedClock> clock,
                                                  std::function<double(size_t bytes)> copy_seconds);
std::unique_ptr<DeviceEvent> make_clocked_event(std::shared_ptr<EmulatedClock> clock);

}  // namespace spillway
