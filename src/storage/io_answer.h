// SPDX-License-Identifier: Apache-2.0
// How requests go to the disk, and how callers learn their results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace spillway {

// kAuto sends reads through io_uring where it is allowed and writes through threads, because
// io_uring completes each direct write in a kernel worker, which was measured to cost up to a
// quarter of the rate.
enum class IoBackend { kAuto, kUring, kThreads };

// The error of a request, as the Error that IoTicket::wait() throws has it.
struct IoFailure {
  ErrorCode code;
  std::string message;
};
// Called by a thread of the queue when a request has ended, before its ticket is done; `failure` is
// null on success. It must be short, because io_uring delivers all users' completions on one
// thread. It must not throw or wait for tickets.
using IoCallback = std::function<void(const IoFailure* failure)>;

}  // namespace spillway
