// SPDX-License-Identifier: Apache-2.0
// What /metrics says, in Prometheus' words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine_loop.h"

namespace spillway {

// What is known of the machine and the plan: what measured figures stand beside.
struct ServingFacts {
  std::string model;
  std::string plan;     // one line
  bool has_gpu = true;  // apart from the host
  double to_gpu_ceiling = 0, to_host_ceiling = 0, disk_read_ceiling = 0,
         disk_write_ceiling = 0;  // bytes/s; 0: nobody knows
  double predicted_step_s = 0;    // of decoding, with all sequences at work; 0: nobody knows
};

// Thread-safe.
class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  void know(const ServingFacts& facts);
  void step(const StepReport& report);
  // Of the KV store, which changes also while no step runs.
  void store(const KvStoreStats& stats);
  void first_token(double seconds);
  void next_token(double seconds);
  // `finish`: "stop", "length", "cancelled", "error".
  void ended(const char* finish, double seconds);
  // Tokens of a request's prompts, and of one of its answers.
  void prompt_length(size_t tokens);
  void answer_length(size_t tokens);
  // Before it reached the engine: 400, 429, ...
  void refused(int status);

  // The text format of version 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
