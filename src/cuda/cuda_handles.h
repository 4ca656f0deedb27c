// SPDX-License-Identifier: Apache-2.0
// Owners of CUDA streams, events, graphs and pinned memory that free them when destroyed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "cuda/cuda_error.h"

namespace spillway::cuda {

// Move-only owner of a CUDA handle. The destructor ignores errors, as the context may be gone.
template <class T, cudaError_t (*kDestroy)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_ != T{}) (void)kDestroy(value_);
  }
  T get() const { return value_; }
  explicit operator bool() const { return value_ != T{}; }

 private:
  T value_{};
};

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;
using Graph = Handle<cudaGraph_t, cudaGraphDestroy>;
using PinnedMemory = Handle<void*, cudaFreeHost>;

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  SPW_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

// Makes an event without timing, to order work between streams.
inline Event make_event() {
  cudaEvent_t event = nullptr;
  SPW_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

// Makes an event without timing; a host thread that waits for it sleeps instead of spinning.
inline Event make_blocking_event() {
  cudaEvent_t event = nullptr;
  SPW_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return Event(event);
}

// Kernels can read and write this memory at the same address: with unified addressing (on all
// 64-bit Linux) whatever cudaHostAlloc returns is mapped for every device without a flag.
inline PinnedMemory make_pinned(size_t bytes) {
  void* data = nullptr;
  SPW_CUDA_CHECK(cudaHostAlloc(&data, bytes, cudaHostAllocDefault));
  return PinnedMemory(data);
}

}  // namespace spillway::cuda
