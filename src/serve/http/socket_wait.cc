// SPDX-License-Identifier: Apache-2.0
#include "serve/http/socket_wait.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace spillway {

bool wait_for_socket(int fd, short events, std::chrono::milliseconds most,
                     const std::atomic<bool>& cancel) {
  using Clock = std::chrono::steady_clock;
  // A signal right before poll() does not end it, so each wait is short.
  constexpr std::chrono::milliseconds kLook{100};
  const auto end = Clock::now() + most;
  while (true) {
    SPW_CHECK(!cancel.load(), kCancelled, "interrupted while waiting for the server");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    pollfd poller = {fd, events, 0};
    const auto slice = std::clamp(left, std::chrono::milliseconds(0), kLook);
    const int count = ::poll(&poller, 1, static_cast<int>(slice.count()));
    if (count > 0) return true;
    SPW_CHECK(count == 0 || errno == EINTR, kIo, "cannot wait for the server: {}",
              std::strerror(errno));
    if (left <= slice) return false;
  }
}

}  // namespace spillway
