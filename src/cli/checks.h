// SPDX-License-Identifier: Apache-2.0
// Checks of option values, with messages for people.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace spillway {

inline CLI::Validator not_negative() {
  return CLI::Validator(
      [](std::string& value) {
        return value.starts_with('-') ? "is " + value + "; give 0 or more" : std::string();
      },
      "");
}

inline CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& value) { return value.empty() ? "is empty; give some text" : std::string(); },
      "");
}

}  // namespace spillway
