// SPDX-License-Identifier: Apache-2.0
#include "serve/job_fields.h"
#include "base/digest.h"

#include <fmt/core.h>

#include "serve/checksum.h"

namespace spillway {
namespace {

constexpr std::string_view kPrefix = "fp_";
constexpr size_t kFieldDigits = 4;  // for people; job_key() decides whether jobs are equal

std::string field_digits(const std::pair<std::string, std::string>& field) {
  return hex64(checksum64(fmt::format("{}={}", field.first, field.second))).substr(0, kFieldDigits);
}

}  // namespace

std::string job_key(const JobFields& job) {
  std::string text;
  // The lengths keep a value from looking like another field.
  for (const auto& [name, value] : job)
    text += fmt::format("{}:{}={}:{}\n", name.size(), name, value.size(), value);
  return digest128(text);
}

std::string system_fingerprint(const JobFields& settings) {
  std::string fingerprint(kPrefix);
  for (const auto& field : settings) fingerprint += field_digits(field);
  return fingerprint;
}

std::vector<std::string> differing_settings(std::string_view fingerprint,
                                            const JobFields& settings) {
  std::vector<std::string> names;
  if (!fingerprint.starts_with(kPrefix)) return names;
  fingerprint.remove_prefix(kPrefix.size());
  if (fingerprint.size() != settings.size() * kFieldDigits) return names;
  for (const auto& field : settings) {
    if (fingerprint.substr(0, kFieldDigits) != field_digits(field)) names.push_back(field.first);
    fingerprint.remove_prefix(kFieldDigits);
  }
  return names;
}

}  // namespace spillway
