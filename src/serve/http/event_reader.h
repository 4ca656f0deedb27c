// SPDX-License-Identifier: Apache-2.0
// The events of a text/event-stream, whatever pieces its bytes come in.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace spillway {

// One stream. Only data is of interest: comments, names and ids are left out. Not thread-safe.
class EventReader {
 public:
  // Of a line, and of an event's data.
  explicit EventReader(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Calls `take` with the data of each event that `bytes` complete; lines of one event are joined
  // by newlines. Stops early where `take` returns false. Throws kIo for what is too long.
  void feed(std::string_view bytes, const std::function<bool(std::string_view)>& take);

 private:
  void end_line();

  size_t most_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool is_after_cr_ = false;  // a line feed now is the second half of a line end
  bool is_at_start_ = true;   // where a byte order mark may stand
};

}  // namespace spillway
