// SPDX-License-Identifier: Apache-2.0
#include "serve/finished_output.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>

#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/line_reader.h"
#include "serve/openai_request.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr size_t kMaxResultBytes = size_t{1} << 30;

// Returns a value of the body in a result, or null.
json body_value(std::string_view line, const char* name) {
  try {
    const json result = parse_json_text(line);
    return result.value(json::json_pointer("/response/body"), json::object()).value(name, json());
  } catch (const ApiError&) {
    return nullptr;
  } catch (const json::exception&) {  // the line has another shape
    return nullptr;
  }
}

}  // namespace

FinishedOutput::FinishedOutput(const std::filesystem::path& path, const ResultLines& lines,
                               const BatchInput& input)
    : lines_(lines), file_(path, O_RDONLY) {
  LineReader reader(file_, kMaxResultBytes);
  FileLine line;
  bool all_in_place = true;
  size_t count = 0;
  of_job_ = file_.size() == 0;
  while (reader.next(line)) {
    const auto number = lines.try_read(line.text);
    all_in_place = all_in_place && line.complete && number && count < input.size() &&
                   *number == input.line_number(count);
    ++count;
    // If the file was cut off within its first line, that is all of it.
    const bool only_a_start = line.offset == 0 && !line.complete && !line.too_long;
    of_job_ = of_job_ || lines.was_result(line.text) ||
              (only_a_start && lines.is_start_of_first(line.text));
    if (number) results_.try_emplace(*number, Place{line.offset, line.bytes});
  }
  complete_ = all_in_place && count == input.size();
}

std::optional<int64_t> FinishedOutput::try_created() const {
  for (const auto& [line, place] : results_) {
    const json created = body_value(file_.read_exact(place.offset, place.bytes), "created");
    if (created.is_number_integer()) return created.get<int64_t>();
  }
  return std::nullopt;
}

void FinishedOutput::copy_to(BatchJournal& journal) const {
  for (const auto& [line, place] : results_) {
    if (journal.has(line)) continue;
    const std::string text = file_.read_exact(place.offset, place.bytes);
    // The file may have been written to since.
    if (lines_.try_read(text) == line) journal.append(line, ResultLines::is_failed(text), text);
  }
}

std::optional<std::string> FinishedOutput::try_fingerprint() const {
  LineReader reader(file_, kMaxResultBytes);
  FileLine line;
  while (reader.next(line)) {
    const json fingerprint = body_value(line.text, "system_fingerprint");
    if (fingerprint.is_string()) return fingerprint.get<std::string>();
  }
  return std::nullopt;
}

}  // namespace spillway
