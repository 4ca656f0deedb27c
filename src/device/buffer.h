// SPDX-License-Identifier: Apache-2.0
// Owned device memory, charged to a tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/memory_usage.h"

namespace spillway {

class Device;

// Move-only; gives its memory back to the device when destroyed. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::byte* data, size_t bytes, MemoryTag tag)
      : device_(&device), data_(data), bytes_(bytes), tag_(tag) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  MemoryTag tag() const { return tag_; }
  bool empty() const { return data_ == nullptr; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(tag_, other.tag_);
  }

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryTag tag_ = MemoryTag::kWorkspace;
};

}  // namespace spillway
