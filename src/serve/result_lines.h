// SPDX-License-Identifier: Apache-2.0
// Writes and recognizes the lines of a job's output, each of which proves its completeness and its
// job.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "serve/batch_input.h"

namespace spillway {

// A line begins {"id":"batch_req_XY": X is made of the job's key and the number of the request's
// line, Y is a checksum of X's source and of all that follows. So a result that was edited, cut off
// or made by another job is recognized without any other file. Thread-safe.
class ResultLines {
 public:
  ResultLines(std::string job_key, const BatchInput& input);

  // Returns an id that is unique to job and line, for the ids inside a result.
  std::string id(uint64_t line) const;
  // Returns {"id", "custom_id", "response", "error"} without a newline.
  std::string write(uint64_t line, const nlohmann::ordered_json& custom_id,
                    const nlohmann::ordered_json& response,
                    const nlohmann::ordered_json& error) const;
  // Returns the number of the request's line; nullopt if `text` is not a result of this job.
  [[nodiscard]] std::optional<uint64_t> try_read(std::string_view text) const;
  // Returns whether `text` begins like a result of this job, even if it was damaged later.
  bool was_result(std::string_view text) const { return try_line_of(text).has_value(); }
  // Returns whether the job's first result begins with all of `text`.
  bool is_start_of_first(std::string_view text) const;
  // Returns whether a result that try_read() accepted is an error.
  static bool is_failed(std::string_view text);

 private:
  std::optional<uint64_t> try_line_of(std::string_view text) const;

  std::string key_;
  uint64_t first_line_;
  std::unordered_map<uint64_t, uint64_t> lines_;  // by checksum of X
};

}  // namespace spillway
