// SPDX-License-Identifier: Apache-2.0
// What a batch job has finished, on disk, so that a job that was killed goes on where it was.
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

// A file beside the output. Each line is a record {"xxh3": checksum of what follows, "line": N,
// "failed": bool, "result": {...}}; line 0 is what the job is. A record that was cut off by a kill,
// or damaged since, does not count: its line is computed again. Holds a lock on the file as long as
// it lives, so that two processes never write to one. Not thread-safe. Throws kIo when the disk is
// full or fails: what was appended before stays.
class BatchJournal {
 public:
  // Opens, locks and reads it; makes it where there is none. Throws kInvalidArgument when another
  // process has it, or when the file is something else; `restart` forgets what is in it.
  BatchJournal(const std::filesystem::path& path, bool restart);
  // Removes a file in which begin() wrote nothing.
  ~BatchJournal();
  BatchJournal(const BatchJournal&) = delete;
  BatchJournal& operator=(const BatchJournal&) = delete;

  // There is a job to go on with.
  bool has_job() const { return has_job_; }
  // Throws kInvalidArgument, naming what differs and what to do, if the job in the file is another
  // one.
  void require_same_job(const JobFields& job) const;
  // Before append(): checks as above, or makes it the journal of this job. `created` (seconds since
  // 1970) and `plan` (JSON, what the job was begun with) are kept from the first time on.
  void begin(const JobFields& job, int64_t created, const std::string& plan = "");
  int64_t created() const { return created_; }

  bool has(uint64_t line) const { return results_.contains(line); }
  size_t size() const { return results_.size(); }
  size_t failed() const { return failed_; }
  // `result` is JSON without newlines. In the file when it returns, on the disk after sync().
  void append(uint64_t line, bool failed, std::string_view result);
  void sync();

  // Writes all results to `path`, in the order of their lines: under another name first, so the
  // file is there whole or not at all. Then the journal is not needed any more.
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
  uint64_t end_ = 0;  // behind the last sound record
  bool has_job_ = false;
  JobFields job_;
  int64_t created_ = 0;
  size_t failed_ = 0;
  bool dirty_ = false;                 // appended since the last sync
  std::map<uint64_t, Place> results_;  // by line
};

// The plan that a job was begun with, of a journal that nobody need have opened; nothing where
// there is none, or none that can be read.
std::optional<std::string> try_plan_of_journal(const std::filesystem::path& path);

}  // namespace spillway
