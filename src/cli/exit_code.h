// SPDX-License-Identifier: Apache-2.0
// How a process of ours ends: 0 done, 1 the work failed, 2 wrong usage or unreadable input, 130
// interrupted.
#pragma once

#include <functional>

#include "base/error.h"

namespace spillway {

enum class ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

ExitCode exit_code_for(ErrorCode code);

// Runs `work` and turns what it throws into one line on stderr and the exit code.
int run_guarded(const std::function<int()>& work);

}  // namespace spillway
