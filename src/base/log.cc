// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>

#include "base/log_event.h"
#include "base/printable.h"

namespace spillway {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<bool> g_json{false};

// Returns `text` as a JSON string. printable() leaves no control characters, but quotes and
// backslashes.
std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : printable(text, std::string_view::npos)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string json_value(const decltype(LogField::value)& value) {
  if (const auto* const number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* const number = std::get_if<double>(&value))
    return std::isfinite(*number) ? fmt::format("{:.6g}", *number) : "null";
  if (const auto* const text = std::get_if<std::string>(&value)) return json_text(*text);
  std::string list = "[";
  for (const std::string& text : std::get<std::vector<std::string>>(value)) {
    if (list.size() > 1) list += ',';
    list += json_text(text);
  }
  return list += ']';
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto log = spdlog::stderr_color_mt("spillway");
    // On a terminal a progress bar may stand in the current line, so it is cleared first.
    const std::string start = ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";
    log->set_pattern(start + "[%H:%M:%S] %^%l%$: %v");
    log->set_level(spdlog::level::trace);  // g_level filters before spdlog does
    return log;
  }();
  return *instance;
}

}  // namespace

void set_log_format(LogFormat format) {
  // The message is escaped by json_text() before it is put into this pattern.
  g_json.store(format == LogFormat::kJson);
  if (format == LogFormat::kJson)
    logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void log_message(LogLevel level, std::string_view message) { log_event(level, message, {}); }

void log_event(LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  if (level < log_level()) return;
  std::string line;
  if (g_json.load(std::memory_order_relaxed)) {
    line = "\"message\":" + json_text(message);
    for (const LogField& field : fields)
      line += fmt::format(",\"{}\":{}", field.name, json_value(field.value));
  } else {
    line = printable(message, std::string_view::npos);
  }
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
