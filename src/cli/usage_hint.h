// SPDX-License-Identifier: Apache-2.0
// Explains a wrong command line to the user: what is wrong, what was probably meant, and where to
// read on.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace spillway {

// Returns one line about `error`, which line.run(arguments) threw.
std::string usage_hint(const CommandLine& line, const std::vector<std::string>& arguments,
                       const UsageError& error);

}  // namespace spillway
