// SPDX-License-Identifier: Apache-2.0
// Returns the kernel of every packed type, with the instructions that `Isa` has.
#pragma once

#include "cpu/linear/linear_int8_inl.h"
#include "cpu/linear/linear_int8_super_inl.h"

namespace spillway {
namespace {

template <class Isa>
constexpr Int8Kernels kernels_of() {
  constexpr bool kMixed = Isa::kMixedSigns;
  return {.q4_0 = run_groups<Isa, TypeQ4_0<kMixed>>,
          .q4_1 = run_groups<Isa, TypeQ4_1<kMixed>>,
          .q5_0 = run_groups<Isa, PackedQ5_0>,
          .q5_1 = run_groups<Isa, PackedQ5_1>,
          .q8_0 = run_groups<Isa, PackedQ8_0>,
          .q2_k = run_super_groups<Isa, PackedQ2_K>,
          .q3_k = run_super_groups<Isa, PackedQ3_K>,
          .q4_k = run_super_groups<Isa, TypeK45<256, kMixed>>,
          .q5_k = run_super_groups<Isa, TypeK45<Fifth::kBytes, kMixed>>,
          .q6_k = run_super_groups<Isa, PackedQ6_K>,
          .g4 = run_groups<Isa, TypeG4<kMixed>>};
}

}  // namespace
}  // namespace spillway
