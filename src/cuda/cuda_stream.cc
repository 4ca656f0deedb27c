// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/copy_pieces.h"
#include "cuda/driver_functions.h"

namespace spillway::cuda {
namespace {

// Copies of this size and more run at the copy engine's full speed.
constexpr size_t kEngineBytes = size_t{1} << 20;
// Pieces of this size and more, given to the copy engine in one batch, reach 31 GB/s and more on an
// H200 and hardly slow down concurrent kernels; pieces of 8 KiB reach 4 GB/s
// (bench/gpu_copy_bench).
constexpr size_t kBatchBytes = size_t{32} << 10;

bool is_aligned(const CopyPiece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.to) | reinterpret_cast<uintptr_t>(piece.from) |
          piece.bytes) %
             16 ==
         0;
}

// Returns whether kernels can use this address: not if it is host memory that was not pinned, or
// that the GPU sees at another address.
bool kernels_reach(const void* address) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.devicePointer == address;
}

}  // namespace

CudaEvent::CudaEvent(bool timed) {
  cudaEvent_t event = nullptr;
  // A thread that waits for a timed event sleeps: it measures or paces copies, and its core may be
  // needed for the CPU's share of the work.
  SPW_CUDA_CHECK(
      cudaEventCreateWithFlags(&event, timed ? cudaEventBlockingSync : cudaEventDisableTiming));
  event_ = Event(event);
}

bool CudaEvent::is_reached() const {
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state != cudaSuccess) (void)cudaGetLastError();
  return state != cudaErrorNotReady;
}

double CudaEvent::seconds_after(const DeviceEvent& earlier) const {
  float ms = 0;
  SPW_CUDA_CHECK(
      cudaEventElapsedTime(&ms, static_cast<const CudaEvent&>(earlier).get(), event_.get()));
  return ms / 1000.0;
}

CudaSignal::CudaSignal() : memory_(make_pinned(sizeof(uint32_t))) { *value() = 0; }

struct CudaStream::HostWork {
  std::function<void()> work;
  std::shared_ptr<Failure> failure;
};

CudaStream::CudaStream(Stream stream) : owned_(std::move(stream)), stream_(owned_.get()) {}
CudaStream::CudaStream(cudaStream_t stream) : stream_(stream) {}

CudaStream::~CudaStream() {
  // Pending copies may still read the lists, and pending host work what its closures refer to.
  (void)cudaStreamSynchronize(stream_);
}

void CudaStream::copy(std::span<const CopyPiece> pieces) {
  size_t total = 0;
  bool aligned = true;
  for (const CopyPiece& piece : pieces) {
    total += piece.bytes;
    aligned = aligned && is_aligned(piece);
  }
  if (total == 0) return;
  // All pieces of a call lie in the same two buffers, so checking the first is enough.
  const size_t mean = total / pieces.size();
  if (pieces.size() > 1 && mean < kEngineBytes && kernels_reach(pieces.front().from) &&
      kernels_reach(pieces.front().to)) {
    if (mean >= kBatchBytes && try_copy_batch(pieces)) return;
    if (aligned) return copy_small(pieces);
  }
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    SPW_CUDA_CHECK(cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDefault, stream_));
  }
}

bool CudaStream::try_copy_batch([[maybe_unused]] std::span<const CopyPiece> pieces) {
#if CUDART_VERSION >= 13000
  if (!takes_batches_) return false;
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> sizes;
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    to.push_back(piece.to);
    from.push_back(piece.from);
    sizes.push_back(piece.bytes);
  }
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  const cudaError_t error = cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(),
                                                 &attributes, &first, 1, stream_);
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver)
    fail_cuda(error, "cudaMemcpyBatchAsync");
  (void)cudaGetLastError();
  takes_batches_ = false;  // the driver does not support it, and that will not change
#endif
  return false;
}

void CudaStream::copy_small(std::span<const CopyPiece> pieces) {
  List& list = lists_[next_list_];
  next_list_ = (next_list_ + 1) % kLists;
  // A thread that waits for this event sleeps: its core may be needed for a layer's attention on
  // the CPU.
  if (!list.read) list.read = make_blocking_event();
  SPW_CUDA_CHECK(cudaEventSynchronize(list.read.get()));
  if (list.capacity < pieces.size()) {
    list.memory = make_pinned(2 * pieces.size_bytes());
    list.capacity = 2 * pieces.size();
  }
  std::memcpy(list.memory.get(), pieces.data(), pieces.size_bytes());
  size_t largest = 0;
  for (const CopyPiece& piece : pieces) largest = std::max(largest, piece.bytes);
  copy_pieces(static_cast<const CopyPiece*>(list.memory.get()), static_cast<int>(pieces.size()),
              largest, stream_);
  SPW_CUDA_CHECK(cudaEventRecord(list.read.get(), stream_));
}

void CudaStream::run_on_host(std::function<void()> work) {
  auto* const item = new HostWork{std::move(work), failure_};
  const cudaError_t error = cudaLaunchHostFunc(
      stream_,
      [](void* pointer) {
        const std::unique_ptr<HostWork> mine(static_cast<HostWork*>(pointer));
        {
          // After a failure the remaining host work is skipped, as its input is not valid.
          const std::lock_guard lock(mine->failure->mutex);
          if (mine->failure->first) return;
        }
        try {
          mine->work();
        } catch (...) {
          const std::lock_guard lock(mine->failure->mutex);
          if (!mine->failure->first) mine->failure->first = std::current_exception();
        }
      },
      item);
  if (error != cudaSuccess) {
    delete item;
    fail_cuda(error, "cudaLaunchHostFunc");
  }
}

void CudaStream::store(HostSignal& signal, uint32_t value) {
  stream_write(stream_, static_cast<CudaSignal&>(signal).value(), value);
}

void CudaStream::wait(const HostSignal& signal, uint32_t value) {
  stream_wait(stream_, static_cast<const CudaSignal&>(signal).value(), value);
}

void CudaStream::record(DeviceEvent& event) {
  SPW_CUDA_CHECK(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_));
}

void CudaStream::wait(const DeviceEvent& event) {
  SPW_CUDA_CHECK(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).get(), 0));
}

// The thread sleeps while it waits: a spinning thread takes a core from the CPU's share of the
// work.
void CudaStream::synchronize() {
  if (!idle_) idle_ = make_blocking_event();
  SPW_CUDA_CHECK(cudaEventRecord(idle_.get(), stream_));
  SPW_CUDA_CHECK(cudaEventSynchronize(idle_.get()));
  const std::lock_guard lock(failure_->mutex);
  if (failure_->first) std::rethrow_exception(std::exchange(failure_->first, nullptr));
}

}  // namespace spillway::cuda
