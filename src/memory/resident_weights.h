// SPDX-License-Identifier: Apache-2.0
// Brings the bytes of weights from files into host memory: mapped, or read past the page cache into
// an arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "storage/file.h"
#include "storage/tensor_index.h"

namespace spillway {

enum class WeightAccess : uint8_t {
  kMapped,  // the page cache's own pages: nothing is copied, and processes share them
  kDirect,  // O_DIRECT into an arena: the page cache stays out of it
};

struct WeightLoadOptions {
  WeightAccess access = WeightAccess::kMapped;
  bool compress = false;  // plain matrices become 4-bit groups, see compress_matrices()
  // Called with growing `done`, from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // set to true: loading throws kCancelled soon
};

// Owns the map or the arena, never both: each byte is in memory once. Move-only; reading is
// thread-safe.
class ResidentWeights {
 public:
  // `extents` index into `paths`. `device` must be one whose memory the host can read. Throws kIo,
  // kOutOfMemory, kCancelled.
  ResidentWeights(Device& device, std::span<const std::filesystem::path> paths,
                  std::span<const Extent> extents, const WeightLoadOptions& options);

  // The bytes of extents[i].
  const std::byte* data(size_t i) const { return data_.at(i); }

  // Whoever changes the layout of weights does it in place if they are in the arena (the answer is
  // where), and otherwise in a copy (the answer is null), dropping each extent once it is copied.
  std::byte* try_writable(size_t i);
  void drop(size_t i) const noexcept;

 private:
  void map(std::span<const std::filesystem::path> paths, std::span<const Extent> extents,
           const WeightLoadOptions& options);
  void read(Device& device, std::span<const std::filesystem::path> paths,
            std::span<const Extent> extents, const WeightLoadOptions& options);

  std::vector<MappedFile> maps_;
  Buffer arena_;
  std::vector<Extent> extents_;
  std::vector<const std::byte*> data_;
};

}  // namespace spillway
