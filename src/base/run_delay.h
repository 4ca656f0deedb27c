// SPDX-License-Identifier: Apache-2.0
// How long a thread has been ready to run without a processor.
#pragma once

#include <cstdint>
#include <optional>

namespace spillway {

// Of one thread, asked by any. Move-only.
class RunDelay {
 public:
  RunDelay() = default;
  // Of the thread that calls this.
  static RunDelay of_this_thread();
  RunDelay(RunDelay&& other) noexcept;
  RunDelay& operator=(RunDelay&& other) noexcept;
  ~RunDelay();

  // Since the thread began; nullopt where the kernel does not say.
  std::optional<int64_t> try_nanoseconds() const;

 private:
  int file_ = -1;
};

}  // namespace spillway
