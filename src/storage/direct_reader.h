// SPDX-License-Identifier: Apache-2.0
// Reads extents of files into memory past the page cache, several requests in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "storage/tensor_index.h"

namespace spillway {

// Offsets, addresses and lengths of direct reads are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

struct ReadRequest {
  int32_t file = 0;  // index into the reader's paths
  uint64_t offset = 0;
  std::span<std::byte> destination;
};

struct ReadOptions {
  bool direct = true;  // false: through the page cache
  int threads = 4;     // requests in flight
  size_t chunk_bytes = size_t{4} << 20;
  // Called with all bytes done so far, growing, by one thread at a time (not always the same).
  std::function<void(uint64_t bytes_done)> progress;
  const std::atomic<bool>* cancel = nullptr;  // set to true: read() throws kCancelled soon
};

struct ReadStats {
  uint64_t bytes = 0;
  uint64_t direct_bytes = 0;  // of those, past the page cache
  uint64_t copied_bytes = 0;  // of those, through a staging buffer
};

// Opens the files for each read(); thread-safe. A destination whose address is congruent to its
// offset modulo kDirectAlignment (see place_extents) is filled in place except for its first and
// last partial block; any other goes through a staging buffer. Where the file system refuses direct
// reads (tmpfs), buffered ones take over.
class DirectReader {
 public:
  explicit DirectReader(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)) {}

  // Fills every destination or throws kIo (path and offset), kInvalidArgument or kCancelled; the
  // destinations are then undefined.
  ReadStats read(std::span<const ReadRequest> requests, const ReadOptions& options = {}) const;

 private:
  std::vector<std::filesystem::path> paths_;
};

// Positions for `extents` in one arena whose base is aligned to kDirectAlignment, such that every
// read lands in place: position % kDirectAlignment == offset % kDirectAlignment. Neighbours in a
// file stay neighbours; a jump costs less than one block of padding. An extent whose offset is not
// a multiple of `alignment` (some safetensors files) is put at an aligned position instead and goes
// through staging; the default suits all element and block types.
struct ArenaLayout {
  std::vector<uint64_t> positions;  // of each extent
  uint64_t bytes = 0;               // a multiple of kDirectAlignment
};
ArenaLayout place_extents(std::span<const Extent> extents, uint64_t alignment = 4);

}  // namespace spillway
