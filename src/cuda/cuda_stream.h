// SPDX-License-Identifier: Apache-2.0
// A CUDA stream as a DeviceStream, with its events and signals.
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
  bool is_reached() const override;
  double seconds_after(const DeviceEvent& earlier) const override;
  cudaEvent_t get() const { return event_.get(); }

 private:
  Event event_;
};

// A number in pinned memory that the GPU reads and writes without the host.
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

// Owns its CUDA stream or refers to one that another object owns. Lists of small copies go to the
// GPU through pinned memory that this object owns.
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
  // Keeps the first exception of host work; shared, as it must outlive the stream's pending work.
  struct Failure {
    std::mutex mutex;
    std::exception_ptr first;
  };
  void copy(std::span<const CopyPiece> pieces);
  // Hands all pieces to the copy engine in one call. Returns false where the driver does not
  // support this.
  [[nodiscard]] bool try_copy_batch(std::span<const CopyPiece> pieces);
  void copy_small(std::span<const CopyPiece> pieces);

  Stream owned_;
  cudaStream_t stream_;
  Event idle_;  // the event of the last synchronize()
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  // A ring of pinned copy lists, which copy_pieces() reads in place.
  static constexpr size_t kLists = 8;
  struct List {
    PinnedMemory memory;
    size_t capacity = 0;
    Event read;
  };
  bool takes_batches_ = true;  // false once the driver has refused a batch
  std::array<List, kLists> lists_;
  size_t next_list_ = 0;
};

}  // namespace spillway::cuda
