// SPDX-License-Identifier: Apache-2.0
// Keeps the bytes of weights between two plans, for which only their homes change, the memories in
// which they live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memory/pinned_buffer.h"
#include "storage/temporary_file.h"
#include "storage/tensor_index.h"

namespace spillway {

// Weights of one model for one device, each in the form that the device computes with, in host
// memory or in a temporary file, as the previous plan left it; many may be missing. Owns memory and
// files. Filled and emptied by weight_mover.h; weights go by their number in Model::weights.
// Move-only.
class KeptWeights {
 public:
  KeptWeights() = default;  // for no model
  explicit KeptWeights(size_t weights) : memory_(weights), in_file_(weights) {}

  bool empty() const { return memory_.empty(); }

  bool has_memory(size_t weight) const { return !empty() && !memory_[weight].empty(); }
  const PinnedBuffer& memory(size_t weight) const { return memory_[weight]; }
  void keep(size_t weight, PinnedBuffer memory) { memory_[weight] = std::move(memory); }
  // Returns the weight's memory, which is then no longer kept here.
  PinnedBuffer take(size_t weight) { return std::move(memory_[weight]); }

  // Returns where the weight is in files(), if it is there; the extent's file is an index of them.
  std::optional<Extent> try_extent(size_t weight) const {
    return empty() ? std::nullopt : in_file_[weight];
  }
  void keep(size_t weight, const Extent& extent) { in_file_[weight] = extent; }
  using Files = std::vector<std::shared_ptr<TemporaryFile>>;
  const Files& files() const { return files_; }
  void keep_files(Files files) { files_ = std::move(files); }
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
  Files files_;
};

}  // namespace spillway
