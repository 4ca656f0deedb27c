// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

#include <fmt/core.h>

#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "base/printable.h"

namespace spillway {
namespace {

int report(ExitCode code, std::string_view message) {
  // One line, whatever a file name or a library put into it.
  fmt::print(stderr, "spillway: {}\n", printable(message, std::string_view::npos));
  return static_cast<int>(code);
}

}  // namespace

ExitCode exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return ExitCode::kUsage;
    case ErrorCode::kCancelled:
      return ExitCode::kInterrupted;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kDevice:
    case ErrorCode::kInternal:
      return ExitCode::kFailed;
  }
  return ExitCode::kFailed;
}

int run_guarded(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    return report(exit_code_for(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kFailed,
                  "out of memory; close other programs or use a smaller model or --ctx");
  } catch (const std::exception& error) {
    return report(ExitCode::kFailed,
                  std::string("internal error: ") + error.what() + "; please report it");
  }
}

}  // namespace spillway
