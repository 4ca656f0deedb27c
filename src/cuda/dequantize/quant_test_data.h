// SPDX-License-Identifier: Apache-2.0
// Test data for kernels over stored weights: matrices of any type on the GPU together with their
// exact values, and arrays with guards around them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/cuda_error.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

inline bool have_gpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) (void)cudaGetLastError();
  return found;
}

// Bytes on the GPU between two guards of 256 bytes, poisoned with 0xff (NaN in every float type).
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : bytes_(bytes) {
    SPW_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&all_), bytes + 2 * kGuard));
    SPW_CUDA_CHECK(cudaMemset(all_, 0xff, bytes + 2 * kGuard));
  }
  GuardedBytes(const void* from, size_t bytes) : GuardedBytes(bytes) { write(from, bytes); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  GuardedBytes(GuardedBytes&& other) noexcept : bytes_(other.bytes_), all_(other.all_) {
    other.all_ = nullptr;
  }
  ~GuardedBytes() { cudaFree(all_); }

  std::byte* data() const { return all_ + kGuard; }
  void write(const void* from, size_t bytes) {
    SPW_CUDA_CHECK(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice));
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> host(bytes_);
    SPW_CUDA_CHECK(cudaMemcpy(host.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return host;
  }
  bool guards_are_whole() const {
    std::vector<std::byte> host(bytes_ + 2 * kGuard);
    SPW_CUDA_CHECK(cudaMemcpy(host.data(), all_, host.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kGuard; ++i) {
      if (host[i] != std::byte{0xff} || host[host.size() - 1 - i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  std::byte* all_ = nullptr;
};

// A random matrix [rows, cols] in the given layout on the GPU, with its values on the host.
struct TestMatrix {
  std::vector<float> values;
  GuardedBytes stored;
  WeightView view;

  static TestMatrix make(DType type, int64_t rows, int64_t cols, WeightLayout layout,
                         uint64_t seed) {
    const int64_t bytes = row_bytes(type, cols);
    std::vector<std::byte> host(static_cast<size_t>(rows * bytes));
    fill_random(type, host.data(), rows * cols, seed, 0.05F);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    dequantize_reference(type, host.data(), values.data(), rows * cols);
    if (layout == WeightLayout::kGroups16) {
      pack_groups(type, host.data(), host.data(), rows / kGroupRows, cols);
    }
    GuardedBytes stored(host.data(), host.size());
    const WeightView view{type, rows, cols, stored.data(), layout};
    return {std::move(values), std::move(stored), view};
  }
};

inline std::vector<float> random_values(size_t count, uint64_t seed, float deviation = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Converts values to the stored form of a plain type, and back.
inline std::vector<std::byte> stored_as(DType type, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> out(static_cast<size_t>(row_bytes(type, count)));
  quantize_reference(type, values.data(), out.data(), count);
  return out;
}
inline std::vector<float> values_of(DType type, const std::vector<std::byte>& stored) {
  std::vector<float> out(stored.size() / static_cast<size_t>(dtype_info(type).block_bytes));
  dequantize_reference(type, stored.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

// Returns the sum of squared differences over the sum of squares; infinite if something is NaN or
// infinite.
inline double nmse(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return std::isfinite(error) ? error / std::max(power, 1e-300) : HUGE_VAL;
}

}  // namespace spillway::cuda
