// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/fault_points.h"
#include "base/host_memory.h"
#include "base/numa.h"
#include "cpu/linear/linear_int8.h"
#include "cpu/processor.h"

namespace spillway {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;  // larger buffers share no page, so that each may be pinned alone
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeFrom = size_t{4} << 20;   // from here on huge pages pay
constexpr size_t kCheckFrom = size_t{1} << 20;  // from here on the kernel is asked how much is left

[[noreturn]] void fail_memory(size_t bytes, int64_t available) {
  fail(ErrorCode::kOutOfMemory,
       "cannot allocate {} of host memory: {} of {} are available; use a smaller model, context or "
       "batch",
       format_bytes(bytes), format_bytes(static_cast<uint64_t>(available)),
       format_bytes(static_cast<uint64_t>(host_memory().total_bytes)));
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : pool_(place_threads(options.threads, options.cpus)),
      budget_(options.memory_bytes),
      ops_(*this, pool_) {
  info_ = {.name = "cpu",
           .hardware = processor_name(),
           .features = processor_features(),
           .memory_bytes = budget_ == 0 ? host_memory().total_bytes : static_cast<int64_t>(budget_),
           .threads = pool_.threads()};
}

int64_t CpuDevice::unclaimed_bytes() const {
  const uint64_t allocated = usage_.total();
  const HostMemory memory = host_memory();
  const int64_t untouched =
      std::max<int64_t>(0, static_cast<int64_t>(allocated) - memory.process_bytes);
  return std::max<int64_t>(0, memory.available_bytes - untouched);
}

WeightLayout CpuDevice::preferred_layout(DType type, int64_t rows, int64_t /*cols*/) const {
  return layout_for_kernels(type, rows);
}

Buffer CpuDevice::allocate(size_t bytes, MemoryTag tag) {
  SPW_ASSERT(bytes > 0);
  SPW_CHECK(budget_ == 0 || bytes <= budget_ - std::min(budget_, usage_.total()), kOutOfMemory,
            "{} need {}, but of the host's budget of {} only {} are left (it holds: {}); raise "
            "--host-memory",
            memory_tag_name(tag), format_bytes(bytes), format_bytes(budget_),
            format_bytes(budget_ - std::min(budget_, usage_.total())), usage_.describe());
  const bool huge = bytes >= kHugeFrom;
  const size_t alignment = huge ? kHugePage : bytes >= kPage ? kPage : kAlignment;
  if (bytes >= kCheckFrom) {
    // The kernel promises more than it has, and the process would die when it touches the pages.
    const int64_t available = unclaimed_bytes();
    if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max() / 2) ||
        static_cast<int64_t>(bytes) > available) {
      fail_memory(bytes, available);
    }
  }
  // Sizes are not rounded up to a whole huge page, because no budget counts what the last one would
  // take.
  const size_t unit = std::min(alignment, kPage);
  const size_t rounded = (bytes + unit - 1) / unit * unit;
  void* data = nullptr;
  if (injected_error("alloc.host") || posix_memalign(&data, alignment, rounded) != 0)
    fail_memory(bytes, unclaimed_bytes());
  if (huge) {
    // These are hints; everything works without them.
    interleave_memory(data, rounded);
    madvise(data, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  usage_.add(tag, bytes);
  return Buffer(*this, static_cast<std::byte*>(data), bytes, tag);
}

void CpuDevice::release(std::byte* data, size_t bytes, MemoryTag tag) noexcept {
  usage_.remove(tag, bytes);
  std::free(data);
}

}  // namespace spillway
