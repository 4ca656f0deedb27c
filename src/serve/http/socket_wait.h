// SPDX-License-Identifier: Apache-2.0
// Waits for a socket so that an interrupt ends the wait.
#pragma once

#include <atomic>
#include <chrono>

namespace spillway {

// Waits until the socket has one of `events` (poll()'s), or an error; returns false on timeout.
// Throws kCancelled when `cancel` is set.
[[nodiscard]] bool wait_for_socket(int fd, short events, std::chrono::milliseconds most,
                                   const std::atomic<bool>& cancel);

}  // namespace spillway
