// SPDX-License-Identifier: Apache-2.0
// Runs a batch job: requests from its input through the engine into its journal, the file of
// finished results from which an interrupted job is resumed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_client.h"
#include "serve/batch_input.h"
#include "serve/batch_journal.h"
#include "serve/completion.h"
#include "serve/result_lines.h"
#include "serve/served_model.h"

namespace spillway {

struct BatchJobOptions {
  std::string fingerprint;  // system_fingerprint of answers
  // Requests in the engine. These are more than it runs, so that a request that ends is replaced in
  // the same step; twice as many if it runs batch blocks (sequences that begin together), so that
  // the next one is there when a block has ended.
  int max_outstanding = 256;
};

// Keeps references to all its arguments. With a deterministic engine, a line's result depends only
// on the line, the model and the job, never on when or with which other lines it is computed.
// Not thread-safe.
class BatchJob {
 public:
  BatchJob(const BatchInput& input, const ResultLines& lines, BatchJournal& journal,
           const ServedModel& model, EngineClient& engine, const BatchJobOptions& options);

  // Submits as many requests as fit in the engine, waits for events, and writes finished results.
  // Returns false when all lines have their results. Throws errors of an engine step and of the
  // journal; an error for a request that cannot be answered is a result.
  bool step();

  uint64_t requests() const { return input_.size(); }
  uint64_t finished() const { return journal_.size(); }
  uint64_t finished_before() const { return finished_before_; }  // by earlier processes
  uint64_t failed() const { return journal_.failed(); }
  // Returns fields of requests that have no effect, each with the number of this process's requests
  // that have it; at most kMostIgnored.
  const std::map<std::string, uint64_t>& ignored_fields() const { return ignored_fields_; }

 private:
  static constexpr size_t kMostIgnored = 64;
  struct Running {
    uint64_t line = 0;
    std::string custom_id;
    Completion completion;
  };
  // A choice of a line; each is a request to the engine.
  struct RunningChoice {
    std::shared_ptr<Running> of;
    size_t index = 0;
  };
  // Lines that are submitted to the engine together.
  struct Window {
    std::vector<GenerationRequest> requests;
    std::vector<RunningChoice> choices;  // one for each request
  };
  void submit_more();
  void read_line(size_t index, Window& window);
  void count_ignored(const std::vector<std::string>& names);
  void finish(const Running& running);
  void write_error(uint64_t line, const std::string* custom_id, const ApiError& error);

  const BatchInput& input_;
  const ResultLines& lines_;
  BatchJournal& journal_;
  const ServedModel& model_;
  EngineClient& engine_;
  BatchJobOptions options_;
  uint64_t finished_before_;
  size_t next_ = 0;  // index of the next line to submit
  std::map<RequestId, RunningChoice> running_;
  std::map<std::string, uint64_t> ignored_fields_;
};

}  // namespace spillway
