// SPDX-License-Identifier: Apache-2.0
// Parses JSON into events, so that memory stays bounded for any text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// Receives the values in the order of the text. A function may throw to stop the parser.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  // Called before all others with an upper bound of how many values and keys follow.
  virtual void expect(uint64_t /*count*/) {}
  virtual void start_object() = 0;
  virtual void key(std::string& name) = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;
  virtual void string(std::string& value) = 0;
  virtual void integer(int64_t value) = 0;
  virtual void large_unsigned(uint64_t value) = 0;  // above int64
  virtual void number(double value) = 0;            // not an integer, or beyond 64 bits
  virtual void boolean(bool value) = 0;
  virtual void null() = 0;
};

inline constexpr int kMaxJsonDepth = 64;
inline constexpr uint64_t kMaxJsonTokenBytes = uint64_t{8} << 20;

// Parses one JSON value. Throws kInvalidArgument with `label` and the position for text that is not
// JSON, nests deeper than kMaxJsonDepth or has more than kMaxJsonTokenBytes from the start of a
// string or number to that of the next. `base` is where the text starts in the file.
void read_json_events(std::string_view text, const std::string& label, JsonHandler& handler,
                      uint64_t base = 0);

}  // namespace spillway
