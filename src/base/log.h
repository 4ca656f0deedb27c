// SPDX-License-Identifier: Apache-2.0
// Logs to stderr, one line per message whatever the message contains. Thread-safe.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "base/log_level.h"

namespace spillway {

void set_log_level(LogLevel level);
LogLevel log_level();
// Lines are text for people, or JSON objects with "time", "level" and "message" for programs.
enum class LogFormat { kText, kJson };
void set_log_format(LogFormat format);
// Logs `message` with control characters escaped, so that no payload can forge a line.
void log_message(LogLevel level, std::string_view message);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kDebug)
    log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kInfo)
    log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kWarning)
    log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace spillway
