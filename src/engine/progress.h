// SPDX-License-Identifier: Apache-2.0
// How long work tells how far it has come, to whoever wants to know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace spillway {

// Of one piece of work, from its making to its end. Called by the thread that works.
class Progress {
 public:
  virtual ~Progress() = default;
  // `detail` is for people: "1.2 of 4.0 GiB".
  virtual void update(uint64_t done, uint64_t total, std::string_view detail) = 0;
};

// Work of this title begins. Empty: nobody wants to know.
using StartProgress = std::function<std::unique_ptr<Progress>(std::string_view title)>;

// Never null.
std::unique_ptr<Progress> start_progress(const StartProgress& start, std::string_view title);

}  // namespace spillway
