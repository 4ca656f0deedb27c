// SPDX-License-Identifier: Apache-2.0
// What the kernel says of processors: how long threads waited for one, how long they had nothing to
// do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "base/file_descriptor.h"

namespace spillway {

// How long one thread has been ready to run without a processor; asked by any. Move-only.
class RunDelay {
 public:
  RunDelay() = default;
  // Of the thread that calls this.
  static RunDelay of_this_thread();

  // Since the thread began; nullopt where the kernel does not say.
  std::optional<int64_t> try_nanoseconds() const;

 private:
  FileDescriptor file_;
};

// Seconds in which these processors had nothing to do, summed, since the machine began; nullopt
// where the kernel does not say.
std::optional<double> try_idle_seconds(std::span<const int> cpus,
                                       const std::filesystem::path& stat = "/proc/stat");

}  // namespace spillway
