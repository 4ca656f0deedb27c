// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in streamed text without ever showing part of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// One per stream; not thread-safe. Empty stop strings are ignored.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Adds text and returns what is safe to show: no end of it can still become a stop string. The
  // stream ends before the stop string that is complete first, however the text is divided among
  // calls. After such a match (stopped()) nothing more is returned.
  std::string push(std::string_view text);
  // Call at the end of the stream: returns what was held back.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  enum class Match : uint8_t { kNone, kBegun, kWhole };
  // Returns kWhole if the text begins with a stop string, kBegun if the whole text is the beginning
  // of one.
  Match match(std::string_view text) const;
  // Adds a byte to what is held back, and returns what of it is safe to show.
  std::string push_byte(char byte);

  std::vector<std::string> stops_;  // sorted
  std::string held_;
  bool stopped_ = false;
};

}  // namespace spillway
