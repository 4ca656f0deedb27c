// SPDX-License-Identifier: Apache-2.0
// Log lines that programs read field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/log_level.h"

namespace spillway {

// A field that a line of LogFormat::kJson has beside its message. The name is a plain word
// ("event", "status"). A number that is not finite becomes null.
struct LogField {
  std::string_view name;
  std::variant<int64_t, double, std::string, std::vector<std::string>> value;
};

// Logs like log_message(), with fields; lines of kText have the message alone. Thread-safe.
void log_event(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

}  // namespace spillway
