// SPDX-License-Identifier: Apache-2.0
// Keeps finished results of a batch job on disk, so that a job that was killed can be resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "serve/job_fields.h"
#include "serve/posix_file.h"

namespace spillway {

// A file beside the output. Each line is a record {"xxh3": checksum of the rest, "line": N,
// "failed": bool, "result": {...}}; line 0 describes the job. A record that a kill cut off, or that
// was damaged since, is ignored and its line computed again. Holds a lock on the file while it
// exists, so that two processes never write to one file. Not thread-safe. Throws kIo when the disk
// is full or fails: earlier records stay.
class BatchJournal {
 public:
  // Opens, locks and reads the file, or creates it. Throws kInvalidArgument if another process
  // holds it, or if it is not a journal; `restart` discards its contents.
  BatchJournal(const std::filesystem::path& path, bool restart);
  // Removes the file if begin() wrote nothing to it.
  ~BatchJournal();
  BatchJournal(const BatchJournal&) = delete;
  BatchJournal& operator=(const BatchJournal&) = delete;

  // Returns whether the file has a job to resume.
  bool has_job() const { return has_job_; }
  // Throws kInvalidArgument, naming the difference and what to do, if the file's job is another
  // one.
  void require_same_job(const JobFields& job) const;
  // Must come before append(): checks the job as above, or starts the journal with it. `created`
  // (seconds since 1970) and `plan` (JSON of the plan that the job begins with) are kept from the
  // first call on.
  void begin(const JobFields& job, int64_t created, const std::string& plan = "");
  int64_t created() const { return created_; }

  bool has(uint64_t line) const { return results_.contains(line); }
  size_t size() const { return results_.size(); }
  size_t failed() const { return failed_; }
  // `result` is JSON without newlines. It is in the file on return, and on the disk after sync().
  void append(uint64_t line, bool failed, std::string_view result);
  void sync();

  // Writes all results to `path`, in the order of their lines, by renaming a temporary file, so
  // that the output is complete or absent. The journal is not needed afterwards.
  void write_output(const std::filesystem::path& path) const;
  void remove();

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  void read();
  void read_job(std::string_view json);
  [[noreturn]] void refuse_other_version() const;

  PosixFile file_;
  uint64_t end_ = 0;  // end of the last valid record
  bool has_job_ = false;
  JobFields job_;
  int64_t created_ = 0;
  size_t failed_ = 0;
  bool dirty_ = false;                 // records were appended since the last sync
  std::map<uint64_t, Place> results_;  // by line number
};

// Returns the plan that a journal's job was begun with, even if another process has the journal
// open; nullopt if there is no plan, or it cannot be read.
std::optional<std::string> try_plan_of_journal(const std::filesystem::path& path);

}  // namespace spillway
