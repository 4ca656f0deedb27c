// SPDX-License-Identifier: Apache-2.0
// Weights that are kept from one plan to the next: only their homes change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/pinned_buffer.h"
#include "storage/temporary_file.h"
#include "storage/tensor_index.h"

namespace spillway {

// Between two plans for one model on one device: each weight as the first had it, in the form that
// the device computes with, in host memory or in a file of ours. What loads the second takes from
// here what it finds, and makes or reads the rest. Move-only. Filled by ModelWeights::give_up().
class WeightStore {
 public:
  WeightStore() = default;
  explicit WeightStore(size_t weights) : memory_(weights), in_file_(weights) {}

  bool empty() const { return memory_.empty(); }

  // By their number in Model::weights. take() leaves nothing behind.
  bool has_memory(size_t weight) const { return !empty() && !memory_[weight].empty(); }
  const PinnedBuffer& memory(size_t weight) const { return memory_[weight]; }
  PinnedBuffer take(size_t weight) { return std::move(memory_[weight]); }
  void keep(size_t weight, PinnedBuffer memory) { memory_[weight] = std::move(memory); }
  void drop(size_t weight) { memory_[weight] = PinnedBuffer(); }
  // Copies it, and drops it; false where it is not in memory.
  bool try_copy(size_t weight, std::byte* to);

  // In files(); the extent's file is a number there.
  std::optional<Extent> try_extent(size_t weight) const {
    return empty() ? std::nullopt : in_file_[weight];
  }
  void keep(size_t weight, const Extent& extent) { in_file_[weight] = extent; }
  std::vector<std::shared_ptr<TemporaryFile>>& files() { return files_; }
  void forget_files() {
    files_.clear();
    in_file_.assign(in_file_.size(), std::nullopt);
  }
  uint64_t file_bytes() const {
    uint64_t bytes = 0;
    for (const auto& file : files_) bytes += file->bytes();
    return bytes;
  }

 private:
  std::vector<PinnedBuffer> memory_;
  std::vector<std::optional<Extent>> in_file_;
  std::vector<std::shared_ptr<TemporaryFile>> files_;
};

}  // namespace spillway
