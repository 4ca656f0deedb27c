// SPDX-License-Identifier: Apache-2.0
// The requests of a batch job: a file with one JSON object a line, as OpenAI's batch API takes it.
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

// A line with an id of its own; whether it can be answered shows only in `request()`.
struct BatchLine {
  std::string custom_id;
  std::string text;  // the JSON
  UnknownFields unknown_fields = UnknownFields::kIgnore;

  // What {"custom_id", "method", "url", "body"} asks for. Throws ApiError(400).
  OpenAiRequest request() const;
};

// Knows where each line is and reads it when it is asked for, so a file of any size takes a few
// bytes of memory a line. Empty lines count as lines and are no requests. Not thread-safe.
class BatchInput {
 public:
  // Reads all of it once. Throws kInvalidArgument for what is not a regular file, cannot be opened
  // or has no requests.
  explicit BatchInput(const std::filesystem::path& path,
                      UnknownFields unknown_fields = UnknownFields::kIgnore);

  size_t size() const { return entries_.size(); }
  uint64_t bytes() const;  // of all requests' lines
  // In the file, from 1.
  uint64_t line_number(size_t index) const { return entries_.at(index).number; }
  // Why the line is no request (not JSON, no custom_id, or one that another line has), or null.
  const ApiError* problem(size_t index) const;
  // Throws kInvalidArgument when the file has changed since.
  BatchLine line(size_t index) const;

  // Of the whole file.
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
