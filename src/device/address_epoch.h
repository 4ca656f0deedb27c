// SPDX-License-Identifier: Apache-2.0
// Address epochs: numbers that stand for where memory lies. Equal numbers mean equal addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace spillway {

// An address epoch, held by an owner of memory beside that memory. No two owners in a process ever
// have the same number, not even one after the other at the same address; it is never 0. It moves
// with the memory to another owner, and the old owner gets a new number.
class AddressEpoch {
 public:
  AddressEpoch() : number_(fresh()) {}
  AddressEpoch(AddressEpoch&& other) noexcept : number_(std::exchange(other.number_, fresh())) {}
  AddressEpoch& operator=(AddressEpoch&& other) noexcept {
    number_ = std::exchange(other.number_, fresh());
    return *this;
  }

  uint64_t number() const { return number_; }
  // Takes a new number because some of the memory moved.
  void renew() { number_ = fresh(); }

  // Returns a number that was never used before. Thread-safe.
  static uint64_t fresh() noexcept {
    static std::atomic<uint64_t> last = 0;
    return ++last;
  }

 private:
  uint64_t number_;
};

}  // namespace spillway
