// SPDX-License-Identifier: Apache-2.0
// Reads the requests of a batch job: a file with one JSON object a line, in the format of OpenAI's
// batch API.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/api_error.h"
#include "serve/openai_request.h"
#include "serve/posix_file.h"

namespace spillway {

// A line with a unique custom_id; only request() tells whether it can be answered.
struct BatchLine {
  std::string custom_id;
  std::string text;  // the line's JSON
  UnknownFields unknown_fields = UnknownFields::kIgnore;

  // Parses {"custom_id", "method", "url", "body"}. Throws ApiError(400).
  OpenAiRequest request() const;
};

// Keeps the position of each line and reads it on demand, so a file of any size takes a few bytes
// of memory a line. Empty lines count as lines but are no requests. Not thread-safe.
class BatchInput {
 public:
  // Reads the whole file once. Throws kInvalidArgument if it is not a regular file, cannot be
  // opened or has no requests.
  explicit BatchInput(const std::filesystem::path& path,
                      UnknownFields unknown_fields = UnknownFields::kIgnore);

  size_t size() const { return entries_.size(); }
  uint64_t bytes() const;  // bytes of all requests' lines
  // Returns the line's number in the file, from 1.
  uint64_t line_number(size_t index) const { return entries_.at(index).number; }
  // Returns why the line is no request (not JSON, no custom_id, or one of another line), or null.
  const ApiError* problem(size_t index) const;
  // Throws kInvalidArgument if the file has changed since.
  BatchLine line(size_t index) const;

  // Returns the checksum of the whole file.
  const std::string& checksum() const { return checksum_; }

 private:
  struct Entry {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    uint64_t number = 0;
  };
  std::string text(const Entry& entry) const;
  void add_line(const Entry& entry, std::string_view text);
  void require_new_id(const std::string& custom_id);

  PosixFile file_;
  UnknownFields unknown_fields_;
  std::string checksum_;
  std::vector<Entry> entries_;
  std::map<size_t, ApiError> problems_;             // by index
  std::unordered_map<uint64_t, size_t> first_use_;  // checksum of a custom_id -> index
};

}  // namespace spillway
