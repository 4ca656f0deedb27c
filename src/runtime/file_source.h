// SPDX-License-Identifier: Apache-2.0
// Weights on their way from a model's files into memory of their own: copied, packed or quantized.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/weight_source.h"

namespace spillway {

// Reads piece by piece and makes each what it should be behind the reads of the next ones, with the
// host's number of threads: a plain weight whose type in memory is G4 is quantized, one that
// is F32 there is widened, kGroups16 is packed; where the device's memory is out of the host's
// reach, the result is copied there. What is transposed in the file, or lies there in groups of
// rows that the layout cannot take one by one, is put together in host memory first. make() throws
// kInvalidArgument, naming file and offset, for weights that G4 cannot hold (NaN, infinity, beyond
// F16), and what stream_extents() throws.
class FileSource final : public WeightSource {
 public:
  // `host` has the staging memory and the threads; it may be the device. Both must outlive it.
  FileSource(Device& host, std::span<const std::filesystem::path> paths)
      : host_(host), paths_(paths) {}

  std::span<const std::filesystem::path> files() const override { return paths_; }
  void make(Device& device, std::span<const WeightTarget> targets,
            const WeightLoadOptions& options) override;
  uint64_t bytes_to_make(const BoundWeight& weight) const override {
    return static_cast<uint64_t>(weight.file_bytes());
  }

 private:
  class Making;

  Device& host_;
  std::span<const std::filesystem::path> paths_;
};

}  // namespace spillway
