// SPDX-License-Identifier: Apache-2.0
// Brings weights from a model's files into memory: copied, packed or quantized.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/weight_source.h"

namespace spillway {

// Reads in pieces, and converts each piece while the next ones are read, with the host's number of
// threads: a plain weight whose type in memory is G4 is quantized, one that is F32 there is
// widened, kGroups16 is packed; if the host cannot write to the device's memory, the result is
// copied there. A weight that is transposed in the file, or lies there in groups of rows that the
// layout cannot take one by one, is assembled in host memory first. make() throws kInvalidArgument,
// naming file and offset, for weights that G4 cannot hold (NaN, infinity, beyond F16), and what
// stream_extents() throws.
class FileSource final : public WeightSource {
 public:
  // `host` provides the staging memory and the threads; it may be the device. Both must outlive
  // this.
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
