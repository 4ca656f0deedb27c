// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_ceilings.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cuda/cuda_error.h"
#include "cuda/linear/linear_library.h"

namespace spillway::bench {
namespace {

// Every thread has eight 16-byte loads in flight. The sum is written only in a case that never
// occurs, so that the loads are not optimized away.
__global__ void __launch_bounds__(256) read_kernel(const uint4* data, size_t count, uint32_t* out) {
  constexpr int kUnroll = 8;
  uint32_t sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint4* from = data + i + u * stride;
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w)
                   : "l"(from));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x9e3779b9u) *out = sum;
}

template <class T>
__global__ void fill_kernel(T* data, size_t count, uint32_t seed, float deviation) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    // A sum of four uniform numbers is close enough to a normal one.
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    h ^= h >> 31;
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>((h >> (16 * j)) & 0xffff) / 65536.f;
    data[i] = static_cast<T>((sum - 2) * 1.7320508f * deviation);
  }
}

class Timer {
 public:
  Timer() {
    SPW_CUDA_CHECK(cudaEventCreate(&begin_));
    SPW_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  template <class F>
  double seconds(const F& work) {
    SPW_CUDA_CHECK(cudaEventRecord(begin_));
    work();
    SPW_CUDA_CHECK(cudaEventRecord(end_));
    SPW_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    SPW_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

double hbm_read_bytes_per_s(size_t bytes) {
  if (bytes == 0) {
    size_t free = 0, total = 0;
    SPW_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    bytes = std::min(size_t{2} << 30, free / 2);
  }
  bytes = bytes / 4096 * 4096;
  void* data = nullptr;
  SPW_CUDA_CHECK(cudaMalloc(&data, bytes));
  SPW_CUDA_CHECK(cudaMemset(data, 1, bytes));
  const cuda::GpuShape gpu = cuda::current_gpu();
  Timer timer;
  double best = 0;
  for (int blocks_per_sm : {2, 4, 8, 16}) {
    const unsigned blocks = static_cast<unsigned>(gpu.sms * blocks_per_sm);
    for (int i = 0; i < 6; ++i) {
      const double s = timer.seconds([&] {
        read_kernel<<<blocks, 256>>>(static_cast<const uint4*>(data), bytes / 16,
                                     static_cast<uint32_t*>(data));
      });
      // The bytes that do not fill a last round are not read and not counted.
      const size_t round = size_t{blocks} * 256 * 16 * 8;
      best = std::max(best, static_cast<double>(bytes / round * round) / s);
    }
  }
  SPW_CUDA_CHECK(cudaGetLastError());
  SPW_CUDA_CHECK(cudaFree(data));
  return best;
}

void fill_random16(void* data, size_t count, bool bf16, uint32_t seed, float deviation,
                   cudaStream_t stream) {
  if (bf16) {
    fill_kernel<<<2048, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(data), count, seed,
                                          deviation);
  } else {
    fill_kernel<<<2048, 256, 0, stream>>>(static_cast<__half*>(data), count, seed, deviation);
  }
  SPW_CUDA_CHECK(cudaGetLastError());
}

double bf16_gemm_flop_per_s() {
  const auto library = cuda::CublasLt::try_load();
  if (library == nullptr) return 0;
  constexpr int64_t kSize = 8192;
  std::byte *w = nullptr, *x = nullptr, *out = nullptr, *workspace = nullptr;
  const size_t bytes = kSize * kSize * 2;
  for (std::byte** p : {&w, &x, &out}) SPW_CUDA_CHECK(cudaMalloc(p, bytes));
  SPW_CUDA_CHECK(cudaMalloc(&workspace, cuda::kLibraryWorkspaceBytes));
  fill_random16(w, kSize * kSize, true, 1, 1, nullptr);
  fill_random16(x, kSize * kSize, true, 2, 1, nullptr);
  cuda::LibraryShape shape;
  shape.n = shape.k = shape.tokens = shape.x_stride = shape.out_stride = kSize;
  shape.dtype = shape.out_type = DType::kBF16;
  shape.alignment = 256;
  shape.workspace_bytes = cuda::kLibraryWorkspaceBytes;
  Timer timer;
  double best = 0;
  for (int choice = 0; choice < library->choices(shape); ++choice) {
    library->choose(shape, choice);
    for (int i = 0; i < 4; ++i) {
      const double s =
          timer.seconds([&] { library->matmul(shape, w, x, nullptr, out, workspace, nullptr); });
      best = std::max(best, 2.0 * kSize * kSize * kSize / s);
    }
  }
  for (std::byte* p : {w, x, out, workspace}) SPW_CUDA_CHECK(cudaFree(p));
  return best;
}

}  // namespace spillway::bench
