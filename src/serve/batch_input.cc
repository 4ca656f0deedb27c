// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_input.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/printable.h"
#include "serve/bounded_json.h"
#include "serve/checksum.h"
#include "serve/line_reader.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = size_t{16} << 20;  // a million tokens take half of it

PosixFile open_input(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  SPW_CHECK(std::filesystem::exists(status), kInvalidArgument, "there is no file {}",
            printable_path(path));
  // The file is read again when a job is resumed, so a pipe will not do.
  SPW_CHECK(std::filesystem::is_regular_file(status), kInvalidArgument,
            "{} is not a file; give one with a request a line", printable_path(path));
  try {
    return PosixFile(path, O_RDONLY);
  } catch (const Error& failed) {
    throw Error(ErrorCode::kInvalidArgument, failed.what());
  }
}

std::string string_member(const json& line, const char* name) {
  const auto it = line.find(name);
  if (it == line.end() || it->is_null())
    throw ApiError(400, "missing_required_parameter", name, fmt::format("'{}' is missing", name));
  if (!it->is_string())
    throw ApiError(400, "invalid_type", name, fmt::format("'{}' must be a string", name));
  return it->get<std::string>();
}

std::string custom_id_of(const json& line) {
  if (!line.is_object())
    throw ApiError(400, "invalid_type", "",
                   "not an object; give {\"custom_id\", \"method\", \"url\", \"body\"}");
  return string_member(line, "custom_id");
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

}  // namespace

OpenAiRequest BatchLine::request() const {
  const json line = parse_json_text(text);
  if (const std::string method = string_member(line, "method"); method != "POST")
    throw ApiError(400, "invalid_method", "method",
                   fmt::format("'method' is '{}'; give POST", printable(method, 40)));
  const std::string url = string_member(line, "url");
  const auto route = try_openai_route(url);
  if (!route)
    throw ApiError(400, "invalid_url", "url",
                   fmt::format("'url' is '{}'; give /v1/chat/completions or /v1/completions",
                               printable(url, 80)));
  const auto body = line.find("body");
  if (body == line.end())
    throw ApiError(400, "missing_required_parameter", "body", "'body' is missing");
  OpenAiRequest request = parse_openai_request(*route, *body, unknown_fields);
  if (request.stream)
    throw ApiError(400, "unsupported_parameter", "stream",
                   "'stream' is true; a batch has no client to stream to");
  return request;
}

BatchInput::BatchInput(const std::filesystem::path& path, UnknownFields unknown_fields)
    : file_(open_input(path)), unknown_fields_(unknown_fields) {
  Digest checksum;
  LineReader reader(file_, kMaxLineBytes);
  FileLine line;
  uint64_t number = 0;
  while (reader.next(line)) {
    ++number;
    checksum.add(line.text);
    checksum.add(line.too_long ? fmt::format(" {}\n", line.bytes) : "\n");
    if (line.too_long) {
      problems_.emplace(entries_.size(),
                        ApiError(400, "line_too_long", "",
                                 fmt::format("the line has {} bytes; at most {} are read",
                                             line.bytes, kMaxLineBytes)));
      entries_.push_back({line.offset, 0, checksum64({}), number});
    } else if (!is_blank(line.text)) {
      add_line({line.offset, line.bytes, checksum64(line.text), number}, line.text);
    }
  }
  checksum_ = checksum.digits();
  first_use_.clear();
  SPW_CHECK(!entries_.empty(), kInvalidArgument,
            "{} has no requests; give one a line: {{\"custom_id\", \"method\", \"url\", \"body\"}}",
            printable_path(path));
}

void BatchInput::add_line(const Entry& entry, std::string_view text) {
  try {
    require_new_id(custom_id_of(parse_json_text(text)));
  } catch (const ApiError& error) {
    problems_.emplace(entries_.size(), error);
  }
  entries_.push_back(entry);
}

void BatchInput::require_new_id(const std::string& custom_id) {
  const auto [it, added] = first_use_.try_emplace(checksum64(custom_id), entries_.size());
  if (added) return;
  const Entry& other = entries_[it->second];
  // Two ids may have the same checksum, though very rarely.
  if (custom_id_of(parse_json_text(this->text(other))) != custom_id) return;
  throw ApiError(400, "duplicate_custom_id", "custom_id",
                 fmt::format("'custom_id' is '{}', which line {} has already",
                             printable(custom_id, 80), other.number));
}

std::string BatchInput::text(const Entry& entry) const {
  std::string text(entry.bytes, '\0');
  const size_t n = file_.read(entry.offset, text.data(), text.size());
  SPW_CHECK(n == text.size() && checksum64(text) == entry.checksum, kInvalidArgument,
            "line {} of {} changed while the job was running; give the job a file that stays as it "
            "is",
            entry.number, printable_path(file_.path()));
  return text;
}

uint64_t BatchInput::bytes() const {
  uint64_t all = 0;
  for (const Entry& entry : entries_) all += entry.bytes;
  return all;
}

const ApiError* BatchInput::problem(size_t index) const {
  const auto it = problems_.find(index);
  return it == problems_.end() ? nullptr : &it->second;
}

BatchLine BatchInput::line(size_t index) const {
  BatchLine line;
  line.text = text(entries_.at(index));
  line.unknown_fields = unknown_fields_;
  line.custom_id = custom_id_of(parse_json_text(line.text));
  return line;
}

}  // namespace spillway
