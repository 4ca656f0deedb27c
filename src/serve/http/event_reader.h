// SPDX-License-Identifier: Apache-2.0
// Parses a text/event-stream, whose bytes may be split anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace spillway {

// Reads one stream. Only data is used: comments, names and ids are skipped. Not thread-safe.
class EventReader {
 public:
  // `most_bytes` is the limit of a line, and of an event's data.
  explicit EventReader(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Calls `take` with the data of each event that `bytes` complete; data lines of one event are
  // joined by newlines. Stops early if `take` returns false. Throws kIo for too long lines or
  // events.
  void feed(std::string_view bytes, const std::function<bool(std::string_view)>& take);

 private:
  void end_line();

  size_t most_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool is_after_cr_ = false;  // a line feed now would be the second half of a line end
  bool is_at_start_ = true;   // a byte order mark may come
};

}  // namespace spillway
