// SPDX-License-Identifier: Apache-2.0
// Owned device memory, charged to a tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace spillway {

// What a byte is for; budgets and reports count by it.
enum class MemoryTag : uint8_t { kWeights, kKv, kActivations, kWorkspace, kStaging };
inline constexpr int kMemoryTagCount = 5;

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
