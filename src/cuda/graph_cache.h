// SPDX-License-Identifier: Apache-2.0
// Caches recorded decode steps: hundreds of launches become one graph launch, or one for each part
// of the step.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <span>

#include "cuda/cuda_handles.h"
#include "cuda/step_tables.h"
#include "device/recorded_steps.h"

namespace spillway::cuda {

// Steps with equal keys launch the same kernels with the same arguments.
struct GraphKey {
  uint64_t graph_key = 0;
  uint64_t scratch = 0, tables = 0;  // change when the device's own memory moves
  StepShape shape;
  OtherShapes others;
  auto operator<=>(const GraphKey&) const = default;
};

// Keeps the most recently used graphs. Used from one thread.
class GraphCache {
 public:
  explicit GraphCache(cudaStream_t stream) : stream_(stream) {}

  // Replays the step if it is known. Otherwise calls `compute` with each part's number
  // (RecordedSteps). `StepPart::before` is never part of a graph.
  void run(const GraphKey& key, std::span<const StepPart> parts,
           const std::function<void(size_t)>& compute);
  // The number of steps recorded and replayed so far.
  int64_t recordings() const { return steps_.recordings(); }
  int64_t replays() const { return steps_.replays(); }

 private:
  GraphExec record(const std::function<void()>& body);

  cudaStream_t stream_;
  RecordedSteps<GraphKey, GraphExec> steps_;
};

}  // namespace spillway::cuda
