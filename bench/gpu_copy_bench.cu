// SPDX-License-Identifier: Apache-2.0
// gpu_copy_bench: copies pieces of pinned host memory to the GPU and back in three ways: by a
// kernel that reads them, as one batch for the copy engine, and with one call each. Prints GB/s and
// what a call costs the calling thread, also beside a kernel that reads memory as fast as it can:
// its slowdown is what copies cost a step.
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cuda/copy_pieces.h"
#include "cuda/cuda_error.h"

namespace {

using nlohmann::json;
using spillway::CopyPiece;
using Clock = std::chrono::steady_clock;

constexpr size_t kTotal = size_t{256} << 20;  // bytes of a measurement

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// Reads memory as fast as the GPU can; launched with two full thread blocks per multiprocessor.
__global__ void __launch_bounds__(1024) read_memory(const uint4* data, size_t words, uint4* out) {
  uint4 sum = {};
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint4 x = data[i];
    sum.x ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum.x == 0x12345) *out = sum;
}

struct Ways {
  std::vector<CopyPiece> pieces;
  CopyPiece* list = nullptr;  // pinned
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> sizes;

  void run(const std::string& way, cudaStream_t stream) {
    if (way == "kernel") {
      spillway::cuda::copy_pieces(list, static_cast<int>(pieces.size()), pieces[0].bytes, stream);
    } else if (way == "batch") {
      cudaMemcpyAttributes attributes = {};
      attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
      size_t first = 0;
      SPW_CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(),
                                          &attributes, &first, 1, stream));
    } else {
      for (const CopyPiece& piece : pieces)
        SPW_CUDA_CHECK(
            cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDefault, stream));
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "";
  std::byte *host = nullptr, *device = nullptr;
  uint4* read = nullptr;
  const size_t read_bytes = size_t{8} << 30;
  SPW_CUDA_CHECK(cudaMallocHost(&host, 2 * kTotal));
  std::memset(host, 1, 2 * kTotal);
  SPW_CUDA_CHECK(cudaMalloc(&device, 2 * kTotal));
  SPW_CUDA_CHECK(cudaMalloc(&read, read_bytes));
  SPW_CUDA_CHECK(cudaMemset(read, 0, read_bytes));
  cudaStream_t copies, compute;
  SPW_CUDA_CHECK(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  SPW_CUDA_CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  int processors = 0;
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  cudaEvent_t begun, ended;
  SPW_CUDA_CHECK(cudaEventCreate(&begun));
  SPW_CUDA_CHECK(cudaEventCreate(&ended));
  const auto start_reading = [&] {
    SPW_CUDA_CHECK(cudaEventRecord(begun, compute));
    read_memory<<<2 * processors, 1024, 0, compute>>>(read, read_bytes / sizeof(uint4), read);
    SPW_CUDA_CHECK(cudaEventRecord(ended, compute));
  };
  const auto read_s = [&] {
    SPW_CUDA_CHECK(cudaEventSynchronize(ended));
    float ms = 0;
    SPW_CUDA_CHECK(cudaEventElapsedTime(&ms, begun, ended));
    return ms / 1e3;
  };
  start_reading();
  read_s();
  start_reading();
  const double alone_s = read_s();
  json cases = json::array();
  Ways ways;
  SPW_CUDA_CHECK(cudaMallocHost(&ways.list, (kTotal / 4096) * sizeof(CopyPiece)));
  for (const bool in : {true, false}) {
    for (const size_t bytes : {8 << 10, 32 << 10, 64 << 10, 160 << 10, 224 << 10, 1 << 20}) {
      ways.pieces.clear();
      ways.to.clear();
      ways.from.clear();
      ways.sizes.clear();
      // Only every other piece is used on both sides, so that no two are adjacent.
      for (size_t at = 0; at + bytes <= 2 * kTotal; at += 2 * bytes) {
        std::byte *const to = in ? device + at : host + at, *const from =
                                                                in ? host + at : device + at;
        ways.pieces.push_back({to, from, bytes});
        ways.to.push_back(to);
        ways.from.push_back(from);
        ways.sizes.push_back(bytes);
      }
      std::memcpy(ways.list, ways.pieces.data(), ways.pieces.size() * sizeof(CopyPiece));
      for (const std::string way : {"kernel", "batch", "calls"}) {
        double best_s = 1e9, call_s = 1e9;
        for (int i = 0; i < 3; ++i) {
          SPW_CUDA_CHECK(cudaDeviceSynchronize());
          const auto from = Clock::now();
          ways.run(way, copies);
          call_s = std::min(call_s, seconds_since(from));
          SPW_CUDA_CHECK(cudaStreamSynchronize(copies));
          best_s = std::min(best_s, seconds_since(from));
        }
        // Copies are queued so that they last longer than the reading.
        ways.run(way, copies);
        start_reading();
        for (int i = 0; i < 2; ++i) ways.run(way, copies);
        const double beside_s = read_s();
        SPW_CUDA_CHECK(cudaDeviceSynchronize());
        const double moved = static_cast<double>(bytes * ways.pieces.size());
        json one = {
            {"to_device", in},
            {"bytes", bytes},
            {"way", way},
            {"gb_per_s", moved / best_s / 1e9},
            {"us_per_piece_of_the_caller", call_s / static_cast<double>(ways.pieces.size()) * 1e6},
            {"reading_beside_it_takes", beside_s / alone_s}};
        fmt::print("{}\n", one.dump());
        cases.push_back(std::move(one));
      }
    }
  }
  if (!path.empty())
    std::ofstream(path)
        << json{{"read_gb_per_s", read_bytes / alone_s / 1e9}, {"cases", cases}}.dump(1) << "\n";
  return 0;
}
