// SPDX-License-Identifier: Apache-2.0
#include "cuda/copy_pieces.h"

#include <algorithm>

#include "cuda/kernel/launch.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;
constexpr size_t kBlockBytes = size_t{kThreads} * kUnroll * sizeof(uint4);
// The grid is small so that kernels running beside it keep most of the GPU: 16 of these thread
// blocks have 512 KiB in flight. The number has not been tuned.
constexpr unsigned kMostBlocks = 16;

__global__ void __launch_bounds__(kThreads)
    copy_pieces_kernel(const CopyPiece* pieces, int count, int parts) {
  wait_for_previous();
  launch_dependents();
  const int64_t items = int64_t{count} * parts;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const CopyPiece piece = pieces[item / parts];
    const auto* from = reinterpret_cast<const uint4*>(piece.from);
    auto* to = reinterpret_cast<uint4*>(piece.to);
    const size_t words = piece.bytes / sizeof(uint4);
    const size_t begin = static_cast<size_t>(item % parts) * kThreads * kUnroll + threadIdx.x;
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (begin + i * kThreads < words) values[i] = from[begin + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (begin + i * kThreads < words) to[begin + i * kThreads] = values[i];
    }
  }
}

}  // namespace

void copy_pieces(const CopyPiece* pieces, int count, size_t largest, cudaStream_t stream) {
  if (count == 0 || largest == 0) return;
  const auto parts = static_cast<int>((largest + kBlockBytes - 1) / kBlockBytes);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(int64_t{count} * parts, kMostBlocks));
  launch(copy_pieces_kernel, dim3(blocks), dim3(kThreads), 0, stream, pieces, count, parts);
}

}  // namespace spillway::cuda
