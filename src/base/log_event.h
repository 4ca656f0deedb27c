// SPDX-License-Identifier: Apache-2.0
// Lines of the log that programs read field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/log_level.h"

namespace spillway {

// What a line of LogFormat::kJson says beside its message, by a name of its own ("event",
// "status"), which is a word. A number that is none becomes null.
struct LogField {
  std::string_view name;
  std::variant<int64_t, double, std::string, std::vector<std::string>> value;
};

// As log_message(); lines of kText have the message alone. Thread-safe.
void log_event(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

}  // namespace spillway
