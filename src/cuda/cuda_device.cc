// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"
#include "tensor/packed_layout.h"

namespace spillway {
namespace cuda {
namespace {

// A single thread fills staging memory at only a fifth of the bus's speed.
constexpr int kCopyThreads = 8;
constexpr int64_t kCopyBytes = 256 << 10;

// cudaMalloc rounds sizes up to a multiple of this.
constexpr uint64_t kAllocationUnit = 512;

uint64_t charged_bytes(uint64_t bytes) {
  return (bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
}

DeviceInfo describe(int index) {
  cudaDeviceProp properties = {};
  SPW_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceInfo info;
  info.name = fmt::format("cuda:{}", index);
  info.hardware = properties.name;
  info.features = fmt::format("sm_{}{}", properties.major, properties.minor);
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.threads = properties.multiProcessorCount;
  info.allocation_unit = kAllocationUnit;
  // Integrated GPUs have no memory of their own. Grace Hopper and similar GPUs read host memory
  // through the host's page tables but also have their own memory, so they count as two tiers with
  // a link.
  info.unified_memory = properties.integrated != 0;
  return info;
}

}  // namespace

CudaDevice::CudaDevice(const CudaDeviceOptions& options)
    : index_(options.index), copiers_(std::min(available_threads(), kCopyThreads)) {
  SPW_CUDA_CHECK(cudaSetDevice(index_));
  info_ = describe(index_);
  size_t free_bytes = 0, total_bytes = 0;
  SPW_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  budget_ = options.memory_bytes == 0 ? free_bytes : options.memory_bytes;
  SPW_CHECK(budget_ <= total_bytes, kInvalidArgument, "--gpu-memory is {}, but {} ({}) has {}",
            format_bytes(budget_), info_.name, info_.hardware, format_bytes(total_bytes));
  if (budget_ > free_bytes) {
    log_warning("other processes use memory of {}: of {}, {} were requested and {} are free",
                info_.name, format_bytes(total_bytes), format_bytes(budget_),
                format_bytes(free_bytes));
  }
  info_.memory_bytes = static_cast<int64_t>(budget_);
  int same_addresses = 0;
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&same_addresses,
                                        cudaDevAttrCanUseHostPointerForRegisteredMem, index_));
  reads_pinned_memory_ = same_addresses != 0;
  stream_ = cuda::make_stream();
  compute_ = std::make_unique<CudaStream>(stream_.get());
  ops_ = std::make_unique<CudaOps>(*this, stream_.get());
  ops_->set_techniques(options.techniques);
}

CudaDevice::~CudaDevice() = default;

Buffer CudaDevice::allocate(size_t bytes, MemoryTag tag) {
  SPW_ASSERT(bytes > 0);
  const uint64_t charged = charged_bytes(bytes);
  SPW_CHECK(charged <= budget_ - allocated_, kOutOfMemory,
            "{} need {}, but of {}'s budget of {} only {} are left (it holds: {}); raise "
            "--gpu-memory or shorten the context",
            memory_tag_name(tag), format_bytes(bytes), info_.name, format_bytes(budget_),
            format_bytes(budget_ - allocated_), usage_.describe());
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    SPW_CHECK(error != cudaErrorMemoryAllocation, kOutOfMemory,
              "{} need {}, which {} does not have free (others use its memory too); it holds: {}",
              memory_tag_name(tag), format_bytes(bytes), info_.name, usage_.describe());
    fail_cuda(error, "cudaMalloc");
  }
  allocated_ += charged;
  usage_.add(tag, charged);
  return Buffer(*this, static_cast<std::byte*>(data), bytes, tag);
}

void CudaDevice::release(std::byte* data, size_t bytes, MemoryTag tag) noexcept {
  (void)cudaFree(data);  // waits for kernels that may still use the memory
  allocated_ -= charged_bytes(bytes);
  usage_.remove(tag, charged_bytes(bytes));
}

WeightLayout CudaDevice::preferred_layout(DType type, int64_t rows, int64_t /*cols*/) const {
  return can_pack(type) && rows >= kGroupRows ? WeightLayout::kGroups16 : WeightLayout::kRows;
}

DType CudaDevice::activation_type(DType weights) const {
  return weights == DType::kF32 || weights == DType::kBF16 ? weights : DType::kF16;
}

void CudaDevice::copy_to_device(std::byte* to, const std::byte* host, size_t bytes) {
  SPW_CUDA_CHECK(cudaSetDevice(index_));  // loaders call this from threads of their own
  for (size_t i = 0; i < staging_.size(); ++i) {
    if (staging_[i]) continue;
    staging_[i] = make_pinned(kStagingBytes);
    staged_[i] = cuda::make_event();
  }
  for (size_t done = 0, turn = 0; done < bytes; ++turn) {
    const size_t slot = turn % staging_.size();
    const size_t piece = std::min(bytes - done, kStagingBytes);
    SPW_CUDA_CHECK(cudaEventSynchronize(staged_[slot].get()));
    auto* const staged = static_cast<std::byte*>(staging_[slot].get());
    copiers_.parallel_for(
        static_cast<int64_t>(piece), kCopyBytes, [&](int64_t begin, int64_t end, int) {
          std::memcpy(staged + begin, host + done + begin, static_cast<size_t>(end - begin));
        });
    SPW_CUDA_CHECK(cudaMemcpyAsync(to + done, staging_[slot].get(), piece, cudaMemcpyHostToDevice,
                                   stream_.get()));
    SPW_CUDA_CHECK(cudaEventRecord(staged_[slot].get(), stream_.get()));
    done += piece;
  }
  synchronize();
}

void CudaDevice::copy_to_host(std::byte* host, const std::byte* from, size_t bytes) {
  SPW_CUDA_CHECK(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_.get()));
  synchronize();
}

void CudaDevice::synchronize() { SPW_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

std::unique_ptr<DeviceStream> CudaDevice::make_stream() {
  return std::make_unique<CudaStream>(cuda::make_stream());
}

std::unique_ptr<DeviceEvent> CudaDevice::make_event(bool timed) {
  return std::make_unique<CudaEvent>(timed);
}

std::unique_ptr<HostSignal> CudaDevice::make_signal() { return std::make_unique<CudaSignal>(); }

bool CudaDevice::try_pin(std::byte* host, size_t bytes) {
  SPW_CUDA_CHECK(cudaSetDevice(index_));
  const cudaError_t error =
      cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess;
}

void CudaDevice::unpin(std::byte* host) noexcept {
  if (cudaHostUnregister(host) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace cuda

CudaDevices list_cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return {.devices = {},
            .none_reason = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
                                   error == cudaSuccess
                               ? "no NVIDIA driver or GPU was found"
                               : cudaGetErrorString(error)};
  }
  CudaDevices found;
  for (int i = 0; i < count; ++i) found.devices.push_back(cuda::describe(i));
  return found;
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  const CudaDevices found = list_cuda_devices();
  SPW_CHECK(!found.devices.empty(), kInvalidArgument, "no device cuda:{}: {}; use --device cpu",
            options.index, found.none_reason);
  SPW_CHECK(options.index >= 0 && options.index < static_cast<int>(found.devices.size()),
            kInvalidArgument, "no device cuda:{}; this machine has cuda:0 to cuda:{}",
            options.index, found.devices.size() - 1);
  return std::make_unique<cuda::CudaDevice>(options);
}

}  // namespace spillway
