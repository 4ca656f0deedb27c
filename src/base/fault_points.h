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
  kShort,  // the call reports only half of the bytes that it transferred
};

// Makes hits [nth, nth + count) of `point`, counted from now and from 1, fail. Several faults may
// be armed, also at one point; if more than one covers a hit, the one armed first decides. All
// functions of this file are thread-safe.
void arm_fault(std::string_view point, uint64_t nth, FaultKind kind, uint64_t count = 1);
// Arms the faults in a text such as "io.read:3:eio,io.write:1:short": point:N:kind, separated by
// commas; N+ means the Nth hit and all that follow. If a part is wrong, throws kInvalidArgument
// that names it, and arms nothing.
void arm_faults(std::string_view text);
// Disarms all faults, clears the counts of hits, and ignores the environment from then on.
void disarm_faults();
// Returns how often `point` was reached since something was armed. Points without a fault count
// too, so that a test can find out how many hits there are to fail (arm one far away).
uint64_t fault_hits(std::string_view point);

// Arms the faults of the environment variable SPILLWAY_FAULTS, which has the text of arm_faults().
// Without this call it is read at the first point reached, where errors in it are logged and
// ignored; a program that would rather refuse to start calls this first, which throws as
// arm_faults() does.
void arm_faults_from_environment();

namespace fault_detail {
enum : int { kUnknown, kOff, kOn };  // kUnknown: the environment was not read yet
extern std::atomic<int> state;
int64_t hit(const char* point, int64_t result);
}  // namespace fault_detail

// Returns the system's `result` at `point` (bytes or other success, or -errno), or what an armed
// fault makes of it.
inline int64_t with_fault(const char* point, int64_t result) {
  if (fault_detail::state.load(std::memory_order_relaxed) == fault_detail::kOff) [[likely]]
    return result;
  return fault_detail::hit(point, result);
}

// For calls that must not happen if a fault is armed: returns 0, or the errno of the fault.
inline int injected_error(const char* point) {
  const int64_t result = with_fault(point, 0);
  return result < 0 ? static_cast<int>(-result) : 0;
}

}  // namespace spillway
