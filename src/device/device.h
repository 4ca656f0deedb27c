// SPDX-License-Identifier: Apache-2.0
// The seam between the engine and the hardware: memory and ops of one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_usage.h"
#include "device/attention_parts.h"
#include "device/buffer.h"
#include "device/ops.h"
#include "device/stream.h"

namespace spillway {

struct DeviceInfo {
  std::string name;      // "cpu", "cuda:0"
  std::string hardware;  // "Neoverse-V1", "NVIDIA H200"
  std::string features;  // instruction sets or compute capability, for people
  int64_t memory_bytes = 0;
  int threads = 1;               // workers of a CPU, multiprocessors of a GPU
  uint64_t allocation_unit = 1;  // what allocations are rounded up to
  bool unified_memory = false;   // it computes in the host's memory: nothing has to move
};

// Used from one thread at a time, but for streams of their own. Implementations: cpu/cpu_device.h,
// cuda/cuda_device.h, cpu/emulated_accelerator.h.
class Device : public BufferSource {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // Memory for `bytes` > 0 bytes, aligned to 64 or more; its contents are undefined. Throws
  // kOutOfMemory with what was asked for and what there is.
  virtual Buffer allocate(size_t bytes, MemoryTag tag) = 0;
  using Usage = MemoryUsage;
  virtual Usage usage() const = 0;
  // For who measures one run after the other.
  virtual void reset_peaks() {}

  // How ops like a matrix [rows, cols] of `type` that linear() multiplies with: whoever loads
  // weights packs them so. Every op takes kRows too.
  virtual WeightLayout preferred_layout(DType /*type*/, int64_t /*rows*/, int64_t /*cols*/) const {
    return WeightLayout::kRows;
  }

  // What ops hand each other between matrices of `weights` (the residual stream and logits are
  // F32).
  virtual DType activation_type(DType /*weights*/) const { return DType::kF32; }

  // Whether the host can read and write what allocate() returns. If not, the next two move bytes;
  // both wait for what ops have queued, and are done on return. `host` may be any host memory.
  virtual bool host_visible() const { return true; }
  virtual void copy_to_device(std::byte* to, const std::byte* host, size_t bytes);
  virtual void copy_to_host(std::byte* host, const std::byte* from, size_t bytes);

  // The compute queue: ops run in the order they are called. On a CPU they are done on return.
  virtual Ops& ops() = 0;
  // In the same queue. Throws kUnsupported where sequences cannot be attended to in parts.
  virtual AttentionParts& attention_parts();
  // Waits until everything queued is done.
  virtual void synchronize() = 0;
  // Of a host whose ops are part of another device's steps: while such a step runs, the next op
  // comes soon after the last.
  virtual void expect_ops(bool /*soon*/) {}

  // A thread of one's own calls this before it fills a stream.
  virtual void enter_thread() {}

  // The queue that ops() fills, and others beside it.
  virtual DeviceStream& compute() { return host_stream_; }
  virtual std::unique_ptr<DeviceStream> make_stream() { return std::make_unique<HostStream>(); }
  virtual std::unique_ptr<DeviceEvent> make_event(bool /*timed*/ = false) {
    return std::make_unique<HostEvent>();
  }
  virtual std::unique_ptr<HostSignal> make_signal() { return std::make_unique<HostSignal>(); }
  // Tells the device of host memory that it will copy from and to, so that copies run at the bus's
  // speed and beside everything else; false where the system refuses to keep it in place. The pages
  // should have been touched before: that is faster. unpin() before it is freed.
  virtual bool try_pin(std::byte* /*host*/, size_t /*bytes*/) { return true; }
  virtual void unpin(std::byte* /*host*/) noexcept {}
  // Whether ops can read what try_pin() took, over the bus, where the host has it.
  virtual bool reads_pinned_memory() const { return true; }

 private:
  HostStream host_stream_;
};

}  // namespace spillway
