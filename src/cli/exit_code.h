// SPDX-License-Identifier: Apache-2.0
// How a process of ours ends: 0 done, 1 the work failed, 2 wrong usage or unreadable input, 128 +
// signal when interrupted.
#pragma once

#include <functional>
#include <string_view>

#include "base/error.h"

namespace spillway {

enum class ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2 };

// Nobody reads our output any more: the work ends without a word, with this exit code.
struct OutputEnded {
  int exit_code;
};

// One line on stderr, whatever a file name or a library put into it; returns the code.
int report_error(ExitCode code, std::string_view message);

// Runs `work` and turns what it throws into one line on stderr and the exit code.
int run_guarded(const std::function<int()>& work);

}  // namespace spillway
