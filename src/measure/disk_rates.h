// SPDX-License-Identifier: Apache-2.0
// Measures how fast a folder's disk is written and read, in the way the engine does it: through its
// queue, past the page cache where the file system allows that.
#pragma once

#include <cstdint>
#include <filesystem>

#include "measure/measure_pace.h"
#include "storage/async_io.h"

namespace spillway {

struct DiskRates {
  double read_bytes_per_s = 0, write_bytes_per_s = 0;
  uint64_t free_bytes = 0;  // of the folder's file system, for this user
  bool direct = false;      // past the page cache; if not, mostly memory was measured
};

// Writes a temporary file of at most `most_bytes` (and at most a quarter of the free space) and
// reads it again. Throws kIo; throws kInvalidArgument if the folder does not exist.
DiskRates measure_disk(IoQueue& queue, const std::filesystem::path& dir, uint64_t most_bytes,
                       MeasurePace& pace, double share);

}  // namespace spillway
