// SPDX-License-Identifier: Apache-2.0
// The host as a device: its memory and its cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "device/device.h"

namespace spillway {

struct CpuDeviceOptions {
  int threads = 0;             // 0 = as many as this process may use
  std::vector<int> cpus = {};  // one thread runs on each; if empty, see place_threads()
  uint64_t memory_bytes = 0;   // --host-memory, the limit of all allocations; 0 = none
};

// The host's memory and workers. Counts the memory it hands out. Used from one thread at a time.
// Throws kInvalidArgument for an invalid thread count; allocate() throws kOutOfMemory for more than
// the machine has available now (memory that the kernel would only promise is refused).
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options = {});

  const DeviceInfo& info() const override { return info_; }
  Buffer allocate(size_t bytes, MemoryTag tag) override;
  Usage usage() const override { return usage_; }
  void reset_peaks() override { usage_.reset_peaks(); }
  // Returns the packed layout if this processor has integer kernels for the type.
  WeightLayout preferred_layout(DType type, int64_t rows, int64_t cols) const override;
  Ops& ops() override { return ops_; }
  PartitionedAttention& partitioned_attention() override { return ops_; }
  void synchronize() override {}  // ops are done when they return
  void expect_ops(bool soon) override { pool_.expect_jobs(soon); }

  // Workers for other host work; not to be used while an op runs.
  ThreadPool& pool() { return pool_; }

 private:
  // Returns the memory that is available and not promised to buffers whose pages were not touched
  // yet.
  int64_t unclaimed_bytes() const;
  void release(std::byte* data, size_t bytes, MemoryTag tag) noexcept override;

  ThreadPool pool_;
  uint64_t budget_;  // 0 = none
  DeviceInfo info_;
  Usage usage_;
  CpuOps ops_;  // last member: its workspace is given back through release()
};

}  // namespace spillway
