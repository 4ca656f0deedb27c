// SPDX-License-Identifier: Apache-2.0
#include "cuda/graph_cache.h"

namespace spillway::cuda {

GraphExec GraphCache::record(const std::function<void()>& body) {
  SPW_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t raw = nullptr;
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(stream_, &raw);  // the stream runs work again
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

void GraphCache::run(const GraphKey& key, std::span<const StepPart> parts,
                     const std::function<void(size_t)>& compute) {
  const auto launch = [&](const GraphExec& graph) {
    SPW_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_));
  };
  const auto record_and_launch = [&](size_t part) {
    GraphExec graph = record([&] { compute(part); });
    launch(graph);
    return graph;
  };
  steps_.run(key, parts, compute, record_and_launch, launch);
}

}  // namespace spillway::cuda
