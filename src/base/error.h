// SPDX-License-Identifier: Apache-2.0
// The one exception type of Spillway and the checks that throw it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace spillway {

enum class ErrorCode {
  kInvalidArgument,  // wrong usage, or an input that cannot be read
  kOutOfMemory,
  kIo,
  kCorrupt,  // bytes read back from disk are not what was written; they can be computed again
  kDevice,
  kUnsupported,
  kCancelled,
  kInternal,  // a bug in Spillway
};

// Thrown when the current operation cannot go on. The message is one line: what is wrong, where,
// what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void fail_assertion(const char* condition, const char* file, int line);

}  // namespace spillway

// Checks an input or a state that may be wrong; always on. For example: SPW_CHECK(n > 0,
// kInvalidArgument, "bad n {}", n).
#define SPW_CHECK(condition, code, ...)                           \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::spillway::fail(::spillway::ErrorCode::code, __VA_ARGS__); \
  } while (false)

// Checks what only a bug in Spillway can break; always on. Throws kInternal.
#define SPW_ASSERT(condition)                                     \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::spillway::fail_assertion(#condition, __FILE__, __LINE__); \
  } while (false)
