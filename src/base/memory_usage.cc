// SPDX-License-Identifier: Apache-2.0
#include "base/memory_usage.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/byte_units.h"

namespace spillway {

const char* memory_tag_name(MemoryTag tag) {
  constexpr const char* kNames[kMemoryTagCount] = {"weights", "KV cache", "activations",
                                                   "workspace", "staging"};
  return kNames[static_cast<int>(tag)];
}

uint64_t MemoryUsage::total() const {
  return std::accumulate(std::begin(bytes), std::end(bytes), uint64_t{0});
}

void MemoryUsage::add(MemoryTag tag, uint64_t count) {
  const auto i = static_cast<size_t>(tag);
  bytes[i] += count;
  peaks[i] = std::max(peaks[i], bytes[i]);
  peak_bytes = std::max(peak_bytes, total());
}

void MemoryUsage::reached(MemoryTag tag, uint64_t count, uint64_t all) {
  uint64_t& peak = peaks[static_cast<int>(tag)];
  peak = std::max(peak, count);
  peak_bytes = std::max(peak_bytes, all);
}

void MemoryUsage::reset_peaks() {
  std::copy(std::begin(bytes), std::end(bytes), peaks);
  peak_bytes = total();
}

std::string MemoryUsage::describe() const {
  std::string text;
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    if (bytes[tag] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        memory_tag_name(static_cast<MemoryTag>(tag)), format_bytes(bytes[tag]));
  }
  return text.empty() ? "nothing yet" : text;
}

}  // namespace spillway
