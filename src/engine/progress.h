// SPDX-License-Identifier: Apache-2.0
// Reports the progress of long work to whatever shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace spillway {

// The progress of one piece of work, which ends with this object. Called by the thread that works.
class Progress {
 public:
  virtual ~Progress() = default;
  // `detail` is for people: "1.2 of 4.0 GiB".
  virtual void update(uint64_t done, uint64_t total, std::string_view detail) = 0;
};

// Called as work with this title begins. Empty: progress is not shown.
using StartProgress = std::function<std::unique_ptr<Progress>(std::string_view title)>;

// Returns `start(title)`, or a Progress that does nothing if `start` is empty; never null.
std::unique_ptr<Progress> start_progress(const StartProgress& start, std::string_view title);

}  // namespace spillway
