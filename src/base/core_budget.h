// SPDX-License-Identifier: Apache-2.0
// How many of its workers a pool should use on a machine that others use too.
#pragma once

#include <optional>

namespace spillway {

// Looks at how long workers were ready to run and had no processor. Where that is much, for two
// windows in a row, it takes so many workers away as were without one: a worker that is not running
// holds up all others at the end of each job. When a processor was idle for a while it takes one
// more; where nobody says whether one was, it tries, less and less often while that fails. Pure
// arithmetic; the caller keeps the time.
class CoreBudget {
 public:
  explicit CoreBudget(int workers) : workers_(workers), active_(workers) {}

  // Of a window of `window_s` seconds: `waited_s`, summed over the active workers; `idle_s`, over
  // the processors that the pool may use (only looked at while not all workers are active).
  void add_window(double window_s, double waited_s, std::optional<double> idle_s);
  // Workers to use from now on, at least 1.
  int active() const { return active_; }
  // Some are not used, and none is being tried.
  bool rests() const { return active_ < workers_ && !trying_; }

 private:
  int workers_;
  int active_;
  bool trying_ = false;     // one more than was known to work
  bool disturbed_ = false;  // so was the window before
  double pause_s_ = 0;      // until the next look or try
  double passed_s_ = 0;     // of it
  double idle_s_ = 0;       // in it
  bool idle_known_ = true;
};

}  // namespace spillway
