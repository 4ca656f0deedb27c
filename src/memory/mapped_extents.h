// SPDX-License-Identifier: Apache-2.0
// Extents of files where the page cache has them.
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
  MappedExtents() = default;  // of nothing
  // Throws kIo where a file is too short for one of `extents`: it may have shrunk since its header
  // was read.
  MappedExtents(std::span<const std::filesystem::path> paths, std::span<const Extent> extents);

  // The bytes of an extent, or of a part of one, that the constructor saw.
  std::span<const std::byte> bytes(const Extent& extent) const;
  // Whether the page cache has all of them (where the system does not tell: yes).
  bool is_cached(const Extent& extent) const noexcept;
  // Reads them into the page cache by reading them into `scratch`, of as many bytes: many threads
  // do that faster than they fault pages in. Throws kIo.
  void read_ahead(const Extent& extent, std::span<std::byte> scratch) const;
  // Brings them into memory now, the pages spread over the machine's nodes. Throws kIo.
  void populate(const Extent& extent) const;
  // Pages that lie wholly in it leave this process.
  void drop(const Extent& extent) const noexcept;

 private:
  std::vector<File> files_;
  std::vector<MappedFile> maps_;
};

// Populates all of them with `workers` threads, so that loading shows its progress and the first
// token does not pay for it. Throws kIo, kCancelled.
void populate_all(const MappedExtents& maps, std::span<const Extent> extents, int workers,
                  const WeightLoadOptions& options);

}  // namespace spillway
