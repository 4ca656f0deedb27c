// SPDX-License-Identifier: Apache-2.0
// Writes the weights that live on disk, other than in the model's own file, to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/model.h"
#include "plan/weight_homes.h"
#include "runtime/weight_source.h"
#include "storage/async_io.h"
#include "storage/weight_file.h"

namespace spillway {

// Owns the file until finish(); the queue must outlive it. Weights are made one at a time in host
// memory, while the last ones are still being written. Throws what WeightFileWriter throws, and
// kOutOfMemory.
class WeightFileFiller {
 public:
  WeightFileFiller(std::span<const WeightTarget> targets, const std::filesystem::path& folder,
                   Device& host, IoQueue& queue)
      : host_(host),
        staging_(host.allocate(kWeightWriteBytes + kDirectAlignment, MemoryTag::kStaging)),
        writer_(queue,
                {.dir = folder, .bytes = file_bytes(targets), .staging = aligned_staging()}) {}

  // `make` fills the memory that it is given with the weight's bytes.
  Extent add(const BoundWeight& weight, const std::function<void(std::byte*)>& make) {
    const auto bytes = static_cast<size_t>(weight.bytes());
    if (made_.bytes() < bytes) {
      made_ = Buffer();
      made_ = host_.allocate(bytes, MemoryTag::kStaging);
    }
    make(made_.data());
    return writer_.append({made_.data(), bytes});
  }
  std::shared_ptr<TemporaryFile> finish() { return writer_.finish(); }

 private:
  static uint64_t file_bytes(std::span<const WeightTarget> targets) {
    std::vector<uint64_t> sizes;
    for (const WeightTarget& target : targets)
      sizes.push_back(static_cast<uint64_t>(target.weight->bytes()));
    return WeightFileWriter::bytes_for(sizes);
  }

  std::span<std::byte> aligned_staging() const {
    return {first_aligned(staging_.data()), kWeightWriteBytes};
  }

  Device& host_;
  Buffer made_, staging_;
  WeightFileWriter writer_;
};

}  // namespace spillway
