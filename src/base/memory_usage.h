// SPDX-License-Identifier: Apache-2.0
// Counts the bytes of one memory by purpose.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

// The purpose of a byte; budgets and reports count by it.
enum class MemoryTag : uint8_t { kWeights, kKv, kActivations, kWorkspace, kStaging };
inline constexpr int kMemoryTagCount = 5;
const char* memory_tag_name(MemoryTag tag);

// The bytes in use now and their peaks so far, by tag. `peak_bytes` may be below the sum of
// `peaks`, which need not be reached at the same time.
struct MemoryUsage {
  uint64_t bytes[kMemoryTagCount] = {};
  uint64_t peaks[kMemoryTagCount] = {};
  uint64_t peak_bytes = 0;

  uint64_t of(MemoryTag tag) const { return bytes[static_cast<int>(tag)]; }
  uint64_t total() const;
  void add(MemoryTag tag, uint64_t count);
  void remove(MemoryTag tag, uint64_t count) { bytes[static_cast<int>(tag)] -= count; }
  // Records that at some time `tag` had `count` bytes, and all tags together `all`.
  void reached(MemoryTag tag, uint64_t count, uint64_t all);
  // Resets the peaks to what is in use now.
  void reset_peaks();
  // Returns text such as "weights 3.1 GiB, KV cache 512 MiB", or "nothing yet".
  std::string describe() const;
};

}  // namespace spillway
