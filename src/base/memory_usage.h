// SPDX-License-Identifier: Apache-2.0
// Bytes of one memory, counted by what they are for.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

// What a byte is for; budgets and reports count by it.
enum class MemoryTag : uint8_t { kWeights, kKv, kActivations, kWorkspace, kStaging };
inline constexpr int kMemoryTagCount = 5;
const char* memory_tag_name(MemoryTag tag);

// Bytes now and at most so far, by tag; the peak of all is below the sum of the peaks.
struct MemoryUsage {
  uint64_t bytes[kMemoryTagCount] = {};
  uint64_t peaks[kMemoryTagCount] = {};
  uint64_t peak_bytes = 0;

  uint64_t of(MemoryTag tag) const { return bytes[static_cast<int>(tag)]; }
  uint64_t total() const;
  void add(MemoryTag tag, uint64_t count);
  void remove(MemoryTag tag, uint64_t count) { bytes[static_cast<int>(tag)] -= count; }
  // There was a time when `tag` had `count` bytes, and everything together `all`.
  void reached(MemoryTag tag, uint64_t count, uint64_t all);
  // Forgets the peaks: from now on the most is what there is now.
  void reset_peaks();
  // "weights 3.1 GiB, KV cache 512 MiB", or "nothing yet".
  std::string describe() const;
};

}  // namespace spillway
