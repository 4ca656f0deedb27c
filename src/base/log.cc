// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/printable.h"

namespace spillway {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<bool> g_json{false};

// Inside a JSON string: printable() leaves no control characters, but quotes and backslashes.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto log = spdlog::stderr_color_mt("spillway");
    // On a terminal a bar may stand in the line.
    const std::string start = ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";
    log->set_pattern(start + "[%H:%M:%S] %^%l%$: %v");
    log->set_level(spdlog::level::trace);  // set_log_level() decides
    return log;
  }();
  return *instance;
}

}  // namespace

void set_log_format(LogFormat format) {
  // What printable() escapes and JSON would not read is written as JSON has it.
  g_json.store(format == LogFormat::kJson);
  if (format == LogFormat::kJson)
    logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void log_message(LogLevel level, std::string_view message) {
  if (level < log_level()) return;
  std::string line = printable(message, std::string_view::npos);
  if (g_json.load(std::memory_order_relaxed)) line = escaped(line);
  switch (level) {
    case LogLevel::kDebug:
      logger().debug(line);
      break;
    case LogLevel::kInfo:
      logger().info(line);
      break;
    case LogLevel::kWarning:
      logger().warn(line);
      break;
    case LogLevel::kError:
      logger().error(line);
      break;
    case LogLevel::kOff:
      break;
  }
}

}  // namespace spillway
