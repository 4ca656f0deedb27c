// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/byte_units.h"

namespace spillway {

const char* memory_tag_name(MemoryTag tag) {
  constexpr const char* kNames[kMemoryTagCount] = {"weights", "KV cache", "activations",
                                                   "workspace", "staging"};
  return kNames[static_cast<int>(tag)];
}

uint64_t Device::Usage::total() const {
  return std::accumulate(std::begin(bytes), std::end(bytes), uint64_t{0});
}

void Device::Usage::add(MemoryTag tag, uint64_t count) {
  const auto i = static_cast<size_t>(tag);
  bytes[i] += count;
  peaks[i] = std::max(peaks[i], bytes[i]);
  peak_bytes = std::max(peak_bytes, total());
}

void Device::Usage::reset_peaks() {
  std::copy(std::begin(bytes), std::end(bytes), peaks);
  peak_bytes = total();
}

std::string Device::Usage::describe() const {
  std::string text;
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    if (bytes[tag] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        memory_tag_name(static_cast<MemoryTag>(tag)), format_bytes(bytes[tag]));
  }
  return text.empty() ? "nothing yet" : text;
}

void Device::copy_to_device(std::byte* to, const std::byte* host, size_t bytes) {
  SPW_ASSERT(host_visible());
  std::memcpy(to, host, bytes);
}

void Device::copy_to_host(std::byte* host, const std::byte* from, size_t bytes) {
  SPW_ASSERT(host_visible());
  std::memcpy(host, from, bytes);
}

}  // namespace spillway
