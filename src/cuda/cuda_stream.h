// SPDX-License-Identifier: Apache-2.0
// A CUDA stream behind the seam's queue.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/cuda_handles.h"
#include "device/stream.h"

namespace spillway::cuda {

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(bool timed);
  void synchronize() override { SPW_CUDA_CHECK(cudaEventSynchronize(event_.get())); }
  double seconds_after(const DeviceEvent& earlier) const override;
  cudaEvent_t get() const { return event_.get(); }

 private:
  Event event_;
};

// In pinned memory, which the GPU writes and looks at by itself.
class CudaSignal final : public HostSignal {
 public:
  CudaSignal();
  uint32_t load() const override {
    return std::atomic_ref(*value()).load(std::memory_order_acquire);
  }
  void store(uint32_t value) override {
    std::atomic_ref(*this->value()).store(value, std::memory_order_release);
  }
  uint32_t* value() const { return static_cast<uint32_t*>(memory_.get()); }

 private:
  PinnedMemory memory_;
};

// Owns the stream, or stands for one that another owns. Lists of small pieces go through pinned
// memory of its own.
class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(Stream stream);
  explicit CudaStream(cudaStream_t stream);
  ~CudaStream() override;

  void copy_to_device(std::span<const CopyPiece> pieces) override { copy(pieces); }
  void copy_to_host(std::span<const CopyPiece> pieces) override { copy(pieces); }
  void run_on_host(std::function<void()> work) override;
  void store(HostSignal& signal, uint32_t value) override;
  void wait(const HostSignal& signal, uint32_t value) override;
  void record(DeviceEvent& event) override;
  void wait(const DeviceEvent& event) override;
  void synchronize() override;

 private:
  struct HostWork;
  // What host work threw first; outlives the stream's pending work.
  struct Failure {
    std::mutex mutex;
    std::exception_ptr first;
  };
  void copy(std::span<const CopyPiece> pieces);
  // All of them to the copy engine at once. False where the driver does not know how.
  [[nodiscard]] bool try_copy_batch(std::span<const CopyPiece> pieces);
  void copy_small(std::span<const CopyPiece> pieces);

  Stream owned_;
  cudaStream_t stream_;
  Event idle_;  // the last that synchronize() waited for
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  // Lists on their way, in turn: pinned, and read by the kernel where they are.
  static constexpr size_t kLists = 8;
  struct List {
    PinnedMemory memory;
    size_t capacity = 0;
    Event read;
  };
  bool takes_batches_ = true;  // as far as anybody knows
  std::array<List, kLists> lists_;
  size_t next_list_ = 0;
};

}  // namespace spillway::cuda
