// SPDX-License-Identifier: Apache-2.0
#include "memory/pinned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/byte_units.h"
#include "base/log.h"
#include "base/thread_pool.h"

namespace spillway {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kTouchBytes = size_t{64} << 20;
constexpr size_t kManyThreadsFrom = size_t{64} << 20;

void touch(std::byte* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (end > begin &&
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  for (size_t at = 0; at < bytes; at += kPage) {
    auto* const byte = reinterpret_cast<volatile std::byte*>(data + at);
    *byte = *byte;
  }
}

void touch_all(std::byte* data, size_t bytes) {
  if (bytes < kManyThreadsFrom) return touch(data, bytes);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t at; (at = next.fetch_add(kTouchBytes)) < bytes;)
      touch(data + at, std::min(kTouchBytes, bytes - at));
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < available_threads(); ++i) threads.emplace_back(work);
  work();
}

}  // namespace

PinnedBuffer::PinnedBuffer(Device& host, Device& device, size_t bytes, MemoryTag tag, Pin pin)
    : buffer_(host.allocate(bytes, tag)) {
  touch_all(buffer_.data(), bytes);
  if (pin == Pin::kNever) return;
  if (device.try_pin(buffer_.data(), bytes)) {
    pinned_by_ = &device;
  } else if (static std::atomic<bool> said = false; !said.exchange(true)) {
    log_warning("{} of host memory cannot be pinned; copies to {} take a detour",
                format_bytes(bytes), device.info().name);
  }
}

PinnedBuffer::~PinnedBuffer() {
  if (pinned_by_ != nullptr) pinned_by_->unpin(buffer_.data());
}

}  // namespace spillway
