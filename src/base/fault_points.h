// SPDX-License-Identifier: Apache-2.0
// Fault injection: named places where a test makes the system fail, e.g. the third read with EIO.
// Compiled in always; a point costs one relaxed load while nothing is armed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace spillway {

enum class FaultKind {
  kEio,
  kEnospc,
  kEintr,
  kEinval,
  kEnomem,
  kEnosys,
  kEopnotsupp,
  kShort,  // half of what was transferred counts
};

// Thread-safe, all of it. Makes hits [nth, nth + count) of `point` from now on fail, nth from 1.
// Several may be armed, also at one point: there the first whose turn it is decides.
void arm_fault(std::string_view point, uint64_t nth, FaultKind kind, uint64_t count = 1);
// "io.read:3:eio,io.write:1:short": point:N:kind, several after commas; N+ means the Nth and all
// that follow. Throws kInvalidArgument, saying which part is wrong, and then arms nothing.
void arm_faults(std::string_view text);
// Forgets what is armed, counts of hits, and the environment.
void disarm_faults();
// How often `point` was reached since something was armed; also of points that have no fault, so
// that a test can find out how many there are to fail (arm one far away).
uint64_t fault_hits(std::string_view point);

// Faults also come from the environment: SPILLWAY_FAULTS has arm_faults()' text and is read at the
// first point reached. What is wrong in it is logged there and ignored; a program that would
// rather refuse to start calls this first, which throws as arm_faults() does.
void arm_faults_from_environment();

namespace fault_detail {
enum : int { kUnknown, kOff, kOn };  // kUnknown: the environment has not been looked at
extern std::atomic<int> state;
int64_t hit(const char* point, int64_t result);
}  // namespace fault_detail

// What the system answered at `point` (bytes or other success, or -errno), or what a fault makes
// of it.
inline int64_t with_fault(const char* point, int64_t result) {
  if (fault_detail::state.load(std::memory_order_relaxed) == fault_detail::kOff) [[likely]]
    return result;
  return fault_detail::hit(point, result);
}

// For calls that must not happen when they are to fail: 0, or the errno of a fault.
inline int injected_error(const char* point) {
  const int64_t result = with_fault(point, 0);
  return result < 0 ? static_cast<int>(-result) : 0;
}

}  // namespace spillway
