// SPDX-License-Identifier: Apache-2.0
#include "memory/resident_weights.h"

#include <algorithm>

#include "base/error.h"
#include "base/numa.h"
#include "storage/direct_reader.h"

namespace spillway {
namespace {

uint64_t total_bytes(std::span<const Extent> extents) {
  uint64_t total = 0;
  for (const Extent& extent : extents) total += extent.bytes;
  return total;
}

// Faults the pages in now, in file order, so that loading shows its progress and the first token
// does not pay for it.
void touch_pages(std::span<const Extent> extents, std::span<const std::byte* const> data,
                 uint64_t total, const WeightLoadOptions& options) {
  constexpr uint64_t kPage = 4096, kReport = uint64_t{16} << 20;
  uint64_t done = 0, reported = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    for (uint64_t at = 0; at < extents[i].bytes; at += kPage) {
      static_cast<void>(*static_cast<const volatile std::byte*>(data[i] + at));
      const uint64_t now = done + std::min(at + kPage, extents[i].bytes);
      if (now - reported < kReport) continue;
      reported = now;
      SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
                "loading was stopped");
      if (options.progress) options.progress(now, total);
    }
    done += extents[i].bytes;
  }
  if (options.progress) options.progress(total, total);
}

}  // namespace

ResidentWeights::ResidentWeights(Device& device, std::span<const std::filesystem::path> paths,
                                 std::span<const Extent> extents, const WeightLoadOptions& options)
    : extents_(extents.begin(), extents.end()) {
  if (extents.empty()) return;
  if (options.access == WeightAccess::kMapped) {
    map(paths, extents, options);
  } else {
    read(device, paths, extents, options);
  }
}

std::byte* ResidentWeights::try_writable(size_t i) {
  if (arena_.empty()) return nullptr;
  return arena_.data() + (data_.at(i) - arena_.data());
}

void ResidentWeights::drop(size_t i) const noexcept {
  if (maps_.empty()) return;
  const Extent& extent = extents_[i];
  maps_[static_cast<size_t>(extent.file)].advise_dontneed(extent.offset, extent.bytes);
}

void ResidentWeights::map(std::span<const std::filesystem::path> paths,
                          std::span<const Extent> extents, const WeightLoadOptions& options) {
  for (const auto& path : paths) {
    maps_.emplace_back(path);
  }
  for (const Extent& extent : extents) {
    const auto bytes = maps_.at(static_cast<size_t>(extent.file)).bytes();
    // The file may have shrunk since its header was read.
    SPW_CHECK(extent.offset <= bytes.size() && extent.bytes <= bytes.size() - extent.offset, kIo,
              "{}: the file has become shorter while it was being opened",
              paths[static_cast<size_t>(extent.file)].string());
    data_.push_back(bytes.data() + extent.offset);
    maps_[static_cast<size_t>(extent.file)].advise_willneed(extent.offset, extent.bytes);
  }
  const InterleavedFaults spread;
  touch_pages(extents, data_, total_bytes(extents), options);
}

void ResidentWeights::read(Device& device, std::span<const std::filesystem::path> paths,
                           std::span<const Extent> extents, const WeightLoadOptions& options) {
  const ArenaLayout layout = place_extents(extents);
  // Slack to align the base, which the layout counts from.
  arena_ = device.allocate(layout.bytes + kDirectAlignment, MemoryTag::kWeights);
  const auto address = reinterpret_cast<uintptr_t>(arena_.data());
  std::byte* const base =
      arena_.data() + (kDirectAlignment - address % kDirectAlignment) % kDirectAlignment;

  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < extents.size(); ++i) {
    std::byte* const destination = base + layout.positions[i];
    data_.push_back(destination);
    requests.push_back({extents[i].file, extents[i].offset, {destination, extents[i].bytes}});
  }
  ReadOptions read_options;
  read_options.cancel = options.cancel;
  if (options.progress) {
    read_options.progress = [&, total = total_bytes(extents)](uint64_t done) {
      options.progress(done, total);
    };
  }
  DirectReader({paths.begin(), paths.end()}).read(requests, read_options);
}

}  // namespace spillway
