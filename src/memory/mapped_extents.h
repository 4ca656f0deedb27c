// SPDX-License-Identifier: Apache-2.0
// Maps extents of files into memory: their bytes are the page cache's, not copies.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "memory/weight_load_options.h"
#include "storage/file.h"
#include "storage/tensor_index.h"

namespace spillway {

// Owns maps of the files; move-only, thread-safe.
class MappedExtents {
 public:
  MappedExtents() = default;  // maps nothing
  // Throws kIo if a file is too short for one of `extents`: it may have shrunk since its
  // header was read.
  MappedExtents(std::span<const std::filesystem::path> paths, std::span<const Extent> extents);

  // The bytes of one of the constructor's extents, or of a part of one.
  std::span<const std::byte> bytes(const Extent& extent) const;
  // Whether the page cache has the whole extent (true if the system does not tell).
  bool is_cached(const Extent& extent) const noexcept;
  // Brings an extent into the page cache by reading it into `scratch`, which must be as large: with
  // many threads this is faster than page faults. Throws kIo.
  void read_ahead(const Extent& extent, std::span<std::byte> scratch) const;
  // Faults an extent in now, with its pages spread over the machine's NUMA nodes. Throws kIo.
  void populate(const Extent& extent) const;
  // Removes pages that are entirely inside the extent from this process.
  void drop(const Extent& extent) const noexcept;

 private:
  std::vector<File> files_;
  std::vector<MappedFile> maps_;
};

// Populates all extents with `workers` threads, so that loading shows its progress and the first
// token does not have to wait for it. Throws kIo, kCancelled.
void populate_all(const MappedExtents& maps, std::span<const Extent> extents, int workers,
                  const WeightLoadOptions& options);

}  // namespace spillway
