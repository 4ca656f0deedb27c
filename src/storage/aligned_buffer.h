// SPDX-License-Identifier: Apache-2.0
// The alignment that direct file I/O requires of offsets, lengths and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/fault_points.h"

namespace spillway {

// Offsets, addresses and lengths of direct I/O must be multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

constexpr uint64_t align_down(uint64_t bytes) { return bytes & ~uint64_t{kDirectAlignment - 1}; }
constexpr uint64_t align_up(uint64_t bytes) { return align_down(bytes + kDirectAlignment - 1); }
inline bool is_aligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0;
}

// Direct I/O can use memory only from its first aligned byte on, so allocate kDirectAlignment bytes
// more than it needs.
inline std::byte* first_aligned(std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (align_up(address) - address);
}
inline std::span<std::byte> aligned_part(std::byte* data, size_t bytes) {
  std::byte* const first = first_aligned(data);
  return {first, bytes - static_cast<size_t>(first - data)};
}

// Memory for direct I/O that is not charged to a purpose: for tests, tools and small staging.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes)
      : size_(align_up(bytes)),
        data_(injected_error("alloc.aligned")
                  ? nullptr
                  : static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, size_))) {
    SPW_CHECK(data_ != nullptr, kOutOfMemory, "no memory for a buffer of {} bytes", size_);
  }
  std::byte* data() { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_.get(), size_}; }
  std::span<const std::byte> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace spillway
