// SPDX-License-Identifier: Apache-2.0
#include "cli/request_lengths.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

constexpr int kLongest = 1 << 24;
constexpr size_t kShown = 40;  // characters of a bad line to show

constexpr std::array<std::string_view, 4> kPromptNames = {"ContextTokens", "prompt",
                                                          "prompt_tokens", "input_tokens"};
constexpr std::array<std::string_view, 4> kAnswerNames = {"GeneratedTokens", "answer",
                                                          "answer_tokens", "output_tokens"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Splits a line at commas; without commas, at blanks.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  const bool commas = line.find(',') != line.npos;
  for (line = trimmed(line); !line.empty() || commas;) {
    const size_t end = commas ? line.find(',') : line.find_first_of(" \t");
    fields.push_back(trimmed(line.substr(0, end)));
    if (end == line.npos) break;
    line = trimmed(line.substr(end + 1));
  }
  return fields;
}

struct Columns {
  size_t prompt = 0, answer = 1;
  size_t count = 2;
};

std::optional<size_t> try_find(const std::vector<std::string_view>& fields,
                               std::span<const std::string_view> names) {
  const auto it = std::find_first_of(fields.begin(), fields.end(), names.begin(), names.end());
  if (it == fields.end()) return std::nullopt;
  return static_cast<size_t>(it - fields.begin());
}

std::optional<Columns> try_header(const std::vector<std::string_view>& fields) {
  const auto prompt = try_find(fields, kPromptNames), answer = try_find(fields, kAnswerNames);
  if (!prompt || !answer) return std::nullopt;
  return Columns{*prompt, *answer, fields.size()};
}

std::optional<int> try_length(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 1 || value > kLongest) return std::nullopt;
  return value;
}

std::optional<RequestLengths> try_request(const std::vector<std::string_view>& fields,
                                          const Columns& columns) {
  if (fields.size() != columns.count) return std::nullopt;
  const auto prompt = try_length(fields[columns.prompt]);
  const auto answer = try_length(fields[columns.answer]);
  if (!prompt || !answer) return std::nullopt;
  return RequestLengths{*prompt, *answer};
}

}  // namespace

std::vector<RequestLengths> read_request_lengths(const std::filesystem::path& path, size_t most) {
  std::ifstream file(path, std::ios::binary);
  SPW_CHECK(file.good(), kInvalidArgument, "{}: cannot be read", printable_path(path));
  std::vector<RequestLengths> requests;
  Columns columns;
  bool first = true;
  std::string line;
  for (int64_t number = 1; (most == 0 || requests.size() < most) && std::getline(file, line);
       ++number) {
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.empty()) continue;
    if (std::exchange(first, false)) {
      if (const auto header = try_header(fields)) {
        columns = *header;
        continue;
      }
    }
    const auto request = try_request(fields, columns);
    SPW_CHECK(request, kInvalidArgument,
              "{}: line {} is '{}'; give the tokens of a prompt and of its answer, such as 512 32 "
              "(or a header that names columns ContextTokens and GeneratedTokens first)",
              printable_path(path), number, printable(line.substr(0, kShown)));
    requests.push_back(*request);
  }
  SPW_CHECK(!requests.empty(), kInvalidArgument, "{}: no requests in it", printable_path(path));
  return requests;
}

Workload workload_of(std::span<const RequestLengths> requests) {
  Workload workload;
  for (const RequestLengths& request : requests) {
    const bool again = !workload.groups.empty() &&
                       workload.groups.back().prompt == request.prompt &&
                       workload.groups.back().generate == request.answer;
    if (!again) workload.groups.push_back({0, request.prompt, request.answer});
    ++workload.groups.back().count;
  }
  return workload;
}

TokenCounts count_tokens(std::span<const RequestLengths> requests) {
  TokenCounts counts;
  for (const RequestLengths& request : requests) {
    counts.prompt += request.prompt;
    counts.answer += request.answer;
  }
  return counts;
}

TokenCounts count_padded_tokens(std::span<const RequestLengths> requests, size_t block) {
  SPW_ASSERT(block > 0);
  TokenCounts counts;
  for (size_t begin = 0; begin < requests.size(); begin += block) {
    const auto together = requests.subspan(begin, std::min(block, requests.size() - begin));
    const auto count = static_cast<int64_t>(together.size());
    counts.prompt += count * std::ranges::max(together, {}, &RequestLengths::prompt).prompt;
    counts.answer += count * std::ranges::max(together, {}, &RequestLengths::answer).answer;
  }
  return counts;
}

}  // namespace spillway
