// SPDX-License-Identifier: Apache-2.0
// Reads what the kernel knows about processors: how long threads waited for one, and how long they
// were idle.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "base/file_descriptor.h"

namespace spillway {

// Says how long one thread has been ready to run without a processor. Any thread may ask.
// Move-only.
class RunDelay {
 public:
  RunDelay() = default;
  // Makes the object for the calling thread.
  static RunDelay of_this_thread();

  // Returns the time since the thread began; nullopt where the kernel does not say.
  std::optional<int64_t> try_nanoseconds() const;

 private:
  FileDescriptor file_;
};

// Returns the seconds for which these processors were idle, summed, since the machine started;
// nullopt where the kernel does not say.
std::optional<double> try_idle_seconds(std::span<const int> cpus,
                                       const std::filesystem::path& stat = "/proc/stat");

}  // namespace spillway
