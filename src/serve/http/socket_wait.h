// SPDX-License-Identifier: Apache-2.0
// Waiting for a socket, in a way that an interrupt ends.
#pragma once

#include <atomic>
#include <chrono>

namespace spillway {

// Waits until the socket has one of `events` (as poll() names them), or an error; false when the
// time is over. Throws kCancelled when `cancel` is set.
[[nodiscard]] bool wait_for_socket(int fd, short events, std::chrono::milliseconds most,
                                   const std::atomic<bool>& cancel);

}  // namespace spillway
