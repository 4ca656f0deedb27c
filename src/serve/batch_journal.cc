// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_journal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/checksum.h"
#include "serve/line_reader.h"
#include "serve/openai_request.h"
#include "serve/openai_response.h"

namespace spillway {
namespace {

constexpr std::string_view kFormat = "spillway batch journal 2";
constexpr std::string_view kSumStart = "{\"xxh3\":\"";
constexpr size_t kSumDigits = 16;
constexpr size_t kMaxRecordBytes = size_t{1} << 30;

std::string make_record(uint64_t line, bool failed, std::string_view result) {
  const std::string rest =
      fmt::format("\"line\":{},\"failed\":{},\"result\":{}}}", line, failed, result);
  return fmt::format("{}{}\",{}\n", kSumStart, hex64(checksum64(rest)), rest);
}

struct Record {
  uint64_t line = 0;
  bool failed = false;
  std::string_view result;
};

// Removes `prefix` from the front of `text`; returns false if it does not begin with it.
bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Returns nullopt unless the line is exactly what make_record() wrote.
std::optional<Record> try_read_record(std::string_view text) {
  if (!skip(text, kSumStart) || text.size() < kSumDigits) return std::nullopt;
  const std::string_view digits = text.substr(0, kSumDigits);
  text.remove_prefix(kSumDigits);
  if (!skip(text, "\",") || hex64(checksum64(text)) != digits) return std::nullopt;
  Record record;
  if (!skip(text, "\"line\":")) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), record.line);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  record.failed = text.starts_with(",\"failed\":true");
  if (!skip(text, record.failed ? ",\"failed\":true" : ",\"failed\":false")) return std::nullopt;
  if (!skip(text, ",\"result\":") || !text.ends_with('}')) return std::nullopt;
  text.remove_suffix(1);
  record.result = text;
  return record;
}

// Opens and locks the file. A process that finishes a job removes it, so it may be deleted by the
// time it is locked.
PosixFile open_locked(const std::filesystem::path& path) {
  while (true) {
    PosixFile file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    struct stat status = {};
    SPW_CHECK(::fstat(file.descriptor(), &status) == 0 && S_ISREG(status.st_mode), kInvalidArgument,
              "{} is not a file; remove it or give another -o", printable_path(path));
    if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
      SPW_CHECK(errno != EWOULDBLOCK, kInvalidArgument,
                "another process writes {}; wait for it, or give another -o", printable_path(path));
      fail(ErrorCode::kIo, "cannot lock {}: {}", printable_path(path),
           std::generic_category().message(errno));
    }
    struct stat locked = {};
    if (::fstat(file.descriptor(), &locked) == 0 && locked.st_nlink > 0) return file;
  }
}

}  // namespace

BatchJournal::BatchJournal(const std::filesystem::path& path, bool restart)
    : file_(open_locked(path)) {
  if (restart) {
    file_.truncate(0);
  } else {
    read();
  }
}

BatchJournal::~BatchJournal() {
  if (has_job_ || file_.descriptor() < 0) return;
  struct stat status = {};
  if (::fstat(file_.descriptor(), &status) == 0 && status.st_size == 0 && status.st_nlink > 0)
    ::unlink(file_.path().c_str());
}

void BatchJournal::read() {
  LineReader reader(file_, kMaxRecordBytes);
  FileLine line;
  size_t damaged = 0;
  while (reader.next(line)) {
    const auto record = line.complete ? try_read_record(line.text) : std::nullopt;
    const bool first = line.offset == 0;
    if (first && (!record || record->line != 0)) {
      // A kill may have cut off the very first write; any other file must not be overwritten.
      const size_t known = std::min(line.text.size(), kSumStart.size());
      SPW_CHECK(!line.complete && line.text.substr(0, known) == kSumStart.substr(0, known),
                kInvalidArgument,
                "{} is damaged or not the journal of a batch job; --restart begins the job anew",
                printable_path(file_.path()));
      break;
    }
    if (!record) {
      ++damaged;
      continue;
    }
    end_ = line.offset + line.bytes + 1;
    if (first) {
      read_job(record->result);
    } else if (record->line > 0) {
      const auto offset =
          line.offset + static_cast<uint64_t>(record->result.data() - line.text.data());
      const bool added =
          results_.try_emplace(record->line, Place{offset, record->result.size()}).second;
      if (added && record->failed) ++failed_;
    }
  }
  if (damaged > 0)
    log_info("{}: {} records were cut off or damaged; their requests are computed again",
             printable_path(file_.path()), damaged);
  // Cut off, so that the next record is not appended to a part of another.
  if (file_.size() != end_) file_.truncate(end_);
}

