// SPDX-License-Identifier: Apache-2.0
// The interface between the engine and the hardware: memory and ops of one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_usage.h"
#include "device/buffer.h"
#include "device/ops.h"
#include "device/partitioned_attention.h"
#include "device/stream.h"

namespace spillway {

struct DeviceInfo {
  std::string name;      // "cpu", "cuda:0"
  std::string hardware;  // "Neoverse-V1", "NVIDIA H200"
  std::string features;  // instruction sets or compute capability, for people
  int64_t memory_bytes = 0;
  int threads = 1;               // workers of a CPU, multiprocessors of a GPU
  uint64_t allocation_unit = 1;  // allocations are rounded up to it
  bool unified_memory = false;   // it computes in host memory, so that nothing has to move
};

// One device. Used from one thread at a time, except that other threads may fill streams of their
// own. Implementations: cpu/cpu_device.h, cuda/cuda_device.h, cpu/emulated_accelerator.h.
class Device : public BufferSource {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // Allocates `bytes` > 0 bytes, aligned to 64 or more; the contents are undefined. Throws
  // kOutOfMemory that names the size requested and the size available.
  virtual Buffer allocate(size_t bytes, MemoryTag tag) = 0;
  using Usage = MemoryUsage;
  virtual Usage usage() const = 0;
  // Resets the peaks of usage(), for measuring several runs one after the other.
  virtual void reset_peaks() {}

  // Returns the layout that ops prefer for a matrix [rows, cols] of `type` that linear() multiplies
  // with; code that loads weights packs them so. Every op takes kRows too.
  virtual WeightLayout preferred_layout(DType /*type*/, int64_t /*rows*/, int64_t /*cols*/) const {
    return WeightLayout::kRows;
  }

  // Returns the type of activations that ops pass to each other between matrices of type `weights`
  // (the residual stream and logits are F32).
  virtual DType activation_type(DType /*weights*/) const { return DType::kF32; }

  // Returns whether the host can read and write what allocate() returns. If not, the next two
  // functions move bytes; both wait for all queued ops and are done on return. `host` may be any
  // host memory.
  virtual bool host_visible() const { return true; }
  virtual void copy_to_device(std::byte* to, const std::byte* host, size_t bytes);
  virtual void copy_to_host(std::byte* host, const std::byte* from, size_t bytes);

  // Returns the compute queue: ops run in the order in which they are queued. On a CPU an op is
  // done when its call returns.
  virtual Ops& ops() = 0;
  // Returns attention over partitions, in the same queue. Throws kUnsupported if the device does
  // not have it.
  virtual PartitionedAttention& partitioned_attention();
  // Waits until everything queued is done.
  virtual void synchronize() = 0;
  // Sets whether a step of another device is running in which this one, the host, computes ops too:
  // then the next op comes soon after the last.
  virtual void expect_ops(bool /*soon*/) {}

  // A thread other than the engine's calls this before it fills a stream.
  virtual void enter_thread() {}

  // Return the queue that ops() fills, and make further queues, events and signals.
  virtual DeviceStream& compute() { return host_stream_; }
  virtual std::unique_ptr<DeviceStream> make_stream() { return std::make_unique<HostStream>(); }
  virtual std::unique_ptr<DeviceEvent> make_event(bool /*timed*/ = false) {
    return std::make_unique<HostEvent>();
  }
  virtual std::unique_ptr<HostSignal> make_signal() { return std::make_unique<HostSignal>(); }
  // Pins host memory that the device will copy from and to, so that copies run at the bus's full
  // speed and in parallel with everything else; false if the system refuses to pin it. It is faster
  // if the pages were touched before. Call unpin() before the memory is freed.
  virtual bool try_pin(std::byte* /*host*/, size_t /*bytes*/) { return true; }
  virtual void unpin(std::byte* /*host*/) noexcept {}
  // Returns whether ops can read pinned host memory in place, over the bus.
  virtual bool reads_pinned_memory() const { return true; }

 private:
  HostStream host_stream_;
};

}  // namespace spillway
