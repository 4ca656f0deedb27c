// SPDX-License-Identifier: Apache-2.0
#include "base/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace spillway {

RunDelay RunDelay::of_this_thread() {
  RunDelay delay;
  delay.file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  return delay;
}

RunDelay::RunDelay(RunDelay&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
RunDelay& RunDelay::operator=(RunDelay&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}
RunDelay::~RunDelay() {
  if (file_ >= 0) close(file_);
}

std::optional<int64_t> RunDelay::try_nanoseconds() const {
  // "on a processor, waiting for one, how often": nanoseconds twice.
  char text[96];
  const ssize_t size = file_ < 0 ? -1 : pread(file_, text, sizeof(text) - 1, 0);
  if (size <= 0) return std::nullopt;
  text[size] = '\0';
  long long ran = 0, waited = 0;
  if (std::sscanf(text, "%lld %lld", &ran, &waited) != 2) return std::nullopt;
  return waited;
}

}  // namespace spillway
