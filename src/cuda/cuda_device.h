// SPDX-License-Identifier: Apache-2.0
// Represents one NVIDIA GPU: its memory under a budget, its compute stream, and copies to and from
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>

#include "base/thread_pool.h"
#include "cuda/cuda.h"
#include "cuda/cuda_handles.h"
#include "cuda/cuda_ops.h"
#include "cuda/cuda_stream.h"
#include "device/device.h"

namespace spillway::cuda {

// Owns the compute stream and the staging memory of copies. It counts the memory that it allocates
// and never exceeds the budget. It is used from one thread at a time. It throws kOutOfMemory with a
// list of what uses the budget, and kDevice for errors that CUDA reports.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaDeviceOptions& options);
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  Buffer allocate(size_t bytes, MemoryTag tag) override;
  Usage usage() const override { return usage_; }
  void reset_peaks() override { usage_.reset_peaks(); }
  // Quantized types that the tensor core kernels can read are packed in the same layout as on the
  // host.
  WeightLayout preferred_layout(DType type, int64_t rows, int64_t cols) const override;
  DType activation_type(DType weights) const override;

  bool host_visible() const override { return false; }
  void copy_to_device(std::byte* to, const std::byte* host, size_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* from, size_t bytes) override;

  Ops& ops() override { return *ops_; }
  PartitionedAttention& partitioned_attention() override { return *ops_; }
  void synchronize() override;

  void enter_thread() override { SPW_CUDA_CHECK(cudaSetDevice(index_)); }
  DeviceStream& compute() override { return *compute_; }
  std::unique_ptr<DeviceStream> make_stream() override;
  std::unique_ptr<DeviceEvent> make_event(bool timed = false) override;
  std::unique_ptr<HostSignal> make_signal() override;
  bool try_pin(std::byte* host, size_t bytes) override;
  void unpin(std::byte* host) noexcept override;
  bool reads_pinned_memory() const override { return reads_pinned_memory_; }

  cudaStream_t stream() const { return stream_.get(); }
  // Must be called between steps; recorded steps are recorded again afterwards.
  void set_techniques(const CudaTechniques& techniques) { ops_->set_techniques(techniques); }

 private:
  void release(std::byte* data, size_t bytes, MemoryTag tag) noexcept override;

  int index_;
  DeviceInfo info_;
  uint64_t budget_;
  Usage usage_;
  uint64_t allocated_ = 0;
  bool reads_pinned_memory_ = false;
  Stream stream_;
  std::unique_ptr<CudaStream> compute_;  // a view of `stream_`
  // Pageable memory crosses the bus at a tenth of its speed. With two pinned buffers, one of which
  // is filled while the other is copied, it crosses at nearly full speed.
  static constexpr size_t kStagingBytes = size_t{16} << 20;
  ThreadPool copiers_;
  std::array<PinnedMemory, 2> staging_;
  std::array<Event, 2> staged_;
  std::unique_ptr<CudaOps> ops_;  // last member: its memory is freed through release()
};

}  // namespace spillway::cuda
