// SPDX-License-Identifier: Apache-2.0
// Rows that a file has in groups, one behind the other in memory.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "device/buffer.h"
#include "storage/extent_reader.h"

namespace spillway {

// Moves the bytes of `count` extents of a batch, from number `first` on, together: behind those of
// the first. They have been read into `memory`, in this order. Returns where they begin. To be
// called once.
inline const std::byte* join_reads(const ExtentBatch& read, size_t first, size_t count,
                                   Buffer& memory) {
  const std::byte* const begin = read.bytes(first).data();
  std::byte* end = memory.data() + (begin - memory.data()) + read.bytes(first).size();
  for (size_t i = first + 1; i < first + count; ++i) {
    const auto bytes = read.bytes(i);
    SPW_ASSERT(bytes.data() >= end);
    std::memmove(end, bytes.data(), bytes.size());
    end += bytes.size();
  }
  return begin;
}

}  // namespace spillway
