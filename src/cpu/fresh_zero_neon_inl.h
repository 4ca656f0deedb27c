// SPDX-License-Identifier: Apache-2.0
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include <arm_neon.h>

namespace spillway {
namespace {

// A zero of its own for sums to start from: g++ would share one and copy the register, which costs
// what a product costs; this is free.
[[gnu::always_inline]] static inline int32x4_t fresh_zero() {
  int32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}

}  // namespace
}  // namespace spillway
