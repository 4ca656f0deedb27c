// SPDX-License-Identifier: Apache-2.0
// Runs a batch job: requests from its input through the engine into its journal.
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
  // In the engine at once. More than it runs, so that one that ends is replaced in the same step;
  // twice as many where it works in blocks, so that the next one is there when a block has ended.
  int max_outstanding = 256;
};

// Keeps references to all it is given. What a line's result is depends on the line, the model and
// the job alone, never on when or with which others it is computed (given a deterministic engine).
// Not thread-safe.
class BatchJob {
 public:
  BatchJob(const BatchInput& input, const ResultLines& lines, BatchJournal& journal,
           const ServedModel& model, EngineClient& engine, const BatchJobOptions& options);

  // Gives the engine what it has room for, waits for events, and writes what has ended. False when
  // all lines have their results. Throws what a step of the engine and the journal throw; a request
  // that cannot be answered is a result.
  bool step();

  uint64_t requests() const { return input_.size(); }
  uint64_t finished() const { return journal_.size(); }
  uint64_t finished_before() const { return finished_before_; }  // by an earlier process
  uint64_t failed() const { return journal_.failed(); }
  // Fields of requests that have no effect, each with the number of this process's requests that
  // have it; at most kMostIgnored.
  const std::map<std::string, uint64_t>& ignored_fields() const { return ignored_fields_; }

 private:
  static constexpr size_t kMostIgnored = 64;
  struct Running {
    uint64_t line = 0;
    std::string custom_id;
    Completion completion;
  };
  // Of a line's choices, each of which is a request to the engine.
  struct RunningChoice {
    std::shared_ptr<Running> of;
    size_t index = 0;
  };
  // Lines that go to the engine together.
  struct Window {
    std::vector<GenerationRequest> requests;
    std::vector<RunningChoice> choices;  // one for each
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
  size_t next_ = 0;  // index of the first line that was not looked at
  std::map<RequestId, RunningChoice> running_;
  std::map<std::string, uint64_t> ignored_fields_;
};

}  // namespace spillway
