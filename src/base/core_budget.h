// SPDX-License-Identifier: Apache-2.0
// Decides how many of its workers a pool should use on a machine that other programs use too.
#pragma once

#include <optional>

namespace spillway {

// Looks at how long workers were ready to run but had no processor. If that is much in two
// intervals in a row, it takes away as many workers as lacked a processor: a worker that does not
// run holds up all others at the end of each job. After a processor was idle for a while it adds
// one worker back; where the kernel does not report idle time, it tries one more, less and less
// often while that fails. Pure arithmetic; the caller keeps the time.
class CoreBudget {
 public:
  explicit CoreBudget(int workers) : workers_(workers), active_(workers) {}

  // Adds a measuring interval of `window_s` seconds. `waited_s` is the time that the active workers
  // waited for a processor, summed; `idle_s` is the idle time, summed over the processors that the
  // pool may use (only looked at while not all workers are active).
  void add_window(double window_s, double waited_s, std::optional<double> idle_s);
  // Returns how many workers to use from now on, at least 1.
  int active() const { return active_; }
  // Returns whether some workers are not used and no additional one is being tried.
  bool rests() const { return active_ < workers_ && !trying_; }

 private:
  int workers_;
  int active_;
  bool trying_ = false;     // `active_` is one more than is known to work
  bool disturbed_ = false;  // the last interval was disturbed
  double pause_s_ = 0;      // between checks or trials
  double passed_s_ = 0;     // time of the current pause that has passed
  double idle_s_ = 0;       // idle time within `passed_s_`
  bool idle_known_ = true;
};

}  // namespace spillway
