// SPDX-License-Identifier: Apache-2.0
// The engine's part of /metrics, as Prometheus metrics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine_loop.h"

namespace spillway {

// Facts of the machine and the plan, to compare measured figures with.
struct ServingFacts {
  std::string model;
  std::string plan;     // one line
  bool has_gpu = true;  // true for a discrete GPU
  double to_gpu_ceiling = 0, to_host_ceiling = 0, disk_read_ceiling = 0,
         disk_write_ceiling = 0;  // bytes/s; 0: unknown
  double predicted_step_s = 0;    // for decode, with all sequences running; 0: unknown
};

// Thread-safe.
class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  void set_facts(const ServingFacts& facts);
  void step(const StepReport& report);
  // Takes figures of the KV store (kv/kv_store.h), which also change while no step runs.
  void store(const KvStoreStats& stats);
  void first_token(double seconds);
  void next_token(double seconds);
  // `finish` is "stop", "length", "cancelled" or "error".
  void ended(const char* finish, double seconds);
  // These take the tokens of a request's prompts, and of one of its answers.
  void prompt_length(size_t tokens);
  void answer_length(size_t tokens);
  // Counts a request that was refused before it reached the engine: 400, 429, ...
  void refused(int status);

  // Returns the text format of version 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
