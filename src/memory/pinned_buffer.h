// SPDX-License-Identifier: Apache-2.0
// Host memory that a device can copy from and to at the bus's full speed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace spillway {

// Owns memory of `host` whose pages are all present, pinned for `device` while it lives. If the
// system does not allow pinning, it is ordinary memory (is_pinned()), and copies go through a
// staging buffer. Move-only; both devices must outlive it.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Touches the pages with all threads first, because pinning present pages takes a tenth of the
  // time. Throws kOutOfMemory. With kNever the memory is ordinary, even if it could be pinned.
  enum class Pin : uint8_t { kWherePossible, kNever };
  PinnedBuffer(Device& host, Device& device, size_t bytes, MemoryTag tag,
               Pin pin = Pin::kWherePossible);
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedBuffer();

  std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return buffer_.bytes(); }
  bool empty() const { return buffer_.empty(); }
  bool is_pinned() const { return pinned_by_ != nullptr; }

 private:
  void swap(PinnedBuffer& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(pinned_by_, other.pinned_by_);
  }

  Buffer buffer_;
  Device* pinned_by_ = nullptr;
};

}  // namespace spillway
