// SPDX-License-Identifier: Apache-2.0
#include "serve/result_lines.h"
#include "base/digest.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/checksum.h"
#include "serve/openai_response.h"

namespace spillway {
namespace {

constexpr std::string_view kIdStart = "{\"id\":\"batch_req_";
constexpr size_t kIdDigits = 16;  // for X and for Y each

std::string_view digits_of(const std::string& id) {
  return std::string_view(id).substr(0, kIdDigits);
}

std::string start_of(const std::string& id) { return fmt::format("{}{}", kIdStart, digits_of(id)); }

std::string check_digits(const std::string& id, std::string_view rest) {
  return hex64(checksum64(id + std::string(rest)));
}

}  // namespace

ResultLines::ResultLines(std::string job_key, const BatchInput& input)
    : key_(std::move(job_key)), first_line_(input.line_number(0)) {
  lines_.reserve(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const uint64_t line = input.line_number(i);
    lines_.emplace(checksum64(digits_of(id(line))), line);
  }
}

std::string ResultLines::id(uint64_t line) const {
  return digest128(fmt::format("{} {}", key_, line));
}

std::string ResultLines::write(uint64_t line, const nlohmann::ordered_json& custom_id,
                               const nlohmann::ordered_json& response,
                               const nlohmann::ordered_json& error) const {
  const std::string id = this->id(line);
  const std::string rest = fmt::format("\",\"custom_id\":{},\"response\":{},\"error\":{}}}",
                                       json_line(custom_id), json_line(response), json_line(error));
  return start_of(id) + check_digits(id, rest) + rest;
}

std::optional<uint64_t> ResultLines::try_line_of(std::string_view text) const {
  if (!text.starts_with(kIdStart) || text.size() < kIdStart.size() + kIdDigits) return std::nullopt;
  const std::string_view digits = text.substr(kIdStart.size(), kIdDigits);
  const auto it = lines_.find(checksum64(digits));
  if (it == lines_.end() || digits_of(id(it->second)) != digits) return std::nullopt;
  return it->second;
}

std::optional<uint64_t> ResultLines::try_read(std::string_view text) const {
  const auto line = try_line_of(text);
  if (!line || text.size() < kIdStart.size() + 2 * kIdDigits) return std::nullopt;
  const std::string_view digits = text.substr(kIdStart.size() + kIdDigits, kIdDigits);
  const std::string_view rest = text.substr(kIdStart.size() + 2 * kIdDigits);
  return check_digits(id(*line), rest) == digits ? line : std::nullopt;
}

bool ResultLines::is_start_of_first(std::string_view text) const {
  return start_of(id(first_line_)).starts_with(text);
}

bool ResultLines::is_failed(std::string_view text) { return !text.ends_with(",\"error\":null}"); }

}  // namespace spillway
