// SPDX-License-Identifier: Apache-2.0
// Exit codes of all our programs: 0 done, 1 the work failed, 2 wrong usage or unreadable input, 128
// + signal when interrupted.
#pragma once

#include <functional>
#include <string_view>

#include "base/error.h"

namespace spillway {

enum class ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2 };

// Thrown when the reader of our output is gone: the program ends silently with this exit code.
struct OutputEnded {
  int exit_code;
};

// Prints one line on stderr, with control characters made visible; returns the code.
int report_error(ExitCode code, std::string_view message);

// Runs `work`, and turns what it throws into one line on stderr and an exit code.
int run_guarded(const std::function<int()>& work);

}  // namespace spillway
