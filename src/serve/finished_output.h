// SPDX-License-Identifier: Apache-2.0
// Reads an existing output: whether it is a job's complete output, and which results are usable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "serve/batch_journal.h"
#include "serve/posix_file.h"
#include "serve/result_lines.h"

namespace spillway {

// Reads the file once. Keeps a reference to `lines`. Not thread-safe; throws kIo.
class FinishedOutput {
 public:
  FinishedOutput(const std::filesystem::path& path, const ResultLines& lines,
                 const BatchInput& input);

  // Returns whether the file has every result of the job, in order, and nothing else.
  bool complete() const { return complete_; }
  // Returns whether the file seems to have been written for this job, and so may be replaced. An
  // empty file may be replaced, too.
  bool of_job() const { return of_job_; }
  // Returns the number of undamaged results.
  size_t sound() const { return results_.size(); }
  // Returns when these results were created; nullopt if none says so.
  [[nodiscard]] std::optional<int64_t> try_created() const;
  // Appends the results that the job's journal (batch_journal.h) lacks.
  void copy_to(BatchJournal& journal) const;

  // Returns the first system_fingerprint in the file, even if another job wrote it.
  [[nodiscard]] std::optional<std::string> try_fingerprint() const;

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  const ResultLines& lines_;
  PosixFile file_;
  bool complete_ = false;
  bool of_job_ = false;
  std::map<uint64_t, Place> results_;  // by line of the input
};

}  // namespace spillway
