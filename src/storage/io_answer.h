// SPDX-License-Identifier: Apache-2.0
// By which way requests go to the disk, and how callers are told what came of one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace spillway {

// kAuto: reads through io_uring where it is allowed, writes through threads: io_uring finishes
// each direct write in a kernel worker, which was measured to cost up to a quarter of the rate.
enum class IoBackend { kAuto, kUring, kThreads };

// What went wrong with a request, as the Error that IoTicket::wait() throws has it.
struct IoFailure {
  ErrorCode code;
  std::string message;
};
// Called by a thread of the queue when a request has ended, before its ticket is done; null where
// all is well. Keep it short: with io_uring all users' answers come on one thread. Do not throw or
// wait for tickets in it.
using IoCallback = std::function<void(const IoFailure* failure)>;

}  // namespace spillway
