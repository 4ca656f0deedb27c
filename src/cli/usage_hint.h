// SPDX-License-Identifier: Apache-2.0
// What a person who typed a wrong command line should know: what is wrong, what was probably meant,
// where to read on.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace spillway {

// One line for `error`, which line.run(arguments) threw.
std::string usage_hint(const CommandLine& line, const std::vector<std::string>& arguments,
                       const UsageError& error);

}  // namespace spillway
