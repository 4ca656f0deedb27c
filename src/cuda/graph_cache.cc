// SPDX-License-Identifier: Apache-2.0
#include "cuda/graph_cache.h"

#include <algorithm>

namespace spillway::cuda {

GraphExec GraphCache::record(const std::function<void()>& body) {
  SPW_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t raw = nullptr;
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(stream_, &raw);  // the stream computes again
    if (raw != nullptr) (void)cudaGraphDestroy(raw);
    (void)cudaGetLastError();
    throw;
  }
  SPW_CUDA_CHECK(cudaStreamEndCapture(stream_, &raw));
  const Graph graph(raw);
  cudaGraphExec_t exec = nullptr;
  SPW_CUDA_CHECK(cudaGraphInstantiate(&exec, graph.get(), 0));
  return GraphExec(exec);
}

void GraphCache::make_room() {
  if (entries_.size() < kMostEntries) return;
  entries_.erase(std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
}

void GraphCache::run(const GraphKey& key, const std::function<void()>& body) {
  auto it = entries_.find(key);
  if (it == entries_.end()) {
    body();
    make_room();
    entries_[key].last_use = ++uses_;
    return;
  }
  Entry& entry = it->second;
  entry.last_use = ++uses_;
  if (!entry.graph) {
    entry.graph = record(body);
  } else {
    ++replays_;
  }
  SPW_CUDA_CHECK(cudaGraphLaunch(entry.graph.get(), stream_));
}

}  // namespace spillway::cuda
