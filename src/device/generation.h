// SPDX-License-Identifier: Apache-2.0
// Numbers that stand for where things lie in memory: equal numbers, equal addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace spillway {

// Held by an owner of memory beside that memory. No two owners in a process ever have the same
// number, also not one after the other at the same address; it is never 0. It goes along when the
// memory is moved to another owner, and the one that is left without gets a new one.
class Generation {
 public:
  Generation() : number_(fresh()) {}
  Generation(Generation&& other) noexcept : number_(std::exchange(other.number_, fresh())) {}
  Generation& operator=(Generation&& other) noexcept {
    number_ = std::exchange(other.number_, fresh());
    return *this;
  }

  uint64_t number() const { return number_; }
  // Some of the memory is elsewhere now.
  void renew() { number_ = fresh(); }

  // A number that nothing has had. Thread-safe.
  static uint64_t fresh() noexcept {
    static std::atomic<uint64_t> last = 0;
    return ++last;
  }

 private:
  uint64_t number_;
};

}  // namespace spillway
