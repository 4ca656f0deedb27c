// SPDX-License-Identifier: Apache-2.0
// Device memory with one owner, charged to a tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/memory_usage.h"

namespace spillway {

// An owner of memory that lends it out as buffers: a device. Only the buffers themselves give it
// back.
class BufferSource {
 protected:
  BufferSource() = default;
  ~BufferSource() = default;

 private:
  friend class Buffer;
  virtual void release(std::byte* data, size_t bytes, MemoryTag tag) noexcept = 0;
};

// A block of memory that goes back to its source when destroyed. Move-only. The source must outlive
// it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(BufferSource& source, std::byte* data, size_t bytes, MemoryTag tag)
      : source_(&source), data_(data), bytes_(bytes), tag_(tag) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (source_ != nullptr) source_->release(data_, bytes_, tag_);
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  MemoryTag tag() const { return tag_; }
  bool empty() const { return data_ == nullptr; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(tag_, other.tag_);
  }

  BufferSource* source_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryTag tag_ = MemoryTag::kWorkspace;
};

}  // namespace spillway
