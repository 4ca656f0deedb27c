// SPDX-License-Identifier: Apache-2.0
// The output that is there already: whether it is all of a job's, and what of it can be used.
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

  // Every result of the job, in order, and nothing else.
  bool complete() const { return complete_; }
  // What is in it was written for this job, as far as it can be told: it may be replaced. An empty
  // file may be, too.
  bool of_job() const { return of_job_; }
  // Results that are as they were written.
  size_t sound() const { return results_.size(); }
  // When these say they were created; nothing where none says.
  [[nodiscard]] std::optional<int64_t> try_created() const;
  // Appends those that the journal lacks.
  void copy_to(BatchJournal& journal) const;

  // The first system_fingerprint in it, whoever wrote it.
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
