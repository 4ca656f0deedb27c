// SPDX-License-Identifier: Apache-2.0
// Limits the host memory that requests take besides the model.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

namespace spillway {

// Counts estimated bytes; it allocates nothing. Thread-safe; must outlive its reservations.
class RequestMemory {
 public:
  explicit RequestMemory(uint64_t limit_bytes) : limit_(limit_bytes) {}

  // Releases its bytes when it is destroyed.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(memory_, other.memory_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Reservation();

   private:
    friend class RequestMemory;
    Reservation(RequestMemory& memory, uint64_t bytes) : memory_(&memory), bytes_(bytes) {}
    RequestMemory* memory_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // Both throw ApiError(413) if `bytes` exceeds the limit. If other reservations hold the memory,
  // wait() waits for them, so they must end by themselves, and reserve() throws ApiError(503).
  [[nodiscard]] Reservation wait(uint64_t bytes);
  [[nodiscard]] Reservation reserve(uint64_t bytes);

 private:
  void check(uint64_t bytes) const;

  const uint64_t limit_;
  std::mutex mutex_;
  std::condition_variable has_room_;
  uint64_t used_ = 0;
};

}  // namespace spillway
