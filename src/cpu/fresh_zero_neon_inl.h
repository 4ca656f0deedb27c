// SPDX-License-Identifier: Apache-2.0
// This file has only static functions, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <arm_neon.h>

namespace spillway {
namespace {

// Returns a zero in a register of its own for accumulators to start from: g++ would share one zero
// and copy the register, which costs as much as a product; this is free.
[[gnu::always_inline]] static inline int32x4_t fresh_zero() {
  int32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}

}  // namespace
}  // namespace spillway
