// SPDX-License-Identifier: Apache-2.0
// Recorded decode steps: a step of hundreds of launches becomes one.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

#include "cuda/cuda_handles.h"
#include "cuda/step_tables.h"

namespace spillway::cuda {

// Steps with equal keys launch the same kernels with the same arguments.
struct GraphKey {
  uint64_t program = 0;
  uint64_t scratch = 0, tables = 0;  // generations of the device's own memory
  StepShape shape;
  auto operator<=>(const GraphKey&) const = default;
};

// Keeps the most recently used graphs. Used from one thread.
class GraphCache {
 public:
  explicit GraphCache(cudaStream_t stream) : stream_(stream) {}

  // Replays the step if it is known. Otherwise calls `body`: as it is the first time, so that
  // whatever has to be allocated or loaded is, and recording it the second time.
  void run(const GraphKey& key, const std::function<void()>& body);
  // Drops every recording.
  void clear() { entries_.clear(); }
  int64_t replays() const { return replays_; }

 private:
  struct Entry {
    GraphExec graph;
    uint64_t last_use = 0;
  };
  GraphExec record(const std::function<void()>& body);
  void make_room();

  static constexpr size_t kMostEntries = 64;
  cudaStream_t stream_;
  std::map<GraphKey, Entry> entries_;
  uint64_t uses_ = 0;
  int64_t replays_ = 0;
};

}  // namespace spillway::cuda
