// SPDX-License-Identifier: Apache-2.0
// Runs an engine loop for a program that waits for its own requests: commands, and jobs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/engine_loop.h"

namespace spillway {

// Used by one thread.
class EngineClient {
 public:
  explicit EngineClient(Engine& engine);

  // Throws kInvalidArgument as Engine::submit() does.
  RequestId submit(GenerationRequest request);
  std::vector<RequestId> submit(std::vector<GenerationRequest> requests);
  void check(const GenerationRequest& request) const { loop_.check(request); }
  void cancel(RequestId id) { loop_.cancel(id); }

  // The events since the last call, in order; waits for the first no longer than `time`.
  std::vector<GenerationEvent> take(std::chrono::milliseconds time = std::chrono::milliseconds(50));

  int outstanding() const { return loop_.outstanding(); }
  int64_t max_sequence_tokens() const { return loop_.max_sequence_tokens(); }
  // Returns the statistics as of the last take().
  const EngineStats& stats() const { return stats_; }

 private:
  std::mutex mutex_;
  std::condition_variable has_come_;
  std::vector<GenerationEvent> events_;
  EngineStats newest_;
  EngineStats stats_;
  EngineLoop loop_;  // the last member: its thread uses the others
};

}  // namespace spillway
