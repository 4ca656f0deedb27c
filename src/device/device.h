// SPDX-License-Identifier: Apache-2.0
// The seam between the engine and the hardware: memory and ops of one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/ops.h"

namespace spillway {

struct DeviceInfo {
  std::string name;      // "cpu", "cuda:0"
  std::string hardware;  // "Neoverse-V1", "NVIDIA H200"
  std::string features;  // instruction sets or compute capability, for people
  int64_t memory_bytes = 0;
  int threads = 1;  // workers of a CPU, multiprocessors of a GPU
};

// Used from one thread at a time. Implementations: cpu/cpu_device.h, later cuda/.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // Memory for `bytes` > 0 bytes, aligned to 64 or more; its contents are undefined. Throws
  // kOutOfMemory with what was asked for and what there is.
  virtual Buffer allocate(size_t bytes, MemoryTag tag) = 0;
  // Bytes allocated now and at most so far, by tag.
  struct Usage {
    uint64_t bytes[kMemoryTagCount] = {};
    uint64_t peak_bytes = 0;
  };
  virtual Usage usage() const = 0;

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
  // Waits until everything queued is done.
  virtual void synchronize() = 0;

 private:
  friend class Buffer;
  virtual void release(std::byte* data, size_t bytes, MemoryTag tag) noexcept = 0;
};

}  // namespace spillway
