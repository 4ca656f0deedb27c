// SPDX-License-Identifier: Apache-2.0
// Makes rows that a file has in several groups contiguous in memory.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "device/buffer.h"
#include "storage/extent_reader.h"

namespace spillway {

// Moves the bytes of `count` extents of a batch, beginning with number `first`, directly after
// those of the first of them. They were read into `memory`, in this order. Returns where they
// begin. Call it only once for a batch's extents.
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