void BatchJournal::read_job(std::string_view text) {
  try {
    const nlohmann::json header = parse_json_text(text);
    if (header.at("format") != kFormat) refuse_other_version();
    header.at("created").get_to(created_);
    for (const auto& [name, value] : header.at("job").items())
      job_.emplace_back(name, value.get<std::string>());
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kInvalidArgument,
         "{} is damaged: its first line does not say what the job is; --restart begins it anew",
         printable_path(file_.path()));
  }
  has_job_ = true;
}

void BatchJournal::refuse_other_version() const {
  fail(ErrorCode::kInvalidArgument,
       "{} was written by another version of spillway; finish the job with that one, or begin it "
       "anew with --restart",
       printable_path(file_.path()));
}

void BatchJournal::require_same_job(const JobFields& job) const {
  if (!has_job_) return;
  // A version decides which fields a job has.
  if (job.size() != job_.size()) refuse_other_version();
  for (const auto& [name, value] : job) {
    const auto known = std::find_if(job_.begin(), job_.end(),
                                    [&](const auto& field) { return field.first == name; });
    if (known == job_.end()) refuse_other_version();
    SPW_CHECK(known->second == value, kInvalidArgument,
              "{} is of a job with another {} ({}, now {}); change it back to go on, give another "
              "-o, or begin anew with --restart",
              printable_path(file_.path()), name, printable(known->second, 200),
              printable(value, 200));
  }
}

void BatchJournal::begin(const JobFields& job, int64_t created, const std::string& plan) {
  if (has_job_) {
    require_same_job(job);
    return;
  }
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  for (const auto& [name, value] : job) fields[name] = value;
  nlohmann::ordered_json header{
      {"format", kFormat}, {"created", created}, {"job", std::move(fields)}};
  if (!plan.empty()) header["plan"] = plan;
  const std::string record = make_record(0, false, json_line(header));
  file_.write(0, record);
  file_.sync();
  sync_folder_of(file_.path());
  end_ = record.size();
  job_ = job;
  created_ = created;
  has_job_ = true;
}

void BatchJournal::append(uint64_t line, bool failed, std::string_view result) {
  SPW_ASSERT(has_job_ && line > 0 && !has(line) && result.find('\n') == std::string_view::npos);
  const std::string record = make_record(line, failed, result);
  file_.write(end_, record);
  results_[line] = {end_ + record.size() - 2 - result.size(), result.size()};
  end_ += record.size();
  if (failed) ++failed_;
  dirty_ = true;
}

void BatchJournal::sync() {
  if (!dirty_) return;
  file_.sync();
  dirty_ = false;
}

void BatchJournal::write_output(const std::filesystem::path& path) const {
  // The name is ours, since it is beside the journal and under its lock (OUTPUT.tmp may be a user's
  // file). A file that a killed process left there is overwritten.
  std::filesystem::path temporary = file_.path();
  temporary += ".tmp";
  try {
    PosixFile out(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    constexpr size_t kPieceBytes = size_t{1} << 20;
    std::string piece;
    uint64_t written = 0;
    for (const auto& [line, place] : results_) {
      piece += file_.read_exact(place.offset, place.bytes);
      piece += '\n';
      if (piece.size() < kPieceBytes) continue;
      out.write(written, piece);
      written += piece.size();
      piece.clear();
    }
    out.write(written, piece);
    out.sync();
    rename_file(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());  // frees the space that may be missing
    throw;
  }
}

void BatchJournal::remove() {
  if (::unlink(file_.path().c_str()) != 0 && errno != ENOENT)
    log_warning("cannot remove {}, which is not needed any more: {}", printable_path(file_.path()),
                std::generic_category().message(errno));
}

std::optional<std::string> try_plan_of_journal(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return std::nullopt;
  try {
    PosixFile file(path, O_RDONLY);
    LineReader reader(file, kMaxRecordBytes);
    FileLine line;
    if (!reader.next(line) || !line.complete) return std::nullopt;
    const auto record = try_read_record(line.text);
    if (!record || record->line != 0) return std::nullopt;
    const nlohmann::json header = parse_json_text(record->result);
    if (header.value("format", "") != kFormat || !header.contains("plan")) return std::nullopt;
    return header["plan"].get<std::string>();
  } catch (const Error&) {
    return std::nullopt;  // opening the journal will report why
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace spillway
