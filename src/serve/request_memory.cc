// SPDX-License-Identifier: Apache-2.0
#include "serve/request_memory.h"

#include <fmt/core.h>

#include "base/byte_units.h"
#include "serve/api_error.h"

namespace spillway {

RequestMemory::Reservation::~Reservation() {
  if (memory_ == nullptr) return;
  {
    const std::lock_guard lock(memory_->mutex_);
    memory_->used_ -= bytes_;
  }
  memory_->has_room_.notify_all();
}

void RequestMemory::check(uint64_t bytes) const {
  if (bytes <= limit_) return;
  throw ApiError(413, "request_too_large", "",
                 fmt::format("the request needs about {} of memory, and this server has {} for "
                             "requests; send less, or several requests",
                             format_bytes(bytes), format_bytes(limit_)));
}

RequestMemory::Reservation RequestMemory::wait(uint64_t bytes) {
  check(bytes);
  std::unique_lock lock(mutex_);
  has_room_.wait(lock, [&] { return used_ + bytes <= limit_; });
  used_ += bytes;
  return {*this, bytes};
}

RequestMemory::Reservation RequestMemory::reserve(uint64_t bytes) {
  check(bytes);
  const std::lock_guard lock(mutex_);
  if (used_ + bytes > limit_)
    throw ApiError(503, "server_busy", "",
                   "the requests that wait take all memory that there is for them; try again "
                   "later");
  used_ += bytes;
  return {*this, bytes};
}

}  // namespace spillway
