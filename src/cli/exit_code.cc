// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

#include <fmt/core.h>

#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "base/printable.h"
#include "cli/interrupt.h"
#include "storage/mapped_files.h"

namespace spillway {

int report_error(ExitCode code, std::string_view message) {
  fmt::print(stderr, "spillway: {}\n", printable(message, std::string_view::npos));
  return static_cast<int>(code);
}

namespace {

int exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return static_cast<int>(ExitCode::kUsage);
    case ErrorCode::kCancelled:
      return interrupt_exit_code();
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
    case ErrorCode::kDevice:
    case ErrorCode::kInternal:
      break;
  }
  return static_cast<int>(ExitCode::kFailed);
}

}  // namespace

int run_guarded(const std::function<int()>& work) {
  try {
    const int code = work();
    const std::string lost = lost_pages_message();
    return code != 0 || lost.empty() ? code : report_error(ExitCode::kFailed, lost);
  } catch (const Error& error) {
    report_error(ExitCode::kFailed, error.what());
    const int code = exit_code_for(error.code());
    clear_interrupt();  // one line is enough: without this the alarm would print another
    return code;
  } catch (const OutputEnded& ended) {
    return ended.exit_code;
  } catch (const std::bad_alloc&) {
    return report_error(ExitCode::kFailed,
                        "out of memory; close other programs or use a smaller model or --ctx");
  } catch (const std::exception& error) {
    return report_error(ExitCode::kFailed,
                        std::string("internal error: ") + error.what() + "; please report it");
  }
}

}  // namespace spillway
